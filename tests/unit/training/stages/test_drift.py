"""Drift against the previous night, as the stage judges and shows it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from devstack.shop import write_day
from tests.unit.training.stages.night_bench import LAST, PIPELINES, SEARCHES, Night, replace, rewrite
from training.spec import parse_spec, resolve_uris
from training.stages import validate


def drifted(night: Night, shop: Path, validate_: str = "") -> None:
    """Validate a night; then let the next one have other positions."""
    night.validate(night.ingest())
    night.as_of += timedelta(days=1)
    write_day(shop, LAST + timedelta(days=1), searches=SEARCHES)
    for back in range(5):
        rewrite(shop, moved, LAST + timedelta(days=1 - back))
    if validate_:
        text = (PIPELINES / "search_ranking.yaml").read_text().replace("window: 30d", "window: 5d")
        assert "validate:\n" in text
        text = text.replace("validate:\n", f"validate:\n  {validate_}\n")
        night.spec = resolve_uris(parse_spec(text.encode()), {"SHOP_URI": shop.as_uri()})


def moved(table: pa.Table) -> pa.Table:
    return replace(table, "position", pc.add(table["position"], 5).cast(table.schema.field("position").type))


def drift_checks(results: dict[str, Any]) -> dict[str, str]:
    return {check["column"]: check["status"] for check in results["checks"] if check["code"] == "drift.exceeded" and check["column"]}


def test_columns_that_moved_since_the_previous_snapshot_warn_and_are_shown(night: Night, shop: Path) -> None:
    drifted(night, shop)
    outcome = night.validate(night.ingest())
    results = night.results(outcome)
    assert drift_checks(results) == {"position": "warned"}
    numbers = results["drift"][0]["tables"]["clicks"]
    assert numbers["position"]["kolmogorov_smirnov"] > 0.4
    page = night.store.reports.get(outcome.reports["validation"]).decode()
    assert "Drift of clicks against the previous snapshot" in page
    # Rows and age of each run, and each column.
    assert "Last 2 runs of clicks" in page
    assert page.count("<svg ") == 2 + sum(len(columns) for columns in results["drift"][0]["tables"].values())


def test_drift_of_a_column_that_must_not_move_fails_the_night(night: Night, shop: Path) -> None:
    drifted(night, shop, "drift: {columns: {position: {action: fail}}}")
    error = night.refused()
    assert error.code == "drift.exceeded"
    assert "clicks.position: drift against the previous snapshot: observed PSI " in error.message


def test_drift_of_a_column_that_a_person_has_to_approve_warns_and_is_named_for_the_decision(night: Night, shop: Path) -> None:
    drifted(night, shop, "drift: {columns: {position: {action: approve}}}")
    outcome = night.validate(night.ingest())
    assert drift_checks(night.results(outcome)) == {"position": "warned"}
    (line,) = night.store.manifests.get(outcome.artifact_uri, kind="validation").meta["to_approve"]
    assert line.startswith("[drift.exceeded] clicks.position: drift against the previous snapshot: observed PSI ")
    assert line.endswith("a person has to approve the candidate)")
    assert outcome.scalars["to_approve"] == 1


def test_drift_that_only_warns_is_nothing_to_approve(night: Night, shop: Path) -> None:
    drifted(night, shop)
    outcome = night.validate(night.ingest())
    assert "to_approve" not in night.store.manifests.get(outcome.artifact_uri, kind="validation").meta
    assert "to_approve" not in outcome.scalars
    assert not any(check["asks"] for check in night.results(outcome)["checks"])


def test_column_of_a_key_of_several_is_compared_where_it_is_named(night: Night, shop: Path) -> None:
    text = (PIPELINES / "search_ranking.yaml").read_text().replace("window: 30d", "window: 5d")
    named = text.replace("validate:\n", "validate:\n  drift: {columns: {item_id: {psi: 0.1}}}\n")
    for spec_text, is_compared in ((text, False), (named, True)):
        night.spec = resolve_uris(parse_spec(spec_text.encode()), {"SHOP_URI": shop.as_uri()})
        night.validate(night.ingest())
        night.as_of += timedelta(hours=1)
        results = night.results(night.validate(night.ingest()))
        compared = results["drift"][0]["tables"]["clicks"]
        assert ("item_id" in compared) is is_compared
        assert "search_id" not in compared
        night.as_of += timedelta(hours=1)


def test_drift_that_is_off_is_shown_and_not_judged(night: Night, shop: Path) -> None:
    drifted(night, shop, "drift: {action: off}")
    results = night.results(night.validate(night.ingest()))
    assert [check for check in results["checks"] if check["code"] == "drift.exceeded"] == []
    assert results["drift"][0]["tables"]["clicks"]["position"]["psi"] > 1


@pytest.mark.parametrize("damage", ["lost", "newer"])
def test_a_profile_that_cannot_be_read_warns_and_does_not_stop_the_night(night: Night, damage: str) -> None:
    night.validate(night.ingest())
    night.as_of += timedelta(hours=1)
    snapshot = night.ingest()
    uri = night.store.put_json({"format": 2})
    if damage == "lost":
        uri = uri[:-4] + "0000"
    parameters = {"previous_snapshot": None, "earlier": [{"names": ["previous", "champion"], "profile": uri}]}
    outcome = night.run(validate, inputs={"snapshot": snapshot.artifact_uri}, parameters=parameters)
    (found,) = (check for check in night.results(outcome)["checks"] if check["code"] == "drift.not_compared")
    assert (found["status"], found["check"]) == ("warned", "drift against the previous snapshot and the champion's training data")
    assert ("object.missing" if damage == "lost" else "format 2") in found["detail"]


def test_a_previous_snapshot_that_is_lost_warns_and_does_not_stop_the_night(night: Night) -> None:
    snapshot = night.ingest()
    gone = snapshot.artifact_uri.replace(snapshot.digest, "1" * 64)
    outcome = night.run(validate, inputs={"snapshot": snapshot.artifact_uri}, parameters={"previous_snapshot": gone})
    (found,) = (check for check in night.results(outcome)["checks"] if check["code"] == "drift.not_compared")
    assert (found["status"], found["check"]) == ("warned", "volume and columns against the previous snapshot")
    assert "object.missing" in found["detail"]
