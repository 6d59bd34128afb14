"""Which strategy a training of a torch module uses. A training of whole models imports none of `training.large`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from torch import nn

from training.engine.parallel.ddp import ReplicatedModel
from training.engine.parallel.gang import Gang
from training.engine.parallel.single_process import Alone
from training.engine.parallel.strategy import Strategy
from training.engine.precision import choose_precision
from training.spec.layout import Layout

if TYPE_CHECKING:
    from training.large.compression import Compression
    from training.large.pipeline_cut import Cut
    from training.large.tensor_plan import TensorPlan


def strategy_for(
    gang: Gang | Alone,
    *,
    precision: str,
    layout: Layout | None = None,
    compression: Compression | None = None,
    tensor_plan: Callable[[nn.Module], TensorPlan] | None = None,
    cut: Cut | None = None,
    schedule: Literal["gpipe", "1f1b"] = "1f1b",
) -> Strategy:
    """Return how the processes of a gang train a torch module.

    Args:
        gang: of torch processes.
        layout: of as many processes as the gang has; None: each has the whole model.
        precision: `train.precision` of the spec.
        compression: of the gradients of processes that each have the whole model.
        tensor_plan: of a module, how its layers are divided; needed where the layout divides them.
        cut: of a module and a number of stages, the stages; needed where the layout has a pipeline.
        schedule: of the pipeline; both give the same bits.

    Raises:
        TypeError: the gang is one of a family without torch.
        ValueError: the layout needs a plan or a cut that is missing.
        SpecError: `precision.unsupported`.
    """
    if not isinstance(gang, Gang):
        raise TypeError(f"a torch family trains in a Gang, not in a {type(gang).__name__}")
    chosen = choose_precision(precision, gang.device)
    if layout is None or layout.is_replicated:
        return ReplicatedModel(gang, precision=chosen, compress_gradients=None if compression is None else compression.register_hook)
    if layout.pipeline > 1:
        from training.large.pipeline import PipelinedModel

        if cut is None:
            raise ValueError(f"the layout {layout.words()} needs a cut of the model into stages")
        return PipelinedModel(gang, layout, cut=cut, schedule=schedule, precision=chosen)
    # Also for `tensor` with one shard: DistributedDataParallel takes the parts of divided layers for whole tensors (docs/decisions.md).
    # Imported here: FSDP2 and device meshes cost seconds, which a training of whole models need not pay.
    from training.large.sharded import ShardedModel

    return ShardedModel(gang, layout, precision=chosen, tensor_plan=tensor_plan)
