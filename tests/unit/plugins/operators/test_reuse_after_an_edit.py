"""The same night again after an edit of the code: what the edit cannot change is found done. Real stages, in this process."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.execution import code_version
from nightshift.operators.stage_work import needs_of, work_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from tests.training_bench import AS_OF, Bench
from training.code.closure import Sources
from training.code.stages import stage_code
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.runtime.context import StopFlag
from training.runtime.provenance import CHECKOUT
from training.runtime.runner import run
from training.spec import freeze

STAGES = ("ingest", "validate", "prepare", "train")


class Night:
    """One night of a pipeline over a copy of the code, which may be edited."""

    def __init__(self, folder: Path) -> None:
        self.code = folder / "checkout"
        shutil.copytree(CHECKOUT / "training", self.code / "training", ignore=shutil.ignore_patterns("__pycache__"))
        self._bench = Bench(folder / "bench")
        # No suite of Great Expectations: it is not what is asked here.
        validate = self._bench.spec.validate_.model_copy(update={"suite": None})
        spec = self._bench.spec.model_copy(update={"validate_": validate})
        uri = self._bench.store.put_json(freeze(spec))
        self._frozen = ResolvedRun({"spec_uri": uri, "as_of": AS_OF.isoformat(), "force": False, "overrides": {}})

    def again(self) -> tuple[list[str], str]:
        """Ask for the night; return (the stages that had to be done, the name of the evaluation's work)."""
        done, results = [], {}
        for stage in STAGES:
            found = self._work(stage, results)
            if found.folder.result() is None:
                done.append(stage)
                self._run(stage, found)
            result = found.folder.result()
            assert result is not None
            results[stage] = result
        return done, self._work("evaluate", results).id

    def _work(self, stage: str, results: dict[str, StageResult]) -> Work:
        given = {name: results[maker] for name, maker in needs_of(stage, self._frozen.spec).items()}
        found = work_of(stage, self._frozen, given, settings=Settings.from_environment())
        found.pin(self._bench.store)
        return found

    def _run(self, stage: str, found: Work) -> None:
        request = StageRequest(
            pipeline=self._frozen.spec.name,
            stage=stage,
            work_id=found.id,
            attempt_id="a1",
            store_uri=self._bench.store.root_uri,
            spec_uri=self._frozen.spec_uri,
            as_of=AS_OF,
            inputs=found.inputs,
            parameters=found.parameters,
            run=RunIdentity(dag_id="search_ranking", run_id="r", task_id=stage),
        )
        module = importlib.import_module(f"training.stages.{stage}")
        assert run(module.work, found.folder.write_request(request), stop=StopFlag()) is ExitCode.DONE, found.folder.error("a1")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    folder = tmp_path_factory.mktemp("night")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_HOME", str(folder))
        patch.setenv("NIGHTSHIFT_STORE", str(folder / "bench" / "store"))
        patch.setenv("NIGHTSHIFT_DATABASE", f"sqlite:///{folder}/nightshift.db")
        patch.delenv("NIGHTSHIFT_CODE_VERSION", raising=False)
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setattr("training.engine.tracking.tracker.CLOSE_SECONDS", 0.5)
        made = Night(folder)
        # Everything is made by the code of this checkout; what names it is the copy.
        patch.setattr(code_version, "stage_code", lambda *args, **more: stage_code(*args, **more, sources=Sources(made.code)))
        assert made.again()[0] == list(STAGES)
        assert made.again()[0] == []
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "stages", "evaluates"),
    [
        ("training/registry/gates/judging.py", [], True),
        ("training/pages/evaluation.css", [], True),
        ("training/stages/promote.py", [], False),
        ("training/tuning/study.py", [], False),
        ("training/models/boosted_trees/module.py", [], False),
        ("training/models/ranker/module.py", ["train"], True),
        ("training/pages/validation.html", ["validate"], False),
    ],
)
def test_an_edit_does_those_stages_again_that_use_the_file(night: Night, file: str, stages: list[str], evaluates: bool) -> None:
    _, before = night.again()
    with (night.code / file).open("a", encoding="utf-8") as edited:
        edited.write("\n")
    done, after = night.again()
    assert done == stages
    assert (after != before) is evaluates
    assert night.again() == ([], after)
