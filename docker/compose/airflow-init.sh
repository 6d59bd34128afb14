#!/bin/sh
# Migrates Airflow's database, and creates its administrator. Idempotent.
set -eu
airflow db migrate
airflow users create --role Admin --username admin --firstname Night --lastname Shift --email admin@example.com --password "$AIRFLOW_ADMIN_PASSWORD"
