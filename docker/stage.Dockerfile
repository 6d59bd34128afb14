# The image of stages, without Airflow. torch is the build in pip's index for this platform, usually with CUDA. An index with CPU builds
# makes the image small:
#   docker build -f docker/stage.Dockerfile -t nightshift-stage:cuda .
#   docker build -f docker/stage.Dockerfile -t nightshift-stage --build-arg TORCH_INDEX=… .
# The base is any Debian bookworm. If it has no Python 3.11, Debian's is installed.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
# Additional package index with CPU builds of torch: pip's default index usually has builds with CUDA, which take gigabytes.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DEBIAN_FRONTEND=noninteractive
RUN python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
    || (apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv /opt/venv
COPY requirements.txt constraints.txt docker/requirements/stage.txt /build/
# Compiled modules are kept: a pod that cannot write them would compile torch and other libraries at every start, 4 s of CPU per process.
# torch first: installed together with the other packages, a build from the other index would be chosen. xgboost-cpu: without CUDA libraries, which torch has.
RUN sed 's/\[.*\]//' /build/requirements.txt > /build/pins.txt \
    && /opt/venv/bin/pip install --quiet ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} --constraint /build/constraints.txt torch \
    && /opt/venv/bin/pip install --quiet --constraint /build/pins.txt --constraint /build/constraints.txt --requirement /build/stage.txt \
    && /opt/venv/bin/pip uninstall --quiet --yes pip setuptools

FROM ${BASE}
# libgomp: OpenMP runtime of xgboost, LightGBM and torch. tini is process 1, and torchrun is not: a rank whose
# parent has PID 1 takes it for dead and ends, orphans would never be reaped, and SIGALRM would not end a hung process 1.
# /opt/nightshift is owned by root. With some builders, WORKDIR would give it to the user, who could then place modules before ours.
RUN apt-get update && apt-get install --yes --no-install-recommends tini libgomp1 ca-certificates \
    && (command -v python3 >/dev/null || apt-get install --yes --no-install-recommends python3) \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 nightshift && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp nightshift \
    && mkdir /opt/nightshift
COPY --from=packages /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/nightshift \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    NIGHTSHIFT_EXPECTATIONS=/opt/nightshift/expectations \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false \
    DO_NOT_TRACK=true \
    GIT_PYTHON_REFRESH=quiet
WORKDIR /opt/nightshift
USER 65532:65532
ENTRYPOINT ["tini", "-g", "--"]
CMD ["python", "-c", "print('python -m training.stages.<stage> REQUEST_URI')"]
# The layers that change with every commit are last: the layers above, nearly all of the image, are built, pushed and pulled once.
COPY training /opt/nightshift/training
COPY expectations /opt/nightshift/expectations
ARG GIT_COMMIT=unknown
ENV NIGHTSHIFT_GIT_COMMIT=${GIT_COMMIT}
LABEL org.opencontainers.image.title="Nightshift stage" org.opencontainers.image.revision=${GIT_COMMIT}
