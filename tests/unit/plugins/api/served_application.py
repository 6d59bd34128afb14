"""A process of the api-server with the application alone: `python -m tests.unit.plugins.api.served_application PORT`."""

from __future__ import annotations

import sys

import uvicorn
from airflow.api_fastapi.app import create_auth_manager
from fastapi import FastAPI

from nightshift.api.application import app

if __name__ == "__main__":
    create_auth_manager()
    mounted = FastAPI()
    mounted.mount("/nightshift", app)
    uvicorn.run(mounted, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
