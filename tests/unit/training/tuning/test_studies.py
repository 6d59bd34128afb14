"""Studies over a real small training: what is tried, what is kept, what a death in the middle costs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from optuna.exceptions import StorageInternalError
from optuna.pruners import ThresholdPruner
from optuna.trial import Trial

from tests.unit.training.tuning.study_bench import StudyBench, study_name
from training.contracts import ExitCode
from training.engine.loop import Loop
from training.errors import DivergedError
from training.format import figure, number
from training.runtime.context import StageContext, StopFlag
from training.runtime.runner import run
from training.spec.sections.tuning import Tune
from training.store import Manifest
from training.store.metric_journal import MetricJournal, trial_journal
from training.tuning.records import TrialRecord, best_of
from training.tuning.storage import open_storage
from training.tuning.study import SLOT, Search, importance_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyBench]:
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_HOME", str(folder))
        # Each file of the dataset is an object, as in a larger one: a test takes those of the test rows away.
        patch.setattr("training.store.manifests.PACKED_FILE_BYTES", -1)
        patch.delenv("NIGHTSHIFT_DATABASE", raising=False)
        # Nobody listens there.
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.2)
        patch.setattr("training.engine.tracking.tracker.SEND_SECONDS", 60.0)
        yield StudyBench(folder)


def trials_of(name: str, spec: Any) -> list[Any]:
    search = Search(spec.tune, spec.train, name=study_name(name), slot=0, storage=open_storage(study_name(name), shared=False))
    return search.study.get_trials()


def test_a_study_finishes_as_many_trials_as_requested_and_the_best_goes_to_train(bench: StudyBench) -> None:
    spec = bench.spec(trials=5)
    assert bench.search(spec, "plain") == [0, 1, 2, 3, 4]
    records = bench.study("plain").records()
    assert [record.slot for record in records] == [0, 1, 2, 3, 4]
    for slot in range(5):
        journal = MetricJournal(bench.store.bucket, "search_ranking", trial_journal(study_name("plain"), slot))
        assert "validation_loss" in {point.name for point in journal.after(0)}
    assert all(1e-3 <= record.settings["learning_rate"] <= 1e-1 for record in records)
    best = best_of(records)
    assert best is not None
    result = bench.tune(spec, "plain")
    assert result.scalars["best_slot"] == best.slot
    tuning = bench.store.manifests.get(result.artifact_uri, kind="tuning")
    assert tuning.meta["settings"] == dict(best.settings)
    assert sorted(tuning.files) == ["trials.json"]

    train = importlib.import_module("training.stages.train").work
    uri = bench.bench.ask("train", "tuned", "a1", {"dataset": bench.bench.dataset_uri, "tuning": result.artifact_uri}, {"world_size": 1})
    assert run(train, uri, stop=StopFlag()) is ExitCode.DONE
    made = bench.bench.work_folder("train", "tuned").result()
    assert made is not None
    assert made.scalars["validation_loss"] == pytest.approx(best.value, abs=1e-6)
    model = bench.store.manifests.get(made.artifact_uri, kind="model")
    assert model.meta["settings"]["learning_rate"] == best.settings["learning_rate"]


def stopping_in_epoch(stop: StopFlag, step: int) -> Any:
    original = StageContext.progress

    def progress(self: StageContext, done: int, total: int, unit: str, **more: Any) -> None:
        original(self, done, total, unit, **more)
        if done == step:
            stop.request()

    return progress


def test_a_stopped_trial_continues_with_its_settings_and_counts_once(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=2)
    assert bench.trial(spec, "undisturbed", 1) is ExitCode.DONE
    stop = StopFlag()
    with monkeypatch.context() as patch:
        patch.setattr(StageContext, "progress", stopping_in_epoch(stop, 7))
        assert bench.trial(spec, "stopped", 1, stop=stop) is ExitCode.PREEMPTED
    (begun,) = trials_of("stopped", spec)
    assert bench.study("stopped").records() == []
    assert bench.trial(spec, "stopped", 1, "a2") is ExitCode.DONE
    (ended,) = trials_of("stopped", spec)
    assert (ended.number, ended.params, ended.state.name) == (begun.number, begun.params, "COMPLETE")
    assert bench.study("stopped").records() == bench.study("undisturbed").records(), "the same bits as without the stop"
    result = bench.work_folder("stopped", 1).result()
    assert result is not None
    assert result.attempts == 2


def test_a_trial_that_died_before_its_report_is_reported_by_the_next(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=2)
    with monkeypatch.context() as patch:
        patch.setattr(Search, "finish", lambda *_: None)
        assert bench.trial(spec, "untold", 0) is ExitCode.DONE
    assert [trial.state.name for trial in trials_of("untold", spec)] == ["RUNNING"]
    assert bench.trial(spec, "untold", 1) is ExitCode.DONE
    assert trials_of("untold", spec)[0].state.name == "COMPLETE"


def test_a_trial_that_died_between_record_and_result_is_not_trained_again(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=1)
    with monkeypatch.context() as patch:
        patch.setattr("training.stages.trial._Trial.output", _raise)
        assert bench.trial(spec, "recorded", 0) is ExitCode.UNEXPECTED
    (record,) = bench.study("recorded").records()
    monkeypatch.setattr(Loop, "train", _raise)
    assert bench.trial(spec, "recorded", 0, "a2") is ExitCode.DONE
    assert bench.study("recorded").records() == [record]


def _raise(*_: object, **__: object) -> None:
    raise RuntimeError("not to be called")


def test_a_study_whose_storage_is_lost_continues_with_all_that_was_finished(bench: StudyBench) -> None:
    spec = bench.spec(trials=3)
    for slot in (0, 1):
        assert bench.trial(spec, "lost", slot) is ExitCode.DONE
    before = {trial.user_attrs[SLOT]: (trial.params, trial.value) for trial in trials_of("lost", spec)}
    (journal,) = bench.home.glob(f"tuning/{study_name('lost')}.journal")
    journal.unlink()
    assert bench.search(spec, "lost") == [2]
    after = {trial.user_attrs[SLOT]: (trial.params, trial.value) for trial in trials_of("lost", spec)}
    assert after.keys() == {0, 1, 2}
    assert {slot: after[slot] for slot in before} == before


def test_a_line_that_was_cut_off_in_the_journal_is_no_end_of_the_study(bench: StudyBench) -> None:
    spec = bench.spec(trials=2)
    assert bench.trial(spec, "cut", 0) is ExitCode.DONE
    journal = bench.home / "tuning" / f"{study_name('cut')}.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "study_')
    assert bench.trial(spec, "cut", 1) is ExitCode.DONE
    assert len(trials_of("cut", spec)) == 2


def test_a_study_continues_without_its_storage_and_delivers_trials_later(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=2)

    def away(*_: object, **__: object) -> None:
        raise StorageInternalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "report", away)
        patch.setattr(Search, "_finish", away)
        assert bench.trial(spec, "away", 0) is ExitCode.DONE
    assert [record.state for record in bench.study("away").records()] == ["complete"]
    assert bench.trial(spec, "away", 1) is ExitCode.DONE
    assert {trial.state.name for trial in trials_of("away", spec)} <= {"COMPLETE", "PRUNED"}


def test_diverged_settings_are_a_finding_and_the_study_continues(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=2)

    def diverge(*_: object) -> None:
        raise DivergedError("loss.not_finite", "step 3: the loss is nan")

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train", diverge)
        assert bench.trial(spec, "diverged", 0) is ExitCode.DONE
    assert bench.search(spec, "diverged") == [1]
    assert [record.state for record in bench.study("diverged").records()] == ["failed", "complete"]
    assert "the loss is nan" in bench.study("diverged").records()[0].reason
    assert bench.tune(spec, "diverged").scalars["best_slot"] == 1


def test_a_study_without_a_single_value_says_why(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=1)

    def diverge(*_: object) -> None:
        raise DivergedError("loss.not_finite", "step 3: the loss is nan")

    monkeypatch.setattr(Loop, "train", diverge)
    bench.search(spec, "nothing")
    with pytest.raises(AssertionError, match=r"tune\.no_trial.*the loss is nan"):
        bench.tune(spec, "nothing")


def test_a_pruned_trial_ends_early_with_success_and_is_never_the_best(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec(trials=2)
    assert bench.trial(spec, "pruned", 0) is ExitCode.DONE
    with monkeypatch.context() as patch:
        patch.setattr("training.tuning.study.pruner_of", lambda *_: ThresholdPruner(upper=-1.0))
        assert bench.trial(spec, "pruned", 1) is ExitCode.DONE
    whole, pruned = bench.study("pruned").records()
    assert (whole.state, whole.epochs, pruned.state, pruned.epochs, pruned.value) == ("complete", 2, "pruned", 1, None)
    assert pruned.steps * 2 == whole.steps
    assert [trial.state.name for trial in trials_of("pruned", spec)] == ["COMPLETE", "PRUNED"]
    assert bench.tune(spec, "pruned").scalars["best_slot"] == 0


def test_trees_are_pruned_by_rounds(bench: StudyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    train = bench.bench.spec.train.model_validate({"model": "boosted_trees", "epochs": 9, "learning_rate": 0.1})
    spec = bench.spec(trials=2, space={"settings.max_depth": {"int": [2, 5]}}).model_copy(update={"train": train})
    assert bench.trial(spec, "trees", 0) is ExitCode.DONE
    monkeypatch.setattr("training.tuning.study.pruner_of", lambda *_: ThresholdPruner(upper=-2.0))
    assert bench.trial(spec, "trees", 1) is ExitCode.DONE
    assert [(record.state, record.steps) for record in bench.study("trees").records()] == [("complete", 9), ("pruned", 1)]


def test_the_first_trial_has_the_specs_settings_where_there_is_no_champion(bench: StudyBench) -> None:
    spec = bench.spec(trials=1, space={"learning_rate": {"float": [1e-3, 1e-1]}, "weight_decay": {"float": [0.0, 0.1]}})
    bench.search(spec, "first")
    (record,) = bench.study("first").records()
    assert record.settings["learning_rate"] == spec.train.learning_rate
    assert 0.0 <= record.settings["weight_decay"] <= 0.1, "0.5 is outside of the space, so it is drawn"


def test_the_first_trial_has_the_champions_settings(bench: StudyBench) -> None:
    spec = bench.spec(trials=2, space={"learning_rate": {"float": [1e-3, 1e-1]}, "settings.dropout": {"float": [0.0, 0.5]}})
    settings = {"model": "ranker", "epochs": 2, "learning_rate": 0.0123, "batch_size": 240, "settings": {"dropout": 0.25}}
    champion = bench.store.manifests.put(Manifest(kind="model", files={}, meta={"settings": settings}))
    bench.search(spec, "champion", champion=champion)
    assert bench.study("champion").records()[0].settings == {"learning_rate": 0.0123, "settings.dropout": 0.25}


def test_the_champions_settings_are_ignored_where_it_is_of_another_family(bench: StudyBench) -> None:
    spec = bench.spec(trials=1)
    champion = bench.store.manifests.put(
        Manifest(kind="model", files={}, meta={"settings": {"model": "boosted_trees", "learning_rate": 0.05}})
    )
    bench.search(spec, "other family", champion=champion)
    assert bench.study("other family").records()[0].settings == {"learning_rate": spec.train.learning_rate}


def test_a_study_never_reads_a_test_row(bench: StudyBench) -> None:
    spec = bench.spec(trials=3, objective="ndcg@10", pruner="none")
    bench.search(spec, "with test rows")
    dataset = bench.store.manifests.get(bench.bench.dataset_uri, kind="dataset")
    hidden = {name: bench.path(dataset.files[name].digest) for name in ("splits/test-00000.npy", "frame/00000.parquet")}
    kept = {name: path.read_bytes() for name, path in hidden.items()}
    try:
        for path in hidden.values():
            path.unlink()
        bench.search(spec, "without test rows")
    finally:
        for name, path in hidden.items():
            path.write_bytes(kept[name])
    assert bench.study("without test rows").records() == bench.study("with test rows").records()


def test_an_objective_is_the_metric_over_the_validation_rows_with_less_being_better(bench: StudyBench) -> None:
    spec = bench.spec(trials=2, objective="ndcg@10")
    bench.search(spec, "metric")
    records = bench.study("metric").records()
    assert all(record.value is not None and -1.0 <= record.value < -0.2 for record in records if record.state == "complete")
    # People see the metric.
    shown = bench.tune(spec, "metric")
    best = max(-record.value for record in records if record.value is not None)
    page = bench.store.reports.get(shown.reports["tuning"]).decode()
    assert shown.scalars["best_value"] == best
    assert f"ndcg@10 {figure(best)}, with" in str(shown.scalars["headline"])
    assert f"ndcg@10 <b>{number(best)}</b> over the validation rows (higher is better)" in page
    by_loss = bench.spec(trials=2)
    bench.search(by_loss, "loss")
    assert records[0].losses == bench.study("loss").records()[0].losses
    assert records[0].value != bench.study("loss").records()[0].value


def test_a_study_of_one_worker_is_the_same_each_time(bench: StudyBench) -> None:
    spec = bench.spec(trials=4, pruner="none")
    for name in ("one", "two"):
        bench.search(spec, name)
    assert bench.study("one").records() == bench.study("two").records()
    assert bench.tune(spec, "one").reports == bench.tune(spec, "two").reports


def test_a_grid_tries_each_combination_once(bench: StudyBench) -> None:
    space = {
        "learning_rate": {"choices": [0.01, 0.02]},
        "settings.dropout": {"float": [0.0, 0.2], "step": 0.1, "when": {"learning_rate": 0.02}},
    }
    spec = bench.spec(trials=50, sampler="grid", space=space, pruner="none")
    assert len(bench.search(spec, "grid")) == 4
    tried = {json.dumps(dict(record.settings), sort_keys=True) for record in bench.study("grid").records()}
    assert len(tried) == 4
    assert json.dumps({"learning_rate": 0.01}) in tried


@pytest.mark.parametrize("sampler", ["random", "cmaes"])
def test_every_sampler_continues_in_another_process(bench: StudyBench, sampler: str) -> None:
    space = {"learning_rate": {"float": [1e-3, 1e-1], "log": True}, "settings.dropout": {"float": [0.0, 0.5]}}
    spec = bench.spec(trials=4, sampler=sampler, space=space)
    bench.search(spec, sampler)
    drawn = {record.settings["learning_rate"] for record in bench.study(sampler).records()}
    assert len(drawn) == 4
    assert all(1e-3 <= value <= 1e-1 for value in drawn)


def test_importance_names_the_setting_that_mattered() -> None:
    tune = Tune.model_validate({"trials": 30, "space": {"learning_rate": {"float": [0.0, 1.0]}, "weight_decay": {"float": [0.0, 1.0]}}})
    random = np.random.default_rng(0)
    records = []
    for slot in range(30):
        matters, idle = (float(value) for value in random.random(2))
        settings = {"learning_rate": matters, "weight_decay": idle}
        records.append(TrialRecord(slot=slot, state="complete", value=(matters - 0.3) ** 2, settings=settings, epochs=1, steps=1))
    found = importance_of(tune, records)
    assert list(found) == ["learning_rate", "weight_decay"]
    assert found["learning_rate"] > 0.8
    assert importance_of(tune, records[:3]) == {}
