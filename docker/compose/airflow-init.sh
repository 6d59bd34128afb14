#!/bin/sh
# Brings Airflow's tables up to date, and makes its administrator and its pools. Again, it changes nothing.
set -eu
airflow db migrate
airflow users create --role Admin --username admin --firstname Night --lastname Shift --email admin@example.com --password "$AIRFLOW_ADMIN_PASSWORD"
python -c '
from nightshift.pools import POOLS
for pool in POOLS:
    print(f"{pool.name}\t{pool.slots}\t{pool.description}")
' | while IFS="$(printf '\t')" read -r name slots description; do airflow pools set "$name" "$slots" "$description"; done
