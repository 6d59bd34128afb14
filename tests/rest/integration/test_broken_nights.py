"""A night whose data is broken stops at validate, says why, and passes once the data is repaired."""

from __future__ import annotations

from datetime import date

import pytest

from devstack.shop import break_day
from tests.integration.installation import Installation
from training.registry.ledger.ledger import AliasHolder

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PIPELINE = "search_ranking"
CHAMPION_AS_OF = "2026-02-01T02:00:00+00:00"
BROKEN_DAY = date(2026, 2, 2)
BROKEN_AS_OF = "2026-02-03T02:00:00+00:00"


@pytest.fixture(scope="module")
def champion(installation: Installation) -> AliasHolder:
    """The champion that no broken night may move."""
    first = installation.trigger(PIPELINE, {"as_of": CHAMPION_AS_OF})
    assert installation.wait(PIPELINE, first) == "success", installation.why(PIPELINE, first)
    found = installation.ledger.standing(PIPELINE).champion
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("fault", "code", "named"),
    [
        ("missing_column", "schema.missing", "rating"),
        ("volume", "volume.change", "clicks"),
        ("null_key", "data.nulls", "item_id"),
        ("duplicated_day", "data.duplicates", "search_id"),
    ],
)
def test_broken_night_stops_at_validate_and_names_check_and_column(
    installation: Installation, champion: AliasHolder, fault: str, code: str, named: str
) -> None:
    break_day(installation.shop, BROKEN_DAY, fault)
    try:
        run_id = installation.trigger(PIPELINE, {"as_of": BROKEN_AS_OF})
        assert installation.wait(PIPELINE, run_id) == "failed"
        tasks = installation.tasks(PIPELINE, run_id)
        assert (tasks["validate"]["state"], tasks["validate"]["try_number"]) == ("failed", 1)
        assert tasks["train"]["state"] == "upstream_failed"
        said = installation.log(PIPELINE, run_id, "validate")
        assert f"[{code}]" in said
        assert named in said
        assert installation.links(PIPELINE, run_id, "validate")["Report"]
        assert installation.ledger.standing(PIPELINE).champion == champion
    finally:
        break_day(installation.shop, BROKEN_DAY, "repair")


def test_repaired_night_does_the_work_and_passes(installation: Installation) -> None:
    run_id = installation.trigger(PIPELINE, {"as_of": BROKEN_AS_OF})
    assert installation.wait(PIPELINE, run_id) == "success", installation.why(PIPELINE, run_id)


def test_late_partition_is_waited_for_without_a_slot(installation: Installation) -> None:
    late = installation.shop / "clicks" / "dt=2026-02-05"
    away = installation.shop / "late"
    late.rename(away)
    try:
        run_id = installation.trigger(PIPELINE, {"as_of": "2026-02-06T02:00:00+00:00"})
        installation.wait_task(PIPELINE, run_id, "wait", "up_for_reschedule")
        assert "dt=2026-02-05" in installation.log(PIPELINE, run_id, "wait")
    finally:
        away.rename(late)
    installation.wait_task(PIPELINE, run_id, "ingest", "success")
    installation.cancel(PIPELINE, run_id)
