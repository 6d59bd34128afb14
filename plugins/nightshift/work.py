"""The work of a stage: what it is to do, the id that names it, and what has to be in the store before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from nightshift.resolved_run import ResolvedRun
from training.code.closure import Code
from training.contracts import JsonObject, work_id
from training.store import Store, WorkFolder

NO_CODE: Final = Code(version="")
"""Of work that records or follows a decision: it is done once, whatever becomes of the code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RefPin:
    """A value that a ref is to get."""

    name: str
    value: JsonObject
    expected: int
    """Record that the ref had. Where it has moved since, its new value stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One stage's work for one run. Looking it up writes nothing; `pin` does, before the work starts."""

    stage: str
    id: str
    """SHA-256 over the stage, its inputs, the keys that matter, and the code; 64 hex digits."""
    folder: WorkFolder
    """Of its attempts and its result, in the store."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name to artifact URI."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """What was looked up: the source listing, the champion, the previous snapshot."""
    code: Code = NO_CODE
    ref_pins: tuple[RefPin, ...] = ()
    """What later look-ups are to find."""
    file_pins: tuple[bytes, ...] = ()
    """Files that `parameters` names by their URIs in the store."""

    @classmethod
    def of(
        cls,
        resolved: ResolvedRun,
        stage: str,
        covered: Mapping[str, object],
        *,
        part: JsonObject | None = None,
        code: Code = NO_CODE,
        nonce: str = "",
        **fields: Any,
    ) -> Self:
        """Name work after what it depends on.

        Args:
            covered: digests, and what was looked up, as JSON: the id covers it, besides `part` and `code`.
            part: of the spec.
            nonce: of a forced run, or of work that each run has to do; else empty.
            fields: inputs, parameters and pins.
        """
        name = work_id(stage, spec_part=part or {}, code_version=code.version, inputs=covered, nonce=nonce)
        return cls(stage=stage, id=name, folder=resolved.store.work_folder(resolved.spec.name, stage, name), code=code, **fields)

    def pin(self, store: Store) -> None:
        """Write the pins."""
        for data in self.file_pins:
            store.objects.put_bytes(data)
        for pin in self.ref_pins:
            store.ref(pin.name).move(pin.value, expected=pin.expected)
