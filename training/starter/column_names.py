"""Identifiers for the columns of a file: a name that is one stays, another one becomes a readable one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Final

from training.spec.rules.names import ENGINE_COLUMNS
from training.spec.scalar_types import COLUMN_RULE

MAX_LENGTH: Final = 100
LETTERS: Final = {"ß": "ss", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "þ": "th", "œ": "oe", "%": " percent ", "&": " and ", "#": " no "}
"""Without a plain letter by Unicode's own rules."""
LABEL: Final = "label"
"""The joined frame calls the label so: no other column may have this name."""


def identifiers(names: Sequence[str], *, label: str) -> list[str]:
    """Return an identifier for each name, all of them different by more than case.

    Args:
        names: of the columns in the file, all different.
        label: name of the column with the label.
    """
    taken = set(ENGINE_COLUMNS)
    # Names that are identifiers keep them, also where they come after one that would become the same.
    kept = {}
    for name in names:
        is_free = name.lower() not in taken and (name.lower() != LABEL or name == label)
        if re.fullmatch(COLUMN_RULE, name, re.ASCII) and is_free:
            kept[name] = name
            taken.add(name.lower())
    taken.add(LABEL)
    found = []
    for position, name in enumerate(names, start=1):
        if name not in kept:
            kept[name] = free(_readable(name, position), taken)
            taken.add(kept[name].lower())
        found.append(kept[name])
    return found


def free(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number where it is one of `taken`, which are in small letters."""
    number, found = 1, name
    while found.lower() in taken:
        number += 1
        found = f"{name}_{number}"
    return found


def _readable(name: str, position: int) -> str:
    plain = "".join(LETTERS.get(letter, letter) for letter in name.lower())
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode("ascii")
    found = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")[:MAX_LENGTH]
    if not found:
        # As pandas writes the index of a frame.
        return "row" if position == 1 and not name.strip() else f"column_{position}"
    return found if found[0].isalpha() else f"column_{found}"
