"""The work of a study: one search over one dataset, whichever run asks for it, and each of its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightshift.execution.backend import backend_of
from nightshift.execution.code_version import code_of
from nightshift.resolved_run import ResolvedRun
from nightshift.settings import Settings
from nightshift.work import Work
from training.code.closure import Code
from training.contracts import ContractError, StageResult, work_id
from training.spec import PipelineSpec, spec_part
from training.spec.sections.tuning import Tune
from training.stage_table import TRIAL
from training.tuning.records import StudyStore, trial_work_id


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyWork:
    """One study: its name, and the work of its trials."""

    name: str
    """Its work id: equal searches over equal data are one study, for all callers."""
    dataset_uri: str
    world_size: int
    shared: bool
    """Its trials share no disk."""
    code: Code
    """Of its trials."""
    device: Mapping[str, str]
    """`Backend.device_of` its trials."""

    @classmethod
    def of(cls, resolved: ResolvedRun, dataset: StageResult, settings: Settings) -> StudyWork:
        """Return the study of a run's spec on the result of `prepare`.

        Raises:
            ContractError: the spec has no study.
        """
        tune_of(resolved.spec)
        world_size = resolved.spec.train.placement.world_size
        code = code_of(resolved.spec, TRIAL, settings)
        backend = backend_of(settings)
        device = backend.device_of(resolved.spec)
        covered = {"dataset": dataset.digest, "world_size": world_size, **device}
        part = spec_part(resolved.spec, TRIAL)
        name = work_id(TRIAL, spec_part=part, code_version=code.version, inputs=covered, nonce=resolved.force)
        shared = not backend.shares_disk
        return cls(name=name, dataset_uri=dataset.artifact_uri, world_size=world_size, shared=shared, code=code, device=device)

    def store(self, resolved: ResolvedRun) -> StudyStore:
        return StudyStore(resolved.store, resolved.spec.name, self.name)

    def trial(self, resolved: ResolvedRun, slot: int, champion: str | None) -> Work:
        """Return the work of one trial, whose id covers the code by the name of the study."""
        parameters = {
            "study": self.name,
            "slot": slot,
            "shared": self.shared,
            "world_size": self.world_size,
            "champion": champion,
            **self.device,
        }
        name = trial_work_id(self.name, slot)
        folder = resolved.store.work_folder(resolved.spec.name, TRIAL, name)
        return Work(stage=TRIAL, id=name, folder=folder, inputs={"dataset": self.dataset_uri}, parameters=parameters, code=self.code)


def tune_of(spec: PipelineSpec) -> Tune:
    """Return the section `tune`.

    Raises:
        ContractError: the spec has none.
    """
    if spec.tune is None:
        raise ContractError(f"the frozen spec of {spec.name} has no tune")
    return spec.tune
