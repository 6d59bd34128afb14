#!/bin/sh
# Writes .env from .env.example, and generates the project's name and the secrets that are empty there. Never overwrites an existing file.
set -eu
cd "$(dirname "$0")/../.."
target=${1:-.env}
if [ -e "$target" ]; then
  echo "error: $target exists; it is not changed (it names the volumes of this installation and has their passwords; without it a new, empty installation is made)" >&2
  exit 1
fi
umask 077
secret() { head -c 48 /dev/urandom | base64 | tr -d '\n=' | tr '+/' 'AZ' | cut -c1-"$1"; }
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
    COMPOSE_PROJECT_NAME=) echo "${line}nightshift-$(head -c 4 /dev/urandom | od -An -tx1 | tr -d ' \n')" ;;
    FERNET_KEY=) echo "FERNET_KEY=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n')" ;;
    JWT_SECRET= | API_SECRET_KEY= | MLFLOW_SECRET_KEY=) echo "$line$(secret 64)" ;;
    *_PASSWORD= | S3_ACCESS_KEY= | S3_SECRET_KEY=) echo "$line$(secret 24)" ;;
    *) echo "$line" ;;
  esac
done <.env.example >"$target"
echo "wrote $target; the user of Airflow and MLflow is admin, with the passwords in this file"
