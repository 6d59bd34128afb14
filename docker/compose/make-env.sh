#!/bin/sh
# Writes .env with a generated secret for every one that .env.example leaves empty. Never over a file that is there.
set -eu
cd "$(dirname "$0")/../.."
target=${1:-.env}
if [ -e "$target" ]; then
  echo "error: $target is there already; its secrets stay as they are (move it away to make new ones: databases keep the old passwords)" >&2
  exit 1
fi
umask 077
secret() { head -c 48 /dev/urandom | base64 | tr -d '\n=' | tr '+/' 'AZ' | cut -c1-"$1"; }
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
    FERNET_KEY=) echo "FERNET_KEY=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n')" ;;
    JWT_SECRET= | API_SECRET_KEY= | MLFLOW_SECRET_KEY=) echo "$line$(secret 64)" ;;
    *_PASSWORD= | S3_ACCESS_KEY= | S3_SECRET_KEY=) echo "$line$(secret 24)" ;;
    *) echo "$line" ;;
  esac
done <.env.example >"$target"
echo "wrote $target; Airflow's and MLflow's user is admin, the passwords are in it"
