"""What is tried of a space where nothing is drawn: a grid's combinations, and given settings as far as they lie in it. Light."""

from __future__ import annotations

import random
from typing import Any

from training.contracts import JsonObject, JsonValue
from training.spec.rules.tuning import SETTINGS, can_be
from training.spec.sections.train import Train
from training.spec.sections.tuning import SearchSpace, Tune

Settings = dict[str, JsonValue]
"""Parameter to value; a family's own as `settings.max_depth`."""

_ABSENT: Any = object()


def num_trials(tune: Tune) -> int:
    """Return how many trials the study is to have: a grid has no more than its combinations."""
    return min(tune.trials, len(grid(tune))) if tune.sampler == "grid" else tune.trials


def grid(tune: Tune) -> list[Settings]:
    """Return every combination once, in an order that the study's seed shuffles: any first part of it is a fair sample."""
    found: list[Settings] = [{}]
    for name in tune.in_order():
        values = _grid_values(tune.space[name])
        found = [
            {**settings, name: value} if value is not _ABSENT else settings
            for settings in found
            for value in (values if is_searched(tune.space[name], settings) else [_ABSENT])
        ]
    random.Random(tune.seed).shuffle(found)  # noqa: S311 - an order, no secret
    return found


def project(train: Train, tune: Tune) -> Settings:
    """Return what of a training's settings lies in the space; what does not is left to be drawn."""
    values = {**train.model_dump(mode="json", by_alias=True), **{SETTINGS + name: value for name, value in train.settings.items()}}
    settings: Settings = {}
    for name in tune.in_order():
        space = tune.space[name]
        value = values.get(name)
        if value is not None and is_searched(space, settings) and can_be(space, value):
            settings[name] = value
    return settings


def is_searched(space: SearchSpace, settings: JsonObject) -> bool:
    """Return whether a parameter's conditions hold."""
    return all(other in settings and settings[other] == value for other, value in space.when.items())


def _grid_values(space: SearchSpace) -> list[Any]:
    if space.choices is not None:
        return list(space.choices)
    low, high = space.bounds
    step = space.step or 1
    count = int((high - low) / step + 1e-9) + 1
    values = [low + number * step for number in range(count)]
    return [int(value) for value in values] if space.int_ is not None else values
