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


def test_port_of_a_killed_process_is_waited_for_until_the_kernel_frees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]

        def freed(_number: int) -> str:
            listener.close()
            return ""

        monkeypatch.setattr("devstack.ports._owner", freed)
        require_free([Port(number, "Airflow", "NIGHTSHIFT_AIRFLOW_PORT")])


def test_port_that_no_visible_process_frees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devstack.ports._owner", lambda _number: "")
    monkeypatch.setattr("devstack.ports.RELEASE_SECONDS", 0.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(NightshiftError, match="is taken by a process that this user may not see"):
            require_free([Port(listener.getsockname()[1], "Airflow", "NIGHTSHIFT_AIRFLOW_PORT")])
