"""Exits with 0 if Airflow's API server reports a component as healthy: python health.py scheduler"""

import json
import os
import sys
import urllib.request

url = os.environ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"].removesuffix("/execution/") + "/api/v2/monitor/health"
with urllib.request.urlopen(url, timeout=8) as answer:  # noqa: S310
    status = json.load(answer)[sys.argv[1]]["status"]
sys.stdout.write(f"{status}\n")
sys.exit(status != "healthy")
