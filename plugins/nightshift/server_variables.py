"""Which server commands ask. Light: the command `nightshift` reads it before it starts anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from training.installation import Variable

SERVER: Final = Variable(
    name="NIGHTSHIFT_SERVER", meaning="address of the api-server that commands ask, for example `https://airflow.example.com`"
)
TOKEN: Final = Variable(name="NIGHTSHIFT_TOKEN", meaning="token of Airflow that commands send to NIGHTSHIFT_SERVER")
OPTION: Final = "--server"


def names_server(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a command line or the environment names a server."""
    return bool(SERVER.text(environ)) or any(each == OPTION or each.startswith(f"{OPTION}=") for each in arguments)
