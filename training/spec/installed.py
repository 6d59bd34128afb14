"""What installed distributions add by entry points: packages by name, and their descriptors. Names are looked up without an import."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from training.errors import Problem, SpecError, shown

logger = logging.getLogger(__name__)

Descriptor = TypeVar("Descriptor")


@dataclass(frozen=True, slots=True)
class Installed:
    """The entry points of a group."""

    packages: Mapping[str, str]
    """Name to package of those that can be used."""
    broken: Mapping[str, Problem]
    """Name to its fault. Only a spec that names it is refused."""

    def package_of(self, name: str) -> str | None:
        """Return the package of a name, None where no distribution has it.

        Raises:
            SpecError: `entry_point.ambiguous`, two distributions have the name; `entry_point.value`, it names no module.
        """
        if name in self.broken:
            raise SpecError("entry points", [self.broken[name]])
        return self.packages.get(name)


@functools.cache
def installed_packages(group: str, built_in: tuple[str, ...] = ()) -> Installed:
    """Return the entry points of a group, `nightshift.families`; the broken ones are logged.

    Args:
        group: of the entry points.
        built_in: names that none of them may have; one that has it anyway is left out.
    """
    places: dict[str, dict[str, None]] = {name: {"training": None} for name in built_in}
    broken: dict[str, Problem] = {}
    for point in sorted(importlib.metadata.entry_points(group=group)):
        try:
            places.setdefault(point.name, {})[point.module] = None
        except (AttributeError, ValueError):
            # Its value is not of the form that entry points have.
            owner = point.dist.name if point.dist is not None else "a distribution"
            message = f"{shown(point.name)} of the group {group}, by {owner}, is {shown(point.value)}, which names no module"
            broken[point.name] = Problem(code="entry_point.value", message=message, hint="name a module, or uninstall the distribution")
    for name, modules in places.items():
        if len(modules) > 1:
            message = f"{shown(name)} of the group {group} is in {' and in '.join(modules)}"
            broken[name] = Problem(code="entry_point.ambiguous", message=message, hint="rename or remove one of the entry points")
    for problem in broken.values():
        logger.warning("%s is left out (%s)", problem.message, problem.hint)
    sound = {name: next(iter(modules)) for name, modules in places.items() if modules and name not in {*built_in, *broken}}
    return Installed(sound, broken)


def installed_descriptor(name: str, module: str, kind: type[Descriptor], *, code: str) -> Descriptor:
    """Import `DESCRIPTOR` of a light module.

    Args:
        name: of what it describes.
        module: full name.
        kind: class that it must be of.
        code: of the error.

    Raises:
        SpecError: it cannot be imported, or is of another class.
    """
    try:
        found = getattr(importlib.import_module(module), "DESCRIPTOR", None)
        reason = f"its DESCRIPTOR is a {type(found).__name__}"
    except (Exception, SystemExit) as err:
        found, reason = None, f"{type(err).__name__}: {err}"
    if isinstance(found, kind):
        return found
    message = f"{name} has no descriptor in {module}: {reason}"
    hint = f"assign DESCRIPTOR = {kind.__module__}.{kind.__name__}(...)"
    raise SpecError(module, [Problem(code=code, message=message, hint=hint)])
