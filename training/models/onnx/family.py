"""The descriptor of `onnx`, which no YAML names: models of it come from outside (`training.spec.registration`)."""

from __future__ import annotations

from typing import Final

from training.spec.descriptors.families import NEURAL_ONLY, FamilyDescriptor
from training.spec.scalar_types import Section


class OnnxSettings(Section):
    """Of `onnx`: none, the file has all of it."""


DESCRIPTOR: Final = FamilyDescriptor(
    settings=OnnxSettings,
    tasks=("binary", "multiclass", "regression", "ranking"),
    libraries=("onnxruntime",),
    distributed=False,
    ignored_keys=NEURAL_ONLY,
    uses_gpus=False,
    uses_torch=False,
    outside_format="onnx",
    is_trained=False,
)
