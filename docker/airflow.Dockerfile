# Airflow's components with Nightshift's DAGs and plugins, without torch.
#   docker build -f docker/airflow.Dockerfile --target airflow -t nightshift-airflow .
# The target `worker` also has the packages of stages, for a scheduler whose tasks run stages as child processes (docker-compose.yaml).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DEBIAN_FRONTEND=noninteractive
RUN python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
    || (apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv /opt/venv
COPY requirements.txt constraints.txt docker/requirements/airflow.txt /build/
RUN sed 's/\[.*\]//' /build/requirements.txt > /build/pins.txt \
    && /opt/venv/bin/pip install --quiet --constraint /build/pins.txt --constraint /build/constraints.txt --requirement /build/airflow.txt

FROM packages AS worker-packages
ARG TORCH_INDEX=
COPY docker/requirements/stage.txt /build/
RUN /opt/venv/bin/pip install --quiet ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} --constraint /build/constraints.txt torch \
    && /opt/venv/bin/pip install --quiet --constraint /build/pins.txt --constraint /build/constraints.txt --requirement /build/stage.txt

FROM scratch AS code
COPY dags /dags
COPY plugins /plugins
COPY training /training
COPY expectations /expectations

FROM ${BASE} AS base
# /entrypoint: the probes of Airflow's official chart start `/entrypoint airflow jobs check …`, as in Airflow's own image.
RUN apt-get update && apt-get install --yes --no-install-recommends tini libgomp1 ca-certificates \
    && (command -v python3 >/dev/null || apt-get install --yes --no-install-recommends python3) \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 nightshift && useradd --uid 65532 --gid 65532 --create-home --home-dir /home/nightshift nightshift \
    && mkdir -p /opt/nightshift /opt/airflow/logs && chown -R 65532:65532 /opt/airflow \
    && ln -s /usr/bin/env /entrypoint
COPY devstack/bin/nightshift /usr/local/bin/nightshift
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/nightshift:/opt/nightshift/plugins \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/nightshift/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/nightshift/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False \
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=/opt/airflow/logs \
    MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false \
    GIT_PYTHON_REFRESH=quiet
WORKDIR /opt/nightshift
USER 65532:65532
ENTRYPOINT ["tini", "-g", "--"]
CMD ["airflow", "version"]

# The layers that change with every commit are last: the layers above, nearly all of the image, are built, pushed and pulled once.
FROM base AS worker
COPY --from=worker-packages /opt/venv /opt/venv
COPY --from=code / /opt/nightshift/
ARG GIT_COMMIT=unknown
ENV NIGHTSHIFT_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.title="Nightshift worker" org.opencontainers.image.revision=${GIT_COMMIT}

FROM base AS airflow
COPY --from=packages /opt/venv /opt/venv
COPY --from=code / /opt/nightshift/
ARG GIT_COMMIT=unknown
ENV NIGHTSHIFT_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.title="Nightshift Airflow" org.opencontainers.image.revision=${GIT_COMMIT}
