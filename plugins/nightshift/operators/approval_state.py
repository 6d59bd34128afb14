"""What a try of the task `ask` leaves to the next one, in Airflow's state store: the last refusal, and an answer not yet recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, cast

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from training.registry.ledger.ledger import Entry

logger = logging.getLogger(__name__)


class Person(TypedDict):
    """A user of Airflow."""

    id: str
    name: str


class AirflowAnswer(TypedDict):
    """Airflow's record of a person's response."""

    chosen_options: Sequence[str]
    params_input: Mapping[str, object]
    responded_at: datetime
    responded_by_user: Person


def note_refusal(context: Context, request: Entry, why: str) -> None:
    """Keep the reason of a refused answer for the next try, which has a question of its own: the form of this one cannot be changed.

    The refused answer is forgotten, since the next try asks again.
    """
    store: Any = context.get("task_state_store")
    if store is not None:
        store.set(_key("refused", request), why)
        store.delete(_key("answer", request))


def refusal(context: Context, request: Entry) -> str:
    """Return why the last answer was refused; empty: none was."""
    store: Any = context.get("task_state_store")
    return "" if store is None else str(store.get(_key("refused", request)) or "")


def note_answer(context: Context, request: Entry, answer: AirflowAnswer) -> None:
    """Keep a person's answer for the next try, should this one be killed before it is recorded: Airflow gives an answer to one try only.

    Where it cannot be kept, this try goes on to record it: to fail here would lose the answer.
    """
    store: Any = context.get("task_state_store")
    if store is not None:
        try:
            store.set(_key("answer", request), {**answer, "responded_at": answer["responded_at"].isoformat()})
        except Exception as err:
            logger.warning("the answer could not be kept for a further try: %s: %s", type(err).__name__, err)


def noted_answer(context: Context, request: Entry) -> AirflowAnswer | None:
    """Return the answer that an earlier try received and did not record; None: there is none."""
    store: Any = context.get("task_state_store")
    noted = None if store is None else store.get(_key("answer", request))
    return None if noted is None else cast("AirflowAnswer", {**noted, "responded_at": datetime.fromisoformat(noted["responded_at"])})


def _key(what: str, request: Entry) -> str:
    return f"{what}-{request.key[:16]}"
