"""One real installation for all integration tests of a worker, and the order of the files."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Connection, Engine, event

from tests.integration.installation import ROOT, Installation
from tests.side_by_side import in_order, scope_of, shared_place

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As behind `nohup … &`: the commands that tests interrupt would inherit it, and wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases each time, however busy the machine is; `pytest --hypothesis-profile random` looks at others.
settings.register_profile("random", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True, database=None)
settings.load_profile("same")

STARTED: pytest.StashKey[Installation] = pytest.StashKey()
STOPPED: pytest.StashKey[bool] = pytest.StashKey()
ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Those that opened a connection since the last file of tests ended."""


@event.listens_for(Engine, "engine_connect")
def _note_engine(connection: Connection) -> None:
    ENGINES.add(connection.engine)


def close_databases() -> None:
    """Close the connections that wait in pools: each test has a database of its own, and an engine is kept for each URL."""
    while ENGINES:
        ENGINES.pop().dispose()


@pytest.fixture(scope="session")
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running installation with the small shop; what it started is gone afterwards, and must be."""
    made = Installation.start(tmp_path_factory.mktemp("installation"))
    request.session.stash[STARTED] = made
    try:
        yield made
    finally:
        made.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the installation's services again if a test of another file wants them after all."""
    if time.time() > float(os.environ.get("TESTS_START_UNTIL_EPOCH_S", "inf")):
        pytest.skip("not run: no time left (TESTS_START_UNTIL_EPOCH_S)")
    # Unit tests have a fixture of the same name, which is a folder.
    is_shared = shared_place(item.path) is not None and "installation" in getattr(item, "fixturenames", ())
    if is_shared and item.session.stash.get(STOPPED, False):
        del item.session.stash[STOPPED]
        item.session.stash[STARTED].services("start")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Stop the installation's services once the files that share it are done: idle, they still take time from all other tests."""
    yield
    if nextitem is None or nextitem.path != item.path:
        close_databases()
    stash = item.session.stash
    if STARTED in stash and STOPPED not in stash and nextitem is not None and scope_of(nextitem.path) != scope_of(item.path):
        stash[STOPPED] = True
        stash[STARTED].stop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker have all files on one installation; else as `--dist loadfile` does."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(ROOT / nodeid.split("::", 1)[0])

    # As they were collected, not by the number of tests.
    config.option.loadscopereorder = False
    return Scheduler(config, log)


@pytest.fixture(autouse=True)
def _no_experiment_of_another_test() -> Iterator[None]:
    """MLflow notes the experiment that was set last for the whole process; in the next test's database it does not exist."""
    _forget_experiment()
    yield
    # Not put back: a fixture of the module may have set it, and one of the next module would meet it before this fixture is run.
    _forget_experiment()


def _forget_experiment() -> None:
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
    fluent = sys.modules.get("mlflow.tracking.fluent")
    if fluent is not None:
        vars(fluent)["_active_experiment_id"] = None
