"""Two versions or runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nightshift.settings import Settings
from tests.commands import command
from tests.unit.plugins.client.test_client import Server, token
from tests.unit.plugins.seeded_installation import AS_OF, BOUNDS, DONE, Seeded
from tests.unit.training.registry.good_evaluation import BETTER, CHAMPION
from training.contracts import JsonObject, canonical_json, instant_of
from training.registry.ledger.decisions import record_candidate
from training.registry.ledger.ledger import AliasHolder, Ledger
from training.store import Manifest, Store
from training.store.manifests import FileEntry

main = command("compare")

MODEL = "search_ranking"
WEIGHTS = {"4": "4" * 64, "5": "5" * 64, "6": "6" * 64}


def store() -> Store:
    return Store(Settings.from_environment().store_uri)


def manifest(kind: str, **files: JsonObject) -> str:
    kept = store()
    entries = {}
    for name, value in files.items():
        data = canonical_json(value)
        entries[f"{name}.json"] = FileEntry(digest=kept.objects.put_bytes(data), size_bytes=len(data))
    return kept.manifests.put(Manifest(kind=kind, files=entries, meta={}))


def decide(version: str, *, ndcg: float, rate: float, champion: str | None = None, libraries: str = "2.13.0") -> None:
    """Record a version as an evaluation and a decision leave it; `champion`: whom it was measured against."""
    record: dict[str, Any] = {
        "format_version": 1,
        "candidate": {"weights_digest": WEIGHTS[version]},
        "metrics": {"ndcg@10": ndcg, "mrr": "nan"},
        "num_rows": 1000,
    }
    if champion is not None:
        record |= {
            "champion": {**CHAMPION, "version": champion, "weights_digest": WEIGHTS[champion]},
            "champion_metrics": {"ndcg@10": 0.5},
            "comparison": {**BETTER, "gain": 0.1, "low": 0.05, "high": 0.2, "num_units": 300},
            "slices": [{"columns": {"category": "7"}, "support": 80, "is_small": False, "candidate": 0.7, "champion": 0.4}],
        }
    facts = {"family": "ranker", "code_version": version * 40, "environment": {"torch": libraries}}
    spec = {"name": MODEL, "owners": [version], "train": {"learning_rate": rate, "epochs": 3}}
    holder = AliasHolder(
        version=version,
        weights_digest=WEIGHTS[version],
        model_uri="",
        as_of=instant_of(AS_OF),
        bounds=BOUNDS,
        semantic_version=f"1.{version}.0",
    )
    ledger = Ledger()
    evidence: dict[str, Any] = {
        "pipeline": MODEL,
        "run_id": DONE,
        "as_of": AS_OF,
        "weights_digest": WEIGHTS[version],
        "evaluation_digest": version * 64,
        "evaluation_uri": manifest("evaluation", metrics=record),
        "model_uri": manifest("model", model=facts),
        "spec_uri": store().put_json(spec),
        "snapshot_digest": "a" * 64,
        "revision": ledger.standing(MODEL).revision,
        "has_canary": False,
    }
    record_candidate(ledger, holder, model=MODEL, outcome="rejected", reasons=[], evidence=evidence, decided_by="x")


def side_by_side(seeded: Seeded, a: str, b: str, user: str = "ada") -> Any:
    return seeded.get(f"/compare?a={quote(a, safe='')}&b={quote(b, safe='')}", user=user)


@pytest.fixture
def versions(seeded: Seeded) -> Seeded:
    decide("4", ndcg=0.55, rate=0.01)
    decide("5", ndcg=0.6, rate=0.02, champion="4", libraries="2.14.0")
    decide("6", ndcg=0.3, rate=0.02)
    return seeded


def test_a_version_and_the_champion_it_met_are_compared_on_the_same_rows(versions: Seeded) -> None:
    found = side_by_side(versions, f"{MODEL}@4", f"{MODEL}@1.5.0").json()
    assert found["is_same_rows"]
    # Not the 0.55 of the champion's own evaluation: its rows were others.
    assert found["metrics"] == [{"name": "mrr", "a": None, "b": None}, {"name": "ndcg@10", "a": 0.5, "b": 0.6}]
    assert found["gain"] == {"gain": 0.1, "low": 0.05, "high": 0.2, "units": 300, "decided_by": "rows", "rows_of": f"{MODEL}@5"}
    assert found["slices"] == [{"columns": {"category": "7"}, "rows": 80, "a": 0.4, "b": 0.7}]
    assert found["settings"] == [{"key": "train.learning_rate", "a": 0.01, "b": 0.02}]
    assert found["code"] == [{"key": "environment.torch", "a": "2.13.0", "b": "2.14.0"}]
    assert [found[side]["weights_digest"] for side in "ab"] == [WEIGHTS["4"], WEIGHTS["5"]]
    assert (found["a"]["code_version"], found["b"]["version"], found["b"]["rows"]) == ("4" * 40, "5", 1000)
    assert [each["name"] for each in found["stages"]] == ["train"]
    assert found["stages"][0]["a_seconds"] == 12.5
    assert found["missing"] == []


def test_the_other_way_round_the_gain_is_turned(versions: Seeded) -> None:
    found = side_by_side(versions, f"{MODEL}@5", f"{MODEL}@4").json()
    assert (found["gain"]["gain"], found["gain"]["low"], found["gain"]["high"]) == (-0.1, -0.2, -0.05)
    assert found["metrics"][1] == {"name": "ndcg@10", "a": 0.6, "b": 0.5}
    assert (found["slices"][0]["a"], found["slices"][0]["b"]) == (0.7, 0.4)


def test_versions_that_never_met_have_their_own_metrics_and_no_gain(versions: Seeded) -> None:
    found = side_by_side(versions, f"{MODEL}@5", f"{MODEL}@6").json()
    assert (found["is_same_rows"], found["gain"], found["slices"]) == (False, None, [])
    assert found["metrics"][1] == {"name": "ndcg@10", "a": 0.6, "b": 0.3}


def test_what_retention_has_deleted_is_named_and_the_rest_is_compared(versions: Seeded) -> None:
    kept = store()
    (uri,) = (Ledger().decision(MODEL, each.key).evidence["evaluation_uri"] for each in Ledger().outline(MODEL) if each.version == "6")  # type: ignore[union-attr]
    Path(uri.removeprefix("file://")).unlink()
    found = side_by_side(versions, f"{MODEL}@5", f"{MODEL}@6").json()
    assert found["missing"] == [f"evaluation of {MODEL}@6"]
    assert kept.root_uri in uri
    assert found["metrics"][1]["b"] is None
    assert found["b"]["code_version"] == "6" * 40


def test_a_run_shows_nothing_that_only_xcom_claims(versions: Seeded) -> None:
    # The train stage's result in XCom names a model that the store has no commit of.
    found = side_by_side(versions, f"{MODEL}:{DONE}", f"{MODEL}@5").json()
    assert (found["a"]["run"], found["a"]["outcome"], found["a"]["code_version"]) == (f"{MODEL}:{DONE}", "success", None)
    assert set(found["missing"]) == {f"{what} of {MODEL}:{DONE}" for what in ("evaluation", "model", "settings")}


@pytest.mark.parametrize("subject", ["none@1", f"{MODEL}@9", f"{MODEL}:r9", f"none:{DONE}"])
def test_what_is_not_there_or_may_not_be_read_answers_404(versions: Seeded, subject: str) -> None:
    assert side_by_side(versions, f"{MODEL}@5", subject).status_code == 404


def test_command_prints_both_side_by_side(versions: Seeded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Server() as server:
        monkeypatch.setenv("NIGHTSHIFT_SERVER", server.url)
        monkeypatch.setenv("NIGHTSHIFT_TOKEN", token("ada", "viewer"))
        assert main([f"{MODEL}@4", f"{MODEL}@5"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [MODEL + "@4", MODEL + "@5"] in lines
        assert ["semantic", "version", "1.4.0", "1.5.0"] in lines
        assert ["ndcg@10", "0.5", "0.6"] in lines
        assert ["train.learning_rate", "0.01", "0.02"] in lines
        assert any(line[:4] == ["gain", "of", f"{MODEL}@5", "over"] and "[+0.05," in line for line in lines)
        assert main([f"{MODEL}@4", f"{MODEL}@9"]) == 77
        capsys.readouterr()
        assert main([f"{MODEL}:{DONE}", f"{MODEL}:{DONE}"]) == 0
        assert "semantic version" not in capsys.readouterr().out, "a run has none"
        assert main([f"{MODEL}@4", f"{MODEL}@5", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["gain"]["low"] == 0.05
