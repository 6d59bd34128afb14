#!/bin/sh
# Brings Airflow's tables up to date, and makes its administrator and the pools that are missing. Again, it changes nothing.
set -eu
airflow db migrate
airflow users create --role Admin --username admin --firstname Night --lastname Shift --email admin@example.com --password "$AIRFLOW_ADMIN_PASSWORD"
airflow pools export /tmp/pools.json
python /opt/compose/pools.py /tmp/pools.json /tmp/missing-pools.json
airflow pools import /tmp/missing-pools.json
