#!/bin/sh
# Writes .env from .env.example, and generates the project's name and the secrets that are empty there; and the certificates in
# docker/compose/s3-keys. Never overwrites an existing .env.
set -eu
cd "$(dirname "$0")/../.."
target=${1:-.env}
if [ -e "$target" ]; then
  echo "error: $target exists; it is not changed (it names the volumes of this installation and has their passwords; without it a new, empty installation is made)" >&2
  exit 1
fi
keys=$(dirname "$target")/docker/compose/s3-keys
mkdir -p "$keys"
certificate() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=$1" -keyout "$2" -out "$3" 2>/dev/null; }
# The authority's key is thrown away: nobody can sign a certificate that S3's gRPC accepts. The key of the server proves nothing to anybody.
certificate authority /dev/null "$keys/ca.crt"
certificate s3 "$keys/s3.key" "$keys/s3.crt"
chmod 644 "$keys/ca.crt" "$keys/s3.crt" "$keys/s3.key"
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
