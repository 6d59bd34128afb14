"""The registry of model families: which there are, and their descriptors.

A family is a package with a light `family.py` (its `DESCRIPTOR`) and a `module.py` (its `FAMILY`): a folder of training/models/, or what an
entry point of the group `nightshift.families` names. A name is looked up without an import; a descriptor is imported when a spec names its
family, a module by what trains or scores. DAG files come here.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from training.contracts import JsonValue
from training.errors import Problem, SpecError, shown
from training.installation import MODEL_PACKAGES
from training.spec.family import FamilyDescriptor
from training.spec.gates import installed_gates
from training.spec.installed import Installed, installed_descriptor, installed_packages
from training.spec.metrics import installed_metrics
from training.spec.source_kinds import installed_sources

logger = logging.getLogger(__name__)

MODELS_FOLDER: Final = Path(__file__).resolve().parent.parent / "models"
ENTRY_POINTS: Final = "nightshift.families"
"""Group of entry points; name: of the family, value: its package."""

IMPORTED_ONLY: Final = frozenset({"onnx"})
"""Families whose models come from outside alone: no YAML names one."""

_OWN_MODEL = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@functools.cache
def built_in_families(folder: Path = MODELS_FOLDER) -> tuple[str, ...]:
    """Return the families of training/models/, sorted: its folders that have a `family.py`."""
    return tuple(sorted(path.parent.name for path in folder.glob("[!_]*/family.py")))


def installed_families() -> Installed:
    """Return the families that installed distributions add."""
    return installed_packages(ENTRY_POINTS, built_in_families())


def known_families() -> tuple[str, ...]:
    """Return the names that `train.model` may have, besides classes of allowed packages, sorted."""
    return tuple(sorted({*built_in_families(), *installed_families().packages} - IMPORTED_ONLY))


def package_of(name: str) -> str | None:
    """Return the package of a family by its name, None where there is none.

    Raises:
        SpecError: `entry_point.ambiguous`, `entry_point.value`: the entry point of that name is broken.
    """
    return f"training.models.{name}" if name in built_in_families() else installed_families().package_of(name)


def place_of(model: str) -> tuple[str, str]:
    """Return (module, name in it) of what fits and scores: of a family, or of a `package.module:Class`.

    Raises:
        SpecError: `model.unknown`.
    """
    if ":" in model:
        module, _, name = model.partition(":")
        return module, name
    package = package_of(model)
    if package is None:
        known = ", ".join(known_families())
        problem = Problem(code="model.unknown", message=f"there is no model {shown(model)}", hint=f"known: {known}")
        raise SpecError("train.model", [problem])
    return f"{package}.module", "FAMILY"


@functools.cache
def descriptor_of(model: str) -> FamilyDescriptor | None:
    """Return what a family says of itself; None for a class of a user's own, and for a family that is not installed.

    Raises:
        SpecError: `model.descriptor`, its `family.py` cannot be imported or has no `DESCRIPTOR`.
    """
    package = None if ":" in model else package_of(model)
    if package is None:
        return None
    return installed_descriptor(model, f"{package}.family", FamilyDescriptor, code="model.descriptor")


def usable_families() -> Mapping[str, FamilyDescriptor]:
    """Return the descriptors of all known families, by name; those that cannot be imported are left out, with a warning.

    For what concerns no one family: a spec that names a broken one is refused by `descriptor_of`.
    """
    found = {}
    for name in known_families():
        try:
            descriptor = descriptor_of(name)
        except SpecError as err:
            logger.warning("family %s is left out: %s", name, err)
            continue
        if descriptor is not None:
            found[name] = descriptor
    return found


def own_packages(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the packages whose classes a YAML may name: those of the variable, and those that entry points name."""
    named = tuple(name for part in MODEL_PACKAGES.text(environ).split(",") if (name := part.strip()))
    installed = (installed_families(), installed_metrics(), installed_sources(), installed_gates())
    added = [package for found in installed for package in found.packages.values()]
    return tuple(dict.fromkeys([*named, *(package.partition(".")[0] for package in added)]))


def is_own(place: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `place` is a `package.module:name` of an allowed package."""
    match = _OWN_MODEL.fullmatch(place)
    return match is not None and match["package"] in own_packages(environ)


def is_allowed(model: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `model` is a known family, or a `package.module:Class` of an allowed package."""
    match = _OWN_MODEL.fullmatch(model)
    return package_of(model) is not None if match is None else match["package"] in own_packages(environ)


def with_defaults(model: object, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return `settings` with the family's defaults filled in; unchanged where they are wrong, or the family has no descriptor here."""
    descriptor = descriptor_of(model) if isinstance(model, str) else None
    if descriptor is None:
        return settings
    try:
        return descriptor.settings.model_validate(settings).model_dump(mode="json")
    except ValidationError:
        return settings
