"""Which strategy a training uses: the one place that knows the members of this folder."""

from __future__ import annotations

from training.engine.parallel.alone import Alone
from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import Strategy
from training.engine.precision import choose_precision


def strategy_for(gang: Gang | Alone, *, precision: str) -> Strategy:
    """Return how the processes of a gang train a torch module.

    Args:
        gang: of torch processes.
        precision: `train.precision` of the spec.

    Raises:
        TypeError: the gang is one of a family without torch.
        SpecError: `precision.unsupported`.
    """
    if not isinstance(gang, Gang):
        raise TypeError(f"a torch family trains in a Gang, not in a {type(gang).__name__}")
    return ReplicatedModel(gang, precision=choose_precision(precision, gang.device))
