"""Two versions or runs side by side."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from nightshift.api.access import Access, Granted
from nightshift.api.path_parameters import VERSION_RULE
from nightshift.api.problems import responses
from nightshift.api.routing import ApiRoute
from nightshift.queries import compare
from nightshift.queries.schemas import SideBySide
from nightshift.run_refs import RUN_ID_RULE
from nightshift.settings import Settings
from training.registry.ledger.ledger import Ledger
from training.spec.scalar_types import NAME_RULE
from training.store import Store

router = APIRouter(route_class=ApiRoute, tags=["models"])
SUBJECT_RULE = rf"^{NAME_RULE}(@{VERSION_RULE}|:{RUN_ID_RULE})$"
Subject = Annotated[
    str,
    Query(
        pattern=SUBJECT_RULE,
        description="`<model>@<version>`, or a run: `<pipeline>:<run_id>`; percent-encoded.",
        examples=["search_ranking@1.2.0"],
    ),
]


@router.get("/compare", responses=responses(404, 409, 422))
def compared(granted: Granted, a: Subject, b: Subject) -> SideBySide:
    """Compare two versions or runs: settings, data, code, metrics with the paired interval, slices, cost."""
    settings = Settings.from_environment()
    store, ledger = settings.store(), settings.ledger()
    return compare.compare(store, _subject(granted, store, ledger, a), _subject(granted, store, ledger, b))


def _subject(granted: Access, store: Store, ledger: Ledger, named: str) -> compare.Subject:
    if "@" in named:
        model, _, version = named.partition("@")
        return compare.of_version(ledger, model, version, granted.may_read)
    return compare.of_run(store, *granted.run_of(named))
