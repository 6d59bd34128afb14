#!/bin/sh
# Starts MLflow with basic authentication. Its configuration is written at every start, from the environment, to a tmpfs.
set -eu
cat > /tmp/auth.ini <<CONFIG
[mlflow]
default_permission = READ
database_uri = ${MLFLOW_AUTH_DATABASE}
admin_username = ${MLFLOW_ADMIN_USERNAME}
admin_password = ${MLFLOW_ADMIN_PASSWORD}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
CONFIG
chmod 600 /tmp/auth.ini
export MLFLOW_AUTH_CONFIG_PATH=/tmp/auth.ini
exec mlflow server --app-name basic-auth --host "${MLFLOW_HOST:-0.0.0.0}" --port "${MLFLOW_PORT:-5000}" --workers 2 \
  --allowed-hosts "${MLFLOW_ALLOWED_HOSTS:-mlflow:*,localhost:*,127.0.0.1:*}" \
  --backend-store-uri "${MLFLOW_DATABASE}" --artifacts-destination "${MLFLOW_ARTIFACTS}"
