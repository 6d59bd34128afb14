"""What a YAML changes of the tables of the previous snapshot: asked when a run is submitted, before anything is read. Light: no Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from training.contracts import JsonObject, json_object
from training.sources.table_contract import TableContract

MAX_NAMED: Final = 10


def schema_changes(contracts: Sequence[TableContract], tables: JsonObject) -> list[str]:
    """Return what each table declares otherwise than it was in a snapshot: `clicks.price: float → double`; sorted.

    Columns that are ignored now are not compared: a snapshot may hold them, and no stage reads them. What a source calls a column makes
    no difference: snapshots hold the names of the YAML.

    Args:
        tables: of the snapshot's meta, by name.
    """
    changes = [f"{name}: table removed" for name in tables.keys() - {contract.name for contract in contracts}]
    for contract in contracts:
        if contract.name not in tables:
            changes.append(f"{contract.name}: table added")
            continue
        then, now = json_object(json_object(tables[contract.name])["schema"]), contract.types
        for name in (then.keys() | now.keys()) - (set(contract.ignore) - now.keys()):
            if name not in now:
                changes.append(f"{contract.name}.{name}: removed, was {then[name]}")
            elif name not in then:
                changes.append(f"{contract.name}.{name}: added, {now[name]}")
            elif then[name] != now[name]:
                changes.append(f"{contract.name}.{name}: {then[name]} → {now[name]}")
    return sorted(changes)


def in_words(changes: Sequence[str]) -> str:
    """Return the first ten changes, and how many more there are."""
    more = f" and {len(changes) - MAX_NAMED} more" if len(changes) > MAX_NAMED else ""
    return f"{'; '.join(changes[:MAX_NAMED])}{more}"
