from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nightshift.services.lifecycle import changed_settings, start
from nightshift.services.locking import START_LOCK
from nightshift.services.processes import ProcessId
from nightshift.services.state import ServicesState
from nightshift.settings import Settings
from training.errors import NightshiftError


def test_services_are_old_when_a_setting_is_new_or_another_but_not_when_it_is_missing() -> None:
    state = ServicesState(ProcessId(1, 0.0), (), {"code": "a", "SHOP_URI": "b", "FLIGHTS_URI": "c"})

    assert changed_settings(state, {"code": "a", "SHOP_URI": "b"}) == []
    assert changed_settings(state, {"code": "x", "SHOP_URI": "b", "ORDERS_URI": "d"}) == ["ORDERS_URI", "code"]


def test_busy_port_is_told_before_anything_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        settings = Settings.from_environment({"NIGHTSHIFT_HOME": str(home), "NIGHTSHIFT_AIRFLOW_PORT": port})

        with pytest.raises(NightshiftError, match=f"port {port} for Airflow is taken"):
            start(settings, lambda _text: None)

    assert [path.name for path in home.iterdir()] == [START_LOCK]
