"""From a spec's space to Optuna's distributions, and to a trial's settings."""

from __future__ import annotations

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from training.contracts import JsonObject
from training.spec.sections.tuning import SearchSpace, Tune
from training.tuning.settings import Settings, is_searched


def distribution_of(space: SearchSpace) -> BaseDistribution:
    """Return what Optuna draws a parameter from."""
    if space.choices is not None:
        return CategoricalDistribution(space.choices)
    low, high = space.bounds
    if space.int_ is not None:
        return IntDistribution(low, high, log=space.log, step=int(space.step or 1))
    return FloatDistribution(low, high, log=space.log, step=space.step)


def distributions_of(tune: Tune, settings: JsonObject) -> dict[str, BaseDistribution]:
    """Return the distribution of each of a trial's settings."""
    return {name: distribution_of(tune.space[name]) for name in settings}


def suggest(trial: BaseTrial, tune: Tune) -> Settings:
    """Return a trial's settings: those whose conditions hold, each drawn after what it depends on."""
    settings: Settings = {}
    for name in tune.in_order():
        if not is_searched(tune.space[name], settings):
            continue
        # `suggest_*` by kind is the only public way to draw from a distribution.
        drawn = distribution_of(tune.space[name])
        if isinstance(drawn, CategoricalDistribution):
            settings[name] = trial.suggest_categorical(name, drawn.choices)
        elif isinstance(drawn, IntDistribution):
            settings[name] = trial.suggest_int(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        elif isinstance(drawn, FloatDistribution):
            settings[name] = trial.suggest_float(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
    return settings
