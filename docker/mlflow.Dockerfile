# MLflow's server with authentication, PostgreSQL and S3.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE}
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install --yes --no-install-recommends tini ca-certificates \
    && (python3 -c 'import venv, ensurepip' 2>/dev/null || apt-get install --yes --no-install-recommends python3 python3-venv) \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 nightshift && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp nightshift
COPY requirements.txt constraints.txt docker/requirements/mlflow.txt /build/
RUN python3 -m venv /opt/venv && sed 's/\[.*\]//' /build/requirements.txt > /build/pins.txt \
    && /opt/venv/bin/pip install --quiet --constraint /build/pins.txt --constraint /build/constraints.txt --requirement /build/mlflow.txt
COPY docker/compose/mlflow-server.sh /opt/mlflow-server.sh
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 HOME=/tmp MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false
USER 65532:65532
ENTRYPOINT ["tini", "-g", "--"]
CMD ["sh", "/opt/mlflow-server.sh"]
ARG GIT_COMMIT=unknown
LABEL org.opencontainers.image.title="Nightshift MLflow" org.opencontainers.image.revision=${GIT_COMMIT}
