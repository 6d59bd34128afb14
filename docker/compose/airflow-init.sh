#!/bin/sh
# Migrates Airflow's database, and creates its administrator and missing pools. Idempotent.
set -eu
airflow db migrate
airflow users create --role Admin --username admin --firstname Night --lastname Shift --email admin@example.com --password "$AIRFLOW_ADMIN_PASSWORD"
airflow pools export /tmp/pools.json
python /opt/compose/pools.py /tmp/pools.json /tmp/missing-pools.json
airflow pools import /tmp/missing-pools.json
