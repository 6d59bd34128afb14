"""Store and ledger of an earlier version: what is done is found, what has new code is done once more, decisions go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from nightshift.operators import stage_work
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from tests.compatibility.earlier_state import earlier_environment, earlier_state
from tests.compatibility.record_state import CODE_VERSION, NAME
from training.contracts import RunIdentity, StageRequest, StageResult
from training.data.dataset import sample_order_digest
from training.data.dataset_reader import DatasetReader
from training.models.predictor import load_predictor
from training.registry.decisions import answer_request
from training.registry.ledger import Ledger
from training.runtime.provenance import CHECKOUT
from training.store import Store

WORK: Final = ("ingest", "validate", "prepare", "train", "evaluate")
CANDIDATE: Final = "night-2026-03-15"
CHAMPION: Final = "night-2026-03-14"
UNDER_WAY: Final = "night-2026-03-16"
TRANSFORMS: Final = "transforms.json"


class Earlier:
    """The recorded installation, as the operators of this version see it."""

    def __init__(self, home: Path, *, mlflow_uri: str) -> None:
        self.home = home
        self.mlflow_uri = mlflow_uri
        self.settings = Settings.from_environment()
        self.store = Store(self.settings.store_uri)
        self.ledger = Ledger(self.settings.database_url)

    def settled(self, run_id: str) -> ResolvedRun:
        """Return what the recorded run's `resolve` settled."""
        head = self.store.run_ref(NAME, run_id, "settled").read()
        assert head is not None
        return ResolvedRun(head.value)

    def recorded(self, run_id: str) -> dict[str, StageResult]:
        """Return the recorded results of a run by stage."""
        folders = (self.home / "store" / "stages" / NAME).glob("*/*")
        found = [self.store.address(NAME, folder.parent.name, folder.name).result() for folder in sorted(folders)]
        results = [result for result in found if result is not None]
        return {result.stage: result for result in results if result.run.run_id == run_id}

    def work(self, stage: str, frozen: ResolvedRun, results: Mapping[str, StageResult]) -> Work:
        inputs = {name: results[maker] for name, maker in needs_of(stage, frozen.spec).items()}
        return work_of(stage, frozen, inputs, nonce="", settings=self.settings)

    def listing(self, run_id: str) -> dict[str, Any]:
        """Return what the recorded ingest found at the sources: a version of a file has its inode, which another copy has not."""
        made = self.recorded(run_id)["ingest"]
        request = self.store.address(NAME, "ingest", made.fingerprint).request(made.attempt_id)
        return dict(request.parameters["listing"])

    def found(self, stage: str, frozen: ResolvedRun, results: Mapping[str, StageResult]) -> StageResult | None:
        """Return the result that a run of this version finds for a stage."""
        return self.store.address(NAME, stage, self.work(stage, frozen, results).fingerprint).result()

    def make(self, stage: str, frozen: ResolvedRun, results: Mapping[str, StageResult]) -> StageResult:
        """Do a stage with the code of this version."""
        work = self.work(stage, frozen, results)
        address = self.store.address(NAME, stage, work.fingerprint)
        request = StageRequest(
            pipeline=NAME,
            stage=stage,
            fingerprint=work.fingerprint,
            attempt_id="a1",
            store_uri=self.store.root_uri,
            spec_uri=frozen.spec_uri,
            as_of=frozen.as_of.isoformat(),
            inputs=work.inputs,
            parameters=work.parameters,
            run=RunIdentity(dag_id=NAME, run_id="again", task_id=stage),
            code_version=work.code_version,
            code_files=work.code_files,
        )
        # No server: the database that a server would read. Operators know servers alone.
        environment = {**os.environ, "MLFLOW_TRACKING_URI": self.mlflow_uri}
        command = [sys.executable, "-m", f"training.stages.{stage}", address.write_request(request)]
        done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        made = address.result()
        assert made is not None
        return made


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Earlier]:
    """The recorded installation, with the code version that it was recorded with."""
    for name in [name for name in os.environ if name.startswith(("NIGHTSHIFT_", "MLFLOW_")) or name.endswith("_URI")]:
        monkeypatch.delenv(name)
    for name, value in earlier_environment(code_version=CODE_VERSION).items():
        monkeypatch.setenv(name, value)
    with earlier_state() as home:
        # This process keeps its connections by URL: each test has files of its own.
        ledger, mlflow = (shutil.copy(home / place, tmp_path) for place in ("nightshift.db", "mlflow/mlflow.db"))
        monkeypatch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{ledger}")
        yield Earlier(home, mlflow_uri=f"sqlite:///{mlflow}")


@pytest.mark.parametrize("run_id", [CHAMPION, CANDIDATE])
def test_all_stages_of_a_recorded_night_are_reused_with_the_same_code_version(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    frozen, recorded = earlier.settled(run_id), earlier.recorded(run_id)
    monkeypatch.setattr(stage_work, "listing_for", lambda *_: earlier.listing(run_id))
    assert recorded.keys() == {*WORK, "promote"}
    for stage in WORK:
        found = earlier.found(stage, frozen, recorded)
        assert found is not None, stage
        assert (found.digest, found.artifact_uri) == (recorded[stage].digest, recorded[stage].artifact_uri)


def test_a_night_under_way_is_continued_behind_its_last_finished_stage(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, recorded = earlier.settled(UNDER_WAY), earlier.recorded(UNDER_WAY)
    monkeypatch.setattr(stage_work, "listing_for", lambda *_: earlier.listing(UNDER_WAY))
    assert recorded.keys() == {"ingest", "validate"}
    assert all(earlier.found(stage, frozen, recorded) is not None for stage in recorded)
    assert earlier.found("prepare", frozen, recorded) is None


def test_no_stage_of_a_recorded_night_is_reused_with_new_code(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, recorded = earlier.settled(CHAMPION), earlier.recorded(CHAMPION)
    monkeypatch.delenv("NIGHTSHIFT_CODE_VERSION")
    monkeypatch.setattr(stage_work, "listing_for", lambda *_: earlier.listing(CHAMPION))
    assert [stage for stage in WORK if earlier.found(stage, frozen, recorded) is not None] == []


@pytest.mark.slow
def test_stages_that_are_done_once_more_make_the_recorded_data(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, recorded = earlier.settled(CHAMPION), earlier.recorded(CHAMPION)
    monkeypatch.delenv("NIGHTSHIFT_CODE_VERSION")
    results: dict[str, StageResult] = {}
    for stage in ("ingest", "validate", "prepare", "train"):
        results[stage] = earlier.make(stage, frozen, results)

    # The source file is another copy, which a snapshot names by its version; its tables and all that follows are the same.
    before, after = (earlier.store.manifests.get(result["ingest"].artifact_uri, kind="snapshot") for result in (recorded, results))
    assert {name: entry.digest for name, entry in after.files.items()} == {name: entry.digest for name, entry in before.files.items()}
    before, after = (earlier.store.manifests.get(result["prepare"].artifact_uri, kind="dataset") for result in (recorded, results))
    assert ("format" in before.meta, after.meta["format"]) == (False, 2)
    # The transforms have gained the types that expressions see, in format 2, and sums are exact: means and deviations differ in their
    # last digits. The cells, and all else, are byte for byte what they were.
    old, new = (
        json.loads(earlier.store.objects.get_bytes(found.files[TRANSFORMS].digest), parse_float=lambda text: f"{float(text):.12e}")
        for found in (before, after)
    )
    assert (new.pop("derive_types"), new.pop("format_version"), old.pop("format_version"))[1:] == (2, 1)
    assert new == old
    digests = [sorted(entry.digest for name, entry in found.files.items() if name != TRANSFORMS) for found in (before, after)]
    assert digests[0] == digests[1]
    files = {**before.files, TRANSFORMS: after.files[TRANSFORMS]}
    as_before = replace(before, files=files, meta={**before.meta, "snapshot": after.meta["snapshot"]})
    assert sample_order_digest(after) == as_before.digest
    assert results["train"].scalars.keys() == recorded["train"].scalars.keys()


@pytest.mark.slow
def test_recorded_dataset_and_model_are_read(earlier: Earlier, tmp_path: Path) -> None:
    recorded = earlier.recorded(CHAMPION)
    dataset = earlier.store.manifests.get(recorded["prepare"].artifact_uri, kind="dataset")
    assert dataset.meta["rows"].keys() == {"train", "validation", "test"}

    model = earlier.store.manifests.get(recorded["train"].artifact_uri, kind="model")
    for name, entry in model.files.items():
        (tmp_path / name).write_bytes(earlier.store.objects.get_bytes(entry.digest))
    import pandas as pd

    reader = DatasetReader(earlier.store, dataset, tmp_path / "dataset")
    frame = reader.columns(reader.schema.names)
    pd.testing.assert_frame_equal(frame, pd.read_parquet(tmp_path / "dataset" / "frame.parquet"))
    scores = load_predictor(tmp_path).predict(frame)
    assert len(scores) == reader.num_rows == sum(dataset.meta["rows"].values())
    assert 0 < scores.min() < scores.max() < 1
    for split, num_rows in dataset.meta["rows"].items():
        rows = reader.rows(split)
        pd.testing.assert_frame_equal(rows, frame.iloc[reader.numbers(split)].reset_index(drop=True))
        assert len(rows) == num_rows


@pytest.mark.slow
def test_a_recorded_dataset_of_format_1_is_trained_to_the_recorded_loss(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_CODE_VERSION")
    frozen, recorded = earlier.settled(CHAMPION), earlier.recorded(CHAMPION)

    trained = earlier.make("train", frozen, recorded)

    # Equal weights need the same processor; an equal loss needs the same order of samples.
    before = recorded["train"].scalars
    assert trained.scalars["validation_loss"] == pytest.approx(before["validation_loss"], rel=1e-5)
    assert (trained.scalars["best_epoch"], trained.scalars["steps"]) == (before["best_epoch"], before["steps"])


@pytest.mark.slow
def test_recorded_snapshot_is_validated_against_the_one_before(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_CODE_VERSION")
    frozen, recorded = earlier.settled(UNDER_WAY), earlier.recorded(UNDER_WAY)
    validated = earlier.make("validate", frozen, recorded)
    assert validated.scalars == recorded["validate"].scalars
    prepared = earlier.make("prepare", frozen, {**recorded, "validate": validated})
    assert prepared.scalars.keys() == earlier.recorded(CHAMPION)["prepare"].scalars.keys()


def test_history_champion_and_open_request_are_read_from_the_recorded_ledger(earlier: Earlier) -> None:
    accepted, asked = earlier.ledger.history(NAME)
    assert (accepted.outcome, accepted.action, accepted.version) == ("accepted", "promoted", "1")
    assert (asked.outcome, asked.action, asked.version) == ("needs_approval", "recorded", "2")
    champion = earlier.ledger.standing(NAME).champion
    assert champion is not None
    assert (champion.version, champion.semantic_version) == ("1", "1.0.0")
    assert [entry.key for entry in earlier.ledger.open_requests(NAME)] == [asked.key]


@pytest.mark.parametrize(("outcome", "champion"), [("approved", "2"), ("declined", "1")])
def test_recorded_request_is_answered(earlier: Earlier, outcome: str, champion: str) -> None:
    (request,) = earlier.ledger.open_requests(NAME)
    answer_request(earlier.ledger, request, outcome, by="ann", words=f"{outcome} by ann")

    ending = earlier.ledger.ending_of(NAME, request.key)
    assert ending is not None
    assert (ending.outcome, ending.decided_by) == (outcome, "ann")
    assert earlier.ledger.open_requests(NAME) == []
    holder = earlier.ledger.standing(NAME).champion
    assert holder is not None
    assert holder.version == champion


@pytest.mark.slow
def test_command_shows_the_recorded_decisions(earlier: Earlier) -> None:
    command = [sys.executable, "-m", "training.registry", "show", NAME, "--json"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    decisions = json.loads(done.stdout)[NAME]["decisions"]
    assert sorted((entry["version"], entry["outcome"]) for entry in decisions) == [("1", "accepted"), ("2", "needs_approval")]
    assert all(entry["reasons"] for entry in decisions)
