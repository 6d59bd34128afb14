from __future__ import annotations

import os
import socket

import pytest

from devstack.ports import Port, require_free
from training.errors import NightshiftError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_free_ports_pass() -> None:
    require_free([Port(free_port(), "Airflow", "NIGHTSHIFT_AIRFLOW_PORT")])


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - another program's choice
def test_busy_port_names_itself_its_owner_and_the_setting(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        number = listener.getsockname()[1]

        with pytest.raises(NightshiftError) as caught:
            require_free([Port(free_port(), "MLflow", "NIGHTSHIFT_MLFLOW_PORT"), Port(number, "Airflow", "NIGHTSHIFT_AIRFLOW_PORT")])

    assert caught.value.code == "services.port_busy"
    assert caught.value.message.startswith(f"port {number} for Airflow is taken by pid {os.getpid()} (")
    assert "NIGHTSHIFT_AIRFLOW_PORT=" in caught.value.hint
    assert "NIGHTSHIFT_MLFLOW_PORT" not in caught.value.hint


def test_every_busy_port_is_named_at_once() -> None:
    with socket.socket() as first, socket.socket() as second:
        ports = []
        for listener, service in ((first, "Airflow"), (second, "MLflow")):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            ports.append(Port(listener.getsockname()[1], service, f"NIGHTSHIFT_{service.upper()}_PORT"))

        with pytest.raises(NightshiftError, match=rf"port {ports[0].number} for Airflow .*; port {ports[1].number} for MLflow"):
            require_free(ports)
