"""Studies over a real small training: what is tried, what is kept, what a death in the middle costs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.training.tuning.study_bench import StudyBench, study_name
from training.contracts import ExitCode
from training.stages.context import StopFlag
from training.tuning.records import best_of
from training.tuning.storage import open_storage
from training.tuning.study import Search


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyBench]:
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_HOME", str(folder))
        patch.delenv("NIGHTSHIFT_DATABASE", raising=False)
        # Nobody listens there.
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.CLOSE_SECONDS", 0.2)
        patch.setattr("training.engine.tracking.FLUSH_SECONDS", 60.0)
        yield StudyBench(folder)


def trials_of(name: str, spec: Any) -> list[Any]:
    search = Search(spec.tune, spec.train, name=study_name(name), slot=0, storage=open_storage(study_name(name), shared=False))
    return search.study.get_trials()


def test_a_study_finishes_as_many_trials_as_were_asked_for_and_the_best_goes_to_train(bench: StudyBench) -> None:
    spec = bench.spec(trials=5)
    assert bench.search(spec, "plain") == [0, 1, 2, 3, 4]
    records = bench.study("plain").records()
    assert [record.slot for record in records] == [0, 1, 2, 3, 4]
    assert all(1e-3 <= record.settings["learning_rate"] <= 1e-1 for record in records)
    best = best_of(records)
    assert best is not None
    result = bench.tune(spec, "plain")
    assert result.scalars["best_slot"] == best.slot
    tuning = bench.store.manifests.get(result.artifact_uri, kind="tuning")
    assert tuning.meta["settings"] == dict(best.settings)
    assert sorted(tuning.files) == ["report.html", "trials.json"]

    train = importlib.import_module("training.stages.train").work
    from training.stages.runner import run

    uri = bench.bench.ask("train", "tuned", "a1", {"dataset": bench.bench.dataset_uri, "tuning": result.artifact_uri}, {"world_size": 1})
    assert run(train, uri, stop=StopFlag()) is ExitCode.DONE
    made = bench.bench.address("train", "tuned").result()
    assert made is not None
    assert made.scalars["validation_loss"] == pytest.approx(best.value, abs=1e-6)
    model = bench.store.manifests.get(made.artifact_uri, kind="model")
    assert model.meta["settings"]["learning_rate"] == best.settings["learning_rate"]
