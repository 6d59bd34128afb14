"""Refit: fits the model that `train` found once more, on the train and validation rows, for as many epochs.

python -m training.stages.refit REQUEST_URI
torchrun --nproc-per-node=2 --max-restarts=0 -m training.stages.refit REQUEST_URI
"""

from __future__ import annotations

from training.runtime.runner import StageContext, StageOutput, main
from training.stages.train import fitted_model


def work(context: StageContext) -> StageOutput:
    """Fit `inputs["model"]` again on `inputs["dataset"]`; on ranks other than the first the output is of no account."""
    return fitted_model(context, context.input("model"))


if __name__ == "__main__":
    main(work, polls_stop=True)
