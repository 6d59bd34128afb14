"""Rules about the section `tune`: that what is searched are settings that the training would take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from training.spec.descriptors.families import FAMILIES
from training.spec.descriptors.metrics import is_zero_best, metrics_of
from training.spec.reader.problems import nearest, problems_of
from training.spec.reader.yaml import Document, Path
from training.spec.rules.rule_problems import Violation
from training.spec.rules.training import no_direction, optimizer_fits, placement_fits
from training.spec.scalar_types import in_yaml
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.train import Train
from training.spec.sections.tuning import SearchSpace, Tune

SETTINGS: Final = "settings."
SEARCHED: Final = ("epochs", "batch_size", "learning_rate", "weight_decay", "warmup_steps", "early_stopping")
"""Keys of `train` that a study may change; a family's own besides."""
MAX_GRID: Final = 100_000
VALIDATION_LOSS: Final = "validation_loss"


def parameters_fit(tune: Tune | None, train: Train) -> Iterator[Violation]:
    """Yield a violation for each searched key that the training does not have, and for each bound that it would not take."""
    if tune is None:
        return
    known = known_parameters(train)
    for name, space in tune.space.items():
        path: Path = ("tune", "space", name)
        facts = FAMILIES.get(train.model)
        is_open = facts is None or (facts.takes_other_settings and name.removeprefix(SETTINGS) not in facts.yaml_settings)
        if facts is not None and name in facts.ignored_keys:
            yield Violation(path, "field.conflict", f"{name} has no effect on {train.model}", "leave it out")
        elif name not in known and not (is_open and name.startswith(SETTINGS) and len(name) > len(SETTINGS)):
            yield Violation(
                path,
                "tune.unknown_param",
                f"{in_yaml(name)} is not a setting of {train.model} that can be searched",
                nearest(name, known),
            )
        else:
            yield from _values_fit(path, name, space, train)


def known_parameters(train: Train) -> list[str]:
    """Return the names that a space may have: keys of `train`, and `settings.<name>` for each of the family's own."""
    facts = FAMILIES.get(train.model)
    if facts is None:
        return [*SEARCHED, *(SETTINGS + name for name in train.settings)]
    # Of an estimator, the parameters that the YAML has.
    own = dict.fromkeys([*facts.settings.model_fields, *(train.settings if facts.takes_other_settings else ())])
    settings = [SETTINGS + name for name in own if name not in facts.yaml_settings]
    return [*(key for key in SEARCHED if key not in facts.ignored_keys), *settings]


def with_settings(train: Train, settings: Mapping[str, object]) -> Train:
    """Return the section with searched settings in it: keys of `train`, a family's own as `settings.max_depth`.

    Raises:
        pydantic.ValidationError: a value that `train` does not take.
    """
    values = train.model_dump(mode="json", by_alias=True)
    for name, value in settings.items():
        if name.startswith(SETTINGS):
            values["settings"][name.removeprefix(SETTINGS)] = value
        else:
            values[name] = value
    return Train.model_validate(values)


def _values_fit(path: Path, name: str, space: SearchSpace, train: Train) -> Iterator[Violation]:
    """What lies between two bounds that are taken is taken too, but for what must be shared evenly by the processes."""
    values = space.choices if space.choices is not None else space.bounds
    for value in values:
        for message, hint in _objections(name, value, train):
            yield Violation(path, "tune.value", f"{in_yaml(value)} is not a value of train.{name}: {message}", hint)
            return
    world_size = train.placement.world_size
    if name == "batch_size" and space.int_ is not None and (space.step or 1) % world_size:
        message = f"values between {in_yaml(space.int_[0])} and {in_yaml(space.int_[1])} cannot be shared by {world_size} processes"
        yield Violation(path, "tune.value", message, f"set step to {world_size}, or give choices")


def _objections(name: str, value: Any, train: Train) -> Iterator[tuple[str, str]]:
    try:
        changed = with_settings(train, {name: value})
        facts = FAMILIES.get(train.model)
        if facts is not None:
            facts.settings.model_validate(changed.settings)
    except ValidationError as err:
        for problem in problems_of(err, Train, Document(value={})):
            yield problem.message, problem.hint
        return
    for violation in placement_fits(changed):
        if violation.path[-1] == name:
            yield violation.message, violation.hint
    known = set(optimizer_fits(train))
    yield from ((violation.message, violation.hint) for violation in optimizer_fits(changed) if violation not in known)


def conditions_fit(tune: Tune | None) -> Iterator[Violation]:
    """Yield a violation for each condition on a parameter that is not searched, or on a value that it never has."""
    if tune is None:
        return
    for name, space in tune.space.items():
        for other, value in space.when.items():
            path: Path = ("tune", "space", name, "when", other)
            if other == name or other not in tune.space:
                others = [key for key in tune.space if key != name]
                yield Violation(path, "tune.unknown_param", f"{in_yaml(other)} is no other parameter of the space", nearest(other, others))
            elif not can_be(tune.space[other], value):
                yield Violation(path, "tune.condition", f"{other} is never {in_yaml(value)}", "name one of its values")
    circle = sorted(set(tune.space) - set(tune.in_order()))
    if circle:
        message = f"conditions go in a circle among {', '.join(circle)}"
        yield Violation(("tune", "space", circle[0], "when"), "tune.condition", message, "take one of them out")


def can_be(space: SearchSpace, value: Any) -> bool:
    """Return whether a parameter may have a value; true and 1 are two values."""
    if space.choices is not None:
        return any(choice == value and isinstance(choice, bool) == isinstance(value, bool) for choice in space.choices)
    low, high = space.bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return False
    if space.int_ is not None and value != int(value):
        return False
    return space.step is None or abs((value - low) / space.step - round((value - low) / space.step)) < 1e-9


def grid_is_finite(tune: Tune | None) -> Iterator[Violation]:
    """Yield a violation for each parameter of a grid that has no list of values."""
    if tune is None or tune.sampler != "grid":
        return
    for name, space in tune.space.items():
        if space.choices is None and space.step is None:
            hint = "give choices or a step, or another sampler"
            yield Violation(("tune", "space", name), "tune.grid", f"a grid needs {name}'s values", hint)
            return
    size = math.prod(_num_values(space) for space in tune.space.values())
    if size > MAX_GRID:
        message = f"the grid has {size:,} combinations, at most {MAX_GRID:,} are listed"
        yield Violation(("tune", "space"), "tune.grid", message, "fewer values, or another sampler")


def _num_values(space: SearchSpace) -> int:
    if space.choices is not None:
        return len(space.choices)
    low, high = space.bounds
    return int((high - low) / (space.step or 1)) + 1


def study_fits_its_gpus(tune: Tune | None, train: Train) -> Iterator[Violation]:
    """Yield a violation where a single trial has more GPUs than all of them may have."""
    if tune is None or tune.gpus is None:
        return
    asked = train.placement.gpus * train.placement.nodes
    if asked > tune.gpus:
        message = f"one trial has {asked} GPUs (train.placement), all together may have {tune.gpus}"
        yield Violation(("tune", "gpus"), "resources.gpus", message, f"at least {asked}, or none for no limit")


def objective_exists(tune: Tune | None, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where the objective is neither the validation loss nor a metric of the task, or one that is best at 0."""
    if tune is None or tune.objective == VALIDATION_LOSS:
        return
    if evaluate.is_metric(tune.objective):
        if is_zero_best(tune.objective):
            yield no_direction(("tune", "objective"), tune.objective)
        return
    known = [VALIDATION_LOSS, *metrics_of(evaluate.task), *evaluate.metrics]
    message = f"the task {evaluate.task} has no metric {in_yaml(tune.objective)}"
    yield Violation(("tune", "objective"), "metric.unknown", message, nearest(tune.objective, known))
