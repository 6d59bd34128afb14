"""Studies over a small dataset, run as workers would run them, in this process."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tests.training_bench import AS_OF, Bench
from training.contracts import ExitCode, RunIdentity, StageRequest, StageResult
from training.runtime.context import StopFlag
from training.runtime.runner import run
from training.spec import PipelineSpec, freeze
from training.spec.sections.tuning import Tune
from training.store import WorkFolder
from training.tuning.records import StudyStore, trial_work_id

WORKER = "search_ranking/r/trials-0"


class StudyBench:
    """One dataset, and studies over it by name."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(folder)
        self.store = self.bench.store
        self.home = folder

    def spec(self, **tune: Any) -> PipelineSpec:
        values = {"trials": 4, "space": {"learning_rate": {"float": [1e-3, 1e-1], "log": True}}, **tune}
        return self.bench.spec.model_copy(update={"tune": Tune.model_validate(values)})

    def study(self, name: str) -> StudyStore:
        return StudyStore(self.store, "search_ranking", study_name(name))

    def path(self, digest: str) -> Path:
        """Return where an object of the store lies on disk."""
        return Path(self.store.root_uri.removeprefix("file://")) / self.store.objects.key(digest)

    def work_folder(self, name: str, slot: int) -> WorkFolder:
        return self.store.work_folder("search_ranking", "trial", trial_work_id(study_name(name), slot))

    def ask(self, spec: PipelineSpec, name: str, slot: int, attempt_id: str, **parameters: Any) -> str:
        work_folder = self.work_folder(name, slot)
        return work_folder.write_request(
            StageRequest(
                pipeline="search_ranking",
                stage="trial",
                work_id=work_folder.uri.rsplit("/", 1)[-1],
                attempt_id=attempt_id,
                store_uri=self.store.root_uri,
                spec_uri=self.store.put_json(freeze(spec)),
                as_of=AS_OF,
                inputs={"dataset": self.bench.dataset_uri},
                parameters={"study": study_name(name), "slot": slot, "world_size": 1, **parameters},
                run=RunIdentity(dag_id="search_ranking", run_id="r", task_id="trials-0"),
            )
        )

    def trial(
        self, spec: PipelineSpec, name: str, slot: int, attempt_id: str = "a1", *, stop: StopFlag | None = None, **more: Any
    ) -> ExitCode:
        work = importlib.import_module("training.stages.trial").work
        return run(work, self.ask(spec, name, slot, attempt_id, **more), stop=stop or StopFlag())

    def search(self, spec: PipelineSpec, name: str, **more: Any) -> list[int]:
        """Do trials until the study is full; return their slots in the order in which they were done."""
        done = []
        assert spec.tune is not None
        while (slot := self.study(name).take(WORKER, [WORKER], spec.tune)) is not None:
            assert self.trial(spec, name, slot, **more) is ExitCode.DONE, self.work_folder(name, slot).error("a1")
            done.append(slot)
        return done

    def tune(self, spec: PipelineSpec, name: str) -> StageResult:
        work_folder = self.store.work_folder("search_ranking", "tune", study_name(name))
        uri = work_folder.write_request(
            StageRequest(
                pipeline="search_ranking",
                stage="tune",
                work_id=study_name(name),
                attempt_id="a1",
                store_uri=self.store.root_uri,
                spec_uri=self.store.put_json(freeze(spec)),
                as_of=AS_OF,
                inputs={"dataset": self.bench.dataset_uri},
                parameters={"study": study_name(name)},
                run=RunIdentity(dag_id="search_ranking", run_id="r", task_id="tune"),
            )
        )
        assert run(importlib.import_module("training.stages.tune").work, uri, stop=StopFlag()) is ExitCode.DONE, work_folder.error("a1")
        result = work_folder.result()
        assert result is not None
        return result


def study_name(name: str) -> str:
    return name.encode().hex().rjust(64, "0")
