"""A snapshot that a trigger names: it must be one of the pipeline, still there, not deprecated, and have the columns of the YAML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nightshift.settings import Settings
from training.contracts import JsonObject, instant_of, json_object
from training.errors import DeniedError, spec_error
from training.sources.table_contract import TableContract, contracts_of
from training.spec import PipelineSpec, RunParameters
from training.spec.schedule.instants import parse_as_of

KIND: Final = "snapshot"
MAX_DIFFERENCES: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSnapshot:
    """The snapshot of a run."""

    version: str
    uri: str
    """Of its manifest."""
    digest: str
    as_of: datetime
    """In UTC; also that of the run."""


def find_snapshot(spec: PipelineSpec, parameters: RunParameters, settings: Settings) -> FoundSnapshot:
    """Return the snapshot that `parameters.snapshot` names.

    Raises:
        DeniedError: `snapshot.unknown`, also of another pipeline; `snapshot.deprecated`; `snapshot.schema`, it has other tables or columns
            than the YAML.
        SpecError: `snapshot.as_of`, the trigger names another `as_of` than the snapshot's.
        DataError: it was deleted, or is damaged.
        UnavailableError: database or store do not answer.
    """
    from training.database.datasets import find_dataset, refuse_deprecated

    found = find_dataset(settings.database(), spec.name, parameters.snapshot or "")
    refuse_deprecated(found)
    manifest = settings.store().manifests.get(found.uri, kind=KIND)
    as_of = instant_of(str(manifest.meta["as_of"])).astimezone(UTC)
    if parameters.as_of is not None and parse_as_of(parameters.as_of, spec.timezone) != as_of:
        message = f"the snapshot {found.version} is as of {as_of.isoformat()}, and the trigger says {parameters.as_of}"
        hint = "leave as_of out: a run on a snapshot has the snapshot's"
        raise spec_error("trigger", "snapshot.as_of", message, hint=hint, field="as_of")
    _check_schema(found.version, contracts_of(spec), manifest.meta)
    return FoundSnapshot(version=found.version, uri=found.uri, digest=manifest.digest, as_of=as_of)


def _check_schema(version: str, contracts: list[TableContract], meta: JsonObject) -> None:
    tables = json_object(meta["tables"])
    differences = list(_differences(contracts, tables))
    if meta["main"] != contracts[0].name:
        differences.insert(0, f"main table: {meta['main']} → {contracts[0].name}")
    if differences:
        more = f" and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
        message = f"the snapshot {version} is of another schema than the YAML: {'; '.join(differences[:MAX_DIFFERENCES])}{more}"
        raise DeniedError("snapshot.schema", message, hint="use the YAML of that time, or a snapshot that was taken with this one")


def _differences(contracts: list[TableContract], tables: JsonObject) -> Iterator[str]:
    """Yield what differs, old and new; columns that the snapshot has beyond the declared ones are not read."""
    for contract in contracts:
        if contract.name not in tables:
            yield f"table {contract.name}: nothing → declared"
            continue
        schema = json_object(json_object(tables[contract.name])["schema"])
        for name, kind in sorted(contract.types.items()):
            if schema.get(name) != kind:
                yield f"{contract.name}.{name}: {schema.get(name, 'nothing')} → {kind}"
