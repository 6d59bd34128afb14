"""Registries: what a spec can name of one kind (families, metrics, gates, sources of data, backends), and where each is.

This repository has some of a kind; entry points of installed distributions add others. A name is looked up without an import. A descriptor
is imported when a spec names it, what implements it by what uses it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from training.errors import Problem, SpecError, shown, spec_error
from training.spec.scalar_types import Section, Setting

logger = logging.getLogger(__name__)

Descriptor = TypeVar("Descriptor")


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry(Generic[Descriptor]):
    """All things of one kind that a spec can name."""

    group: str
    """Of entry points, `nightshift.families`; name: of the thing, value: its package or module."""
    built_in: Mapping[str, Descriptor | str]
    """Name to descriptor, or to the value that an entry point would have, of those of this repository."""
    reserved: tuple[str, ...] = ()
    """Further names that no distribution may use."""
    descriptor_at: str
    """`module:attribute` of a descriptor; `{}` stands for the value of the entry point."""
    implementation_at: str = ""
    """The same of what implements it."""
    fits: Callable[[Any], bool]
    """Whether an object is a descriptor."""
    code: str
    """Of the error of a descriptor that cannot be imported, or does not fit."""
    hint: str
    """Of the same error."""

    @property
    def added(self) -> Mapping[str, str]:
        """Name to value of the entry points of installed distributions that can be used."""
        return self._installed()[0]

    @property
    def left_out(self) -> Mapping[str, Problem]:
        """Name to fault of the entry points of installed distributions that cannot be used."""
        return self._installed()[1]

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self.built_in, *self.added}))

    def package_of(self, name: str) -> str | None:
        """Return the value of the entry point of a name, None where no distribution has it, or this repository has it as a descriptor.

        Raises:
            SpecError: `entry_point.ambiguous`, two distributions have the name; `entry_point.value`, it names no module. Only a spec that
                names it is refused.
        """
        if (own := self.built_in.get(name)) is not None:
            return own if isinstance(own, str) else None
        sound, broken = self._installed()
        if name in broken:
            raise SpecError("entry points", [broken[name]])
        return sound.get(name)

    def get(self, name: str) -> Descriptor | None:
        """Return the descriptor of a name, None where there is none.

        Raises:
            SpecError: `code`; as `package_of`.
        """
        own = self.built_in.get(name)
        if own is not None and not isinstance(own, str):
            return own
        if (place := self.package_of(name)) is None:
            return None
        found: Descriptor = imported(name, self.descriptor_at.format(place), self.fits, code=self.code, hint=self.hint)
        return found

    def implementation_of(self, name: str) -> str:
        """Return the `module:attribute` of what implements a name that an installed distribution adds.

        Raises:
            SpecError: as `package_of`.
        """
        return self.implementation_at.format(self.package_of(name))

    def usable(self) -> Mapping[str, Descriptor]:
        """Return all descriptors by name, sorted; those that cannot be imported are left out, with a warning.

        For what concerns no single one: a spec that names a broken one is refused by `get`.
        """
        found = {}
        for name in self.names():
            try:
                descriptor = self.get(name)
            except SpecError as err:
                logger.warning("%s is left out: %s", name, err)
                continue
            if descriptor is not None:
                found[name] = descriptor
        return found

    def _installed(self) -> tuple[Mapping[str, str], Mapping[str, Problem]]:
        # What is in a package has names of its own: an attribute beside the package says nothing.
        return installed(self.group, (*self.built_in, *self.reserved), has_attribute=self.descriptor_at == "{}")

    def modules_of(self, name: str) -> set[str]:
        """Return the modules of the descriptor and the implementation that a distribution adds; none for a name of this repository."""
        place = None if name in self.built_in else self.package_of(name)
        return set() if place is None else {at.format(place).partition(":")[0] for at in (self.descriptor_at, self.implementation_at)}


@functools.cache
def installed(group: str, taken: tuple[str, ...], *, has_attribute: bool) -> tuple[Mapping[str, str], Mapping[str, Problem]]:
    """Return the entry points of a group: name to value of those that can be used, name to fault of the others, which are logged.

    Args:
        taken: names that none of them may have; one that has it anyway is left out.
        has_attribute: whether a value is a `module:attribute`; else it is the module alone.
    """
    values: dict[str, dict[str, None]] = {name: {"training": None} for name in taken}
    broken: dict[str, Problem] = {}
    for point in sorted(importlib.metadata.entry_points(group=group)):
        try:
            value = ":".join(filter(None, (point.module, point.attr))) if has_attribute else point.module
            values.setdefault(point.name, {})[value] = None
        except (AttributeError, ValueError):
            # Its value is not of the form that entry points have.
            owner = point.dist.name if point.dist is not None else "a distribution"
            message = f"{shown(point.name)} of the group {group}, by {owner}, is {shown(point.value)}, which names no module"
            broken[point.name] = Problem(code="entry_point.value", message=message, hint="name a module, or uninstall the distribution")
    for name, places in values.items():
        if len(places) > 1:
            message = f"{shown(name)} of the group {group} is in {' and in '.join(places)}"
            hint = "rename the entry point: the name is Nightshift's" if name in taken else "rename or remove one of the entry points"
            broken[name] = Problem(code="entry_point.ambiguous", message=message, hint=hint)
    for problem in broken.values():
        logger.warning("left out: %s (%s)", problem.message, problem.hint)
    return {name: next(iter(places)) for name, places in values.items() if places and name not in {*taken, *broken}}, broken


def imported(name: str, place: str, fits: Callable[[Any], bool], *, code: str, hint: str) -> Any:
    """Import what `place`, a `module:attribute`, has for a name.

    Raises:
        SpecError: `code`, it cannot be imported, or does not fit.
    """
    module, _, attribute = place.partition(":")
    cause: BaseException | None = None
    try:
        found = getattr(importlib.import_module(module), attribute, None)
        reason = f"its {attribute} is a {type(found).__name__}"
    except (Exception, SystemExit) as err:
        found, cause, reason = None, err, f"{type(err).__name__}: {err}"
        if not isinstance(err, ImportError):
            logger.warning("%s cannot be imported", module, exc_info=True)
    if found is not None and fits(found):
        return found
    message = f"{name} has no {attribute} in {module}: {reason}"
    raise spec_error(module, code, message, hint=hint) from cause


def with_defaults(section: type[Section], settings: dict[str, Setting]) -> dict[str, Setting]:
    """Return `settings` with the defaults of their section filled in; unchanged where they are wrong."""
    try:
        return section.model_validate(settings).model_dump(mode="json")
    except ValidationError:
        return settings
