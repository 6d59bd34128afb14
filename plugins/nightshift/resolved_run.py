"""What a run's first task settled: the spec, `as_of`, whether everything is done again. XCom carries it, the store vouches for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nightshift.run_refs import settled_ref
from nightshift.settings import Settings
from training.contracts import ContractError, JsonObject, instant_of
from training.registry.ledger.reasons import SIMULATED
from training.spec import PipelineSpec
from training.store.chains import Chain

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

RESOLVE: Final = "resolve"
PROMOTE: Final = "promote"
"""Key of a trigger."""
NO_PROMOTION: Final = "the trigger says promote: false"


def settle(context: Context, settings: Settings, settled: JsonObject) -> None:
    """Keep in the store what a run's first task has settled: users of the API may write XCom, and not the store."""
    ref = _settled(context, settings)
    while True:
        head = ref.read()
        if (head is not None and head.value == settled) or ref.move(dict(settled), expected=head.number if head else 0):
            return


def check_settled(context: Context, settings: Settings) -> None:
    """Refuse to decide by a spec that is not the run's own.

    Raises:
        ContractError: the XCom of `resolve` is not what it settled.
    """
    head = _settled(context, settings).read()
    if head is None or head.value != dict(context["ti"].xcom_pull(task_ids=RESOLVE) or {}):
        raise ContractError(f"the XCom of task {RESOLVE!r} is not what it settled (the store knows); clear {RESOLVE!r} and what follows")


def _settled(context: Context, settings: Settings) -> Chain:
    ti: Any = context["ti"]
    return settled_ref(settings.store(), ti.dag_id, ti.run_id)


@dataclass(frozen=True, slots=True)
class NamedArtifact:
    """What a trigger names and a run takes instead of its own: an existing snapshot, or a model from outside."""

    uri: str
    """Of its manifest."""
    digest: str

    @classmethod
    def from_json(cls, values: JsonObject) -> NamedArtifact:
        return cls(str(values["uri"]), str(values["digest"]))


class ResolvedRun:
    """What `resolve` settled, as later tasks read it."""

    def __init__(self, values: JsonObject) -> None:
        self.spec_uri = str(values["spec_uri"])
        self.as_of = instant_of(str(values["as_of"]))
        self.force = str(values["force"] or "")
        """Nonce of the work of a run that does everything again; empty: finished work is reused."""
        overrides = values.get("overrides")
        self.overrides: JsonObject = overrides if isinstance(overrides, Mapping) else {}
        """Dotted key of the spec to the value that the trigger gave instead."""
        self.may_promote = self.overrides.get(PROMOTE) is not False
        """Whether the run decides about its model; otherwise it leaves nothing that a later run goes by."""
        self.is_reference = self.may_promote and "data.source.window" not in self.overrides
        """Whether later runs are compared with its snapshot; not with one of another window, whose rows are others."""
        self.simulated: JsonObject = {SIMULATED: True} if values.get(SIMULATED) is True else {}
        """For the parameters of stages; empty where time is the clock's."""
        chosen = values.get("snapshot")
        self.snapshot: NamedArtifact | None = NamedArtifact.from_json(chosen) if isinstance(chosen, Mapping) else None
        """That a trigger names instead of the sources."""
        artifact = values.get("artifact")
        self.artifact: NamedArtifact | None = NamedArtifact.from_json(artifact) if isinstance(artifact, Mapping) else None
        """A model from outside, which the run judges instead of training one."""
        self.store = Settings.from_environment().store()
        self.spec = PipelineSpec.thaw(self.store.get_json(self.spec_uri))

    @classmethod
    def of(cls, context: Context) -> ResolvedRun:
        """Read it from XCom.

        Raises:
            ContractError: `resolve` left nothing.
        """
        values = context["ti"].xcom_pull(task_ids=RESOLVE)
        if not isinstance(values, Mapping):
            raise ContractError(f"task {RESOLVE!r} left no result (got {type(values).__name__}); see its log")
        return cls(values)
