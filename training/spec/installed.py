"""What installed distributions add by entry points: packages by name, and their descriptors. Names are looked up without an import."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import TypeVar

from training.errors import Problem, SpecError, shown

Descriptor = TypeVar("Descriptor")


@functools.cache
def installed_packages(group: str, built_in: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Return name to package of the entry points of a group, `nightshift.families`.

    Args:
        group: as distributions name it.
        built_in: names that none of them may have.

    Raises:
        SpecError: `entry_point.ambiguous`, two have one name, or it is a built-in one; `entry_point.value`, one names no module.
    """
    packages = dict.fromkeys(built_in, "training")
    found = {}
    for point in sorted(importlib.metadata.entry_points(group=group)):
        module = _module_of(point, group)
        other = packages.setdefault(point.name, module)
        if other != module:
            message = f"{shown(point.name)} of the group {group} is in {other} and in {module}"
            problem = Problem(code="entry_point.ambiguous", message=message, hint="rename or remove one of the entry points")
            raise SpecError("entry points", [problem])
        found[point.name] = module
    return found


def _module_of(point: importlib.metadata.EntryPoint, group: str) -> str:
    try:
        return point.module
    except (AttributeError, ValueError):
        # Its value is not of the form that entry points have.
        owner = point.dist.name if point.dist is not None else "a distribution"
        message = f"{shown(point.name)} of the group {group}, by {owner}, is {shown(point.value)}, which names no module"
        problem = Problem(code="entry_point.value", message=message, hint="name a module, or uninstall the distribution")
        raise SpecError("entry points", [problem]) from None


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
