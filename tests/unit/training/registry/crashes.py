"""Ways to die on the path of a decision, and the decisions that die on it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import mlflow
from mlflow.tracking._model_registry.client import ModelRegistryClient

from tests.unit.training.registry.registered import registered
from tests.unit.training.registry.scenes import decide_on
from training.database import connect
from training.registry.ledger.decisions import answer_request, roll_back, settle_canary, settlement
from training.registry.ledger.ledger import Ledger
from training.registry.mlflow.mirror import mirror
from training.store import Store

CALLS = (
    "get_registered_model",
    "search_model_versions",
    "set_model_version_tag",
    "set_registered_model_alias",
    "delete_registered_model_alias",
)


class DiedError(BaseException):
    """The process is gone: nothing that catches errors sees it."""


def die_by_exception() -> None:
    raise DiedError


def die() -> None:
    os._exit(9)


@contextmanager
def dying(url: str, at: str | None, end: Callable[[], None] = die_by_exception) -> Iterator[list[str]]:
    """Yield the names of the points that are passed, and end the process at the one named `at`.

    Points are before and after each commit of the ledger's database, and before and after each call to MLflow: `after commit 2`.
    """
    passed: list[str] = []

    def point(when: str, what: str) -> None:
        name = f"{when} {what} {sum(found.startswith(f'{when} {what} ') for found in passed) + 1}"
        passed.append(name)
        if name == at:
            end()

    def around(what: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        point("before", what)
        result = call(*arguments, **named)
        point("after", what)
        return result

    dialect: Any = connect(url).dialect
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(dialect, "do_commit", partial(around, "commit", dialect.do_commit)))
        for name in CALLS:
            real = getattr(ModelRegistryClient, name)
            patches.enter_context(mock.patch.object(ModelRegistryClient, name, _method(partial(around, name, real))))
        yield passed


def _method(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain function: a partial does not bind to an object."""
    return lambda client, *arguments, **named: call(client, *arguments, **named)


def new_model(store: Store) -> str:
    """Register a model with three candidates; return its name."""
    return registered(store, f"m{uuid.uuid4().hex[:8]}", range(1, 4))


def prepare(ledger: Ledger, store: Store, model: str, story: str) -> None:
    """Bring a model to where the story begins: version 1 is champion, and what else the story needs."""
    decide_on(ledger, 1, model=model)
    if story.startswith("canary "):
        decide_on(ledger, 2, model=model, canary=True)
    if story.startswith("approval"):
        decide_on(ledger, 2, "needs_approval", model=model)
    if story == "rollback":
        decide_on(ledger, 2, model=model)
        decide_on(ledger, 3, model=model, canary=True)
    mirror(ledger, store, model)


def tell(ledger: Ledger, store: Store, model: str, story: str) -> None:
    """Decide, and let MLflow follow, as a task does it: also for the second time."""
    if story in ("promotion", "new canary"):
        decide_on(ledger, 2, model=model, canary=story == "new canary", revision=1)
    elif story == "rejection":
        decide_on(ledger, 2, "rejected", model=model, revision=1)
    elif story.startswith("canary ") and settlement(ledger, model, weights_digest="w2", revision=2) is None:
        outcome = "accepted" if story == "canary promoted" else "rolled_back"
        settle_canary(ledger, ledger.standing(model), outcome, reasons=[], evidence={}, decided_by="canary")
    elif story.startswith("approval "):
        (request,) = [entry for entry in ledger.history(model) if entry.outcome == "needs_approval"]
        answer_request(ledger, request, story.removeprefix("approval "), by="ada", words="so")
    elif story == "rollback":
        roll_back(ledger, model, by="ada", reason="late", order="rollback/1")
    mirror(ledger, store, model)


STORIES = {
    "promotion": ("2", None),
    "rejection": ("1", None),
    "new canary": ("1", "2"),
    "canary promoted": ("2", None),
    "canary gone": ("1", None),
    "approval approved": ("2", None),
    "approval declined": ("1", None),
    "rollback": ("1", None),
}
"""Story to champion and canary at its end."""


if __name__ == "__main__":
    _, database, registry_uri, folder, name, tale, where = sys.argv
    mlflow.set_tracking_uri(registry_uri)
    mlflow.set_registry_uri(registry_uri)
    with dying(database, where, die):
        tell(Ledger(database), Store(folder), name, tale)
