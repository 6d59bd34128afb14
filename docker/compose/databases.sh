#!/bin/sh
# Creates three databases, each with its own role without access to the others. PostgreSQL's image runs this once, on an empty volume. Idempotent.
set -eu
for name in airflow mlflow nightshift; do
  password=$(printenv "$(echo "$name" | tr '[:lower:]' '[:upper:]')_DB_PASSWORD")
  psql --set ON_ERROR_STOP=1 --quiet --username "$POSTGRES_USER" --dbname postgres --set name="$name" --set password="$password" <<'SQL'
SELECT format('CREATE ROLE %I LOGIN PASSWORD %L', :'name', :'password')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'name') \gexec
SELECT format('CREATE DATABASE %I OWNER %I', :'name', :'name')
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'name') \gexec
SELECT format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', :'name') \gexec
SQL
done
# MLflow stores its accounts in a separate database.
psql --set ON_ERROR_STOP=1 --quiet --username "$POSTGRES_USER" --dbname postgres <<'SQL'
SELECT 'CREATE DATABASE mlflow_auth OWNER mlflow' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'mlflow_auth') \gexec
REVOKE CONNECT ON DATABASE mlflow_auth FROM PUBLIC;
SQL
