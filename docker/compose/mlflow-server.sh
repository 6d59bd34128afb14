#!/bin/sh
# Starts MLflow with basic authentication on port 5000. Its configuration is written at every start, from the environment, to a file of its user.
# No variable here is called MLFLOW_HOST or MLFLOW_PORT: Kubernetes sets MLFLOW_PORT=tcp://… in pods beside a Service named mlflow.
set -efu
MLFLOW_AUTH_CONFIG_PATH=$(mktemp)
export MLFLOW_AUTH_CONFIG_PATH
cat > "$MLFLOW_AUTH_CONFIG_PATH" <<CONFIG
[mlflow]
default_permission = READ
database_uri = ${MLFLOW_AUTH_DATABASE}
admin_username = ${MLFLOW_ADMIN_USERNAME}
admin_password = ${MLFLOW_ADMIN_PASSWORD}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
CONFIG
# MLflow refuses requests for other hosts (DNS rebinding), and of pages of other origins. Compose: mlflow. Kubernetes: mlflow.<namespace>.svc.
hosts='mlflow:*,mlflow.*.svc:*,mlflow.*.svc.cluster.local:*,localhost:*,127.0.0.1:*'
origins=
# Names of proxies with TLS, separated by commas: mlflow.example.com
for name in $(echo "${MLFLOW_ALLOWED_HOSTS:-}" | tr , ' '); do
  hosts=$hosts,$name
  origins=${origins:+$origins,}https://$name
done
# Health check: a worker that does not answer is ended, after 5 s by default. On a busy host, MLflow's imports take longer.
# shellcheck disable=SC2086
exec mlflow server --app-name basic-auth --host 0.0.0.0 --port 5000 --workers 2 --uvicorn-opts "--timeout-worker-healthcheck 180" \
  --allowed-hosts "$hosts" ${origins:+--cors-allowed-origins $origins} \
  --backend-store-uri "${MLFLOW_DATABASE}" --artifacts-destination "${MLFLOW_ARTIFACTS}"
