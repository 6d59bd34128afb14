"""Takes in the weights of a torch model that were trained elsewhere: a file of safetensors with the tensors of the family's module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from safetensors.torch import load_file, save

from training.engine.checkpoint.chunks import whole_tensor
from training.engine.checkpoint.safetensors_import import check_tensors, read_header
from training.errors import DataError
from training.models.base import FitResult, ImportedArtifact

if TYPE_CHECKING:
    from training.models.torch_family import TorchFamily

NAME: Final = "the file"
MAX_NAMED: Final = 10


def imported_weights(family: TorchFamily, artifact: ImportedArtifact) -> FitResult:
    """Return the weights as `weights.safetensors`, of the module that the family builds for the pipeline's input.

    Raises:
        DataError: `weights.unreadable`; `weights.other`, every tensor that is missing, too many, or of another shape or dtype;
            `weights.not_finite`.
    """
    architecture = family.architecture_of(artifact.spec, artifact.features)
    state = family.build(architecture).state_dict()
    wanted = {name: whole_tensor(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), 0) for name, tensor in state.items()}
    with artifact.path.open("rb") as file:
        found, _ = read_header(NAME, file, artifact.path.stat().st_size)
    hint = "train the class of train.model with the settings of the YAML, on the cells of the transforms.json that the model is to have"
    check_tensors(NAME, found, wanted, hint=hint)
    weights = load_file(artifact.path)
    infinite = [name for name, tensor in sorted(weights.items()) if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())]
    if infinite:
        more = f" and {len(infinite) - MAX_NAMED} more" if len(infinite) > MAX_NAMED else ""
        message = f"{NAME} has numbers that are not finite: {', '.join(infinite[:MAX_NAMED])}{more}"
        raise DataError("weights.not_finite", message, hint="its training diverged")
    return FitResult(
        weights_name="weights.safetensors",
        weights=save({name: tensor.contiguous() for name, tensor in sorted(weights.items())}),
        architecture=architecture,
    )
