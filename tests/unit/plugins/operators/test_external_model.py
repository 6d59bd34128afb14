"""The first tasks of a run that judges a model from outside: its file is in the store before any data is read, or the run ends."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.resolve import ResolveOperator
from nightshift.operators.stage import TrainOperator
from nightshift.operators.stage_work import work_of
from nightshift.operators.study import PlanOperator, TrialsOperator, TuneOperator
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from training.contracts import RunIdentity, StageResult
from training.process.identity import pid_namespace
from training.process.scratch import PREFIX
from training.runtime.provenance import CHECKOUT
from training.spec import freeze, load_spec, resolve_uris
from training.store import Store
from training.store.manifests import Manifests

SPEC_PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
UBJ = b"{U\x01aU\x01}"
Context = Callable[..., Any]
Execute = Callable[[BaseOperator, Any], Any]


@pytest.fixture
def resolve() -> ResolveOperator:
    return ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH))


@pytest.fixture
def models(shop: Path) -> Path:
    """A folder of models in the shop's place."""
    folder = shop.parent / "models"
    folder.mkdir()
    return folder


def conf(**more: Any) -> dict[str, Any]:
    return {"registration": {"artifact_uri": "${SHOP_URI}/models/m.ubj", "format": "xgboost_json", **more}}


@pytest.mark.usefixtures("shop")
def test_the_file_is_in_the_store_and_the_spec_names_the_family_that_scores_it(
    resolve: ResolveOperator, models: Path, store: Store, context_of: Context, execute: Execute
) -> None:
    (models / "m.ubj").write_bytes(UBJ)
    digest = hashlib.sha256(UBJ).hexdigest()
    context = context_of("resolve", conf=conf(sha256=digest, metrics={"ndcg@10": 0.4}))
    settled = execute(resolve, context)
    artifact = store.manifests.get(settled["artifact"]["uri"], kind="artifact")
    # What the place holds later changes nothing about the run.
    (models / "m.ubj").unlink()
    assert store.manifests.read(artifact, "artifact") == UBJ
    assert (artifact.meta["sha256"], artifact.meta["metrics"]) == (digest, {"ndcg@10": 0.4})
    assert settled["overrides"]["registration"]["artifact_uri"] == "${SHOP_URI}/models/m.ubj"
    spec = ResolvedRun(settled).spec
    assert (spec.train.model, spec.train.placement.world_size, spec.train.placement.gpus, spec.tune) == ("boosted_trees", 1, 0, None)
    assert (spec.evaluate, spec.promote) == (load_spec(SPEC_PATH).evaluate, load_spec(SPEC_PATH).promote)
    # The run's own ref keeps the original from the collector.
    kept = store.run_ref("search_ranking", context["dag_run"].run_id, "artifact").read()
    assert kept is not None
    assert kept.value == settled["artifact"]["uri"]


@pytest.mark.usefixtures("shop")
def test_the_copy_is_in_a_folder_that_the_next_process_removes_after_a_kill(
    resolve: ResolveOperator, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context_of: Context, execute: Execute
) -> None:
    temporary, put, seen = tmp_path / "temporary", Manifests.put_files, list[Path]()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def killed_here(self: Manifests, kind: str, files: Any, meta: Any) -> Any:
        seen.append(files["artifact"])
        return put(self, kind, files, meta)

    monkeypatch.setattr(Manifests, "put_files", killed_here)
    (models / "m.ubj").write_bytes(UBJ)
    execute(resolve, context_of("resolve", conf=conf()))
    (copy,) = seen
    # tests/unit/training/process/test_scratch.py kills a process that has such a folder.
    assert copy.parent.parent == temporary
    assert copy.parent.name.startswith(f"{PREFIX}{pid_namespace()}-{os.getpid()}-")
    assert list(temporary.iterdir()) == []


REFUSED: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "missing": (lambda file: None, {}, "artifact.missing"),
    "folder": (lambda file: (file.mkdir(), (file / "part.ubj").write_bytes(UBJ)), {}, "artifact.folder"),
    "empty": (lambda file: file.write_bytes(b""), {}, "artifact.format"),
    "pickle": (lambda file: file.write_bytes(pickle.dumps({"a": 1})), {}, "artifact.pickle"),
    "torch.save": (lambda file: file.write_bytes(b"PK\x03\x04rest"), {}, "artifact.pickle"),
    "joblib": (lambda file: file.write_bytes(b"\x1f\x8b\x08rest"), {"format": "onnx"}, "artifact.pickle"),
    "other bytes": (lambda file: file.write_bytes(UBJ), {"sha256": "0" * 64}, "artifact.digest"),
    "another format": (lambda file: file.write_bytes(UBJ), {"format": "safetensors"}, "artifact.format"),
    "link": (lambda file: (file.parents[2].joinpath("x").write_bytes(UBJ), file.symlink_to(file.parents[2] / "x")), {}, "source.outside"),
    "no transforms": (lambda file: file.write_bytes(UBJ), {"transforms_uri": "${SHOP_URI}/models/t.json"}, "artifact.missing"),
    "link to nothing outside": (lambda file: file.symlink_to(file.parents[2] / "y"), {}, "source.outside"),
    "folder that leads outside": (
        lambda file: (file.parent / "out").symlink_to(file.parents[2]),
        {"artifact_uri": "${SHOP_URI}/models/out/nothing.ubj"},
        "source.outside",
    ),
    "place of others": (lambda file: None, {"artifact_uri": "${NOWHERE_URI}/m.ubj"}, "uri.forbidden"),
    "variable of others": (lambda file: None, {"artifact_uri": "${MLFLOW_BACKEND_STORE_URI}/m.ubj"}, "uri.forbidden"),
    "another model": (lambda file: file.write_bytes(UBJ), {"name": "flight_delay"}, "artifact.name"),
}


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_model_ends_the_run_before_it_reads_data_and_is_not_tried_again(
    resolve: ResolveOperator, models: Path, store: Store, context_of: Context, execute: Execute, fault: str
) -> None:
    place, more, code = REFUSED[fault]
    place(models / "m.ubj")
    with pytest.raises(AirflowFailException, match=code.replace(".", r"\.")):
        execute(resolve, context_of("resolve", conf=conf(**more)))
    root = Path(store.root_uri.removeprefix("file://"))
    assert not list(root.glob("manifests/**/*.json"))


@pytest.mark.usefixtures("shop")
def test_a_file_above_the_limit_is_not_copied(
    resolve: ResolveOperator, models: Path, context_of: Context, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "m.ubj").write_bytes(UBJ)
    monkeypatch.setattr("training.sources.model_artifact.MAX_BYTES", {"xgboost_json": len(UBJ) - 1})
    with pytest.raises(AirflowFailException, match=r"artifact\.too_large"):
        execute(resolve, context_of("resolve", conf=conf()))


@pytest.mark.parametrize("section", ["train", "tune"])
def test_what_a_training_would_have_read_is_refused_beside_a_model_from_outside(
    resolve: ResolveOperator, context_of: Context, execute: Execute, section: str
) -> None:
    given = {"train": {"epochs": 9}, "tune": {"trials": 2}}[section]
    with pytest.raises(AirflowFailException, match=r"field\.conflict|conf\.unknown_key"):
        execute(resolve, context_of("resolve", conf={**conf(), section: given}))


def resolved_with(store: Store, digest: str | None, **train: Any) -> ResolvedRun:
    spec = resolve_uris(load_spec(SPEC_PATH), {"SHOP_URI": "file:///shop"})
    spec = spec.model_copy(update={"train": spec.train.model_copy(update=train)})
    artifact = {} if digest is None else {"artifact": {"uri": f"{store.root_uri}/a", "digest": digest}}
    return ResolvedRun({"spec_uri": store.put_json(freeze(spec)), "as_of": "2026-02-01T02:00:00+00:00", "force": False, **artifact})


def result_of(stage: str, digest: str) -> StageResult:
    return StageResult(
        pipeline="search_ranking",
        stage=stage,
        work_id="f" * 64,
        artifact_uri=f"file:///{stage}",
        digest=digest * 64,
        run=RunIdentity(dag_id="search_ranking", run_id="r", task_id=stage),
        attempt_id="a",
        attempts=1,
        committed_at="2026-02-01T02:00:00+00:00",
    )


def test_the_work_id_of_an_import_is_that_of_its_file(store: Store) -> None:
    results = {"dataset": result_of("prepare", "d"), "snapshot": result_of("ingest", "e")}
    settings = Settings.from_environment()
    works = [
        work_of("train", resolved_with(store, digest, **train), results, settings=settings)
        for digest, train in (("1" * 64, {}), ("1" * 64, {"learning_rate": 0.5}), ("2" * 64, {}), (None, {}))
    ]
    # How this pipeline would have trained is no part of a model from outside.
    assert works[0].id == works[1].id
    assert len({work.id for work in works}) == 3
    assert works[0].parameters["artifact"] == f"{store.root_uri}/a"
    assert "artifact" not in works[3].parameters


def test_a_model_from_outside_has_no_study_and_no_refit(
    context_of: Context, execute: Execute, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResolvedRun, "of", classmethod(lambda cls, context: resolved_with(store, "1" * 64)))
    assert execute(PlanOperator(task_id="tune_plan"), context_of("tune_plan")) == [0]
    assert execute(TrialsOperator(task_id="trials", worker=0), context_of("trials"))["trials"] == []
    assert execute(TuneOperator(task_id="tune"), context_of("tune")) == {}
    assert execute(TrainOperator(task_id="refit", stage="refit"), context_of("refit")) == {}


def test_a_study_alone_takes_no_model_from_outside(context_of: Context, execute: Execute) -> None:
    resolve = ResolveOperator(task_id="resolve", spec_path=str(SPEC_PATH))
    context = context_of("resolve", conf=conf())
    context["dag_run"].dag_id = "search_ranking.tune"
    with pytest.raises(AirflowFailException, match=r"field\.conflict"):
        execute(resolve, context)
