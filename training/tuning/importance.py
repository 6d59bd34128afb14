"""Which settings mattered."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import optuna

from training.spec.sections.tuning import Tune
from training.tuning.records import TrialRecord
from training.tuning.study import in_memory

FEWEST: Final = 4
"""Complete trials below which nothing can be said."""


def importance_of(tune: Tune, records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return each searched setting's share of what separates the best trials from the others, largest first; empty where unknown.

    PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023), Optuna's default. Only settings that every complete trial has are compared:
    one that is searched under a condition is left out.
    """
    complete = [record for record in records if record.state == "complete"]
    names = [name for name in tune.space if all(name in record.settings for record in complete)]
    varied = [name for name in names if len({record.settings[name] for record in complete}) > 1]
    if len(complete) < FEWEST or not varied:
        return {}
    study = in_memory(tune, complete)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study, params=varied)
    return {name: round(float(share), 6) for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))}
