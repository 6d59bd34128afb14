"""How the layers of a model are divided over the processes of a tensor group, in words that a family writes.

A plan names modules and says of each how it is divided. What reaches a layer and what leaves it is one of

* `whole`: every process has all of it,
* `features`: every process has a part of the last dimension,
* `sequence`: every process has a part of the rows' positions, dimension 1 of [rows, positions, features].

A layer that no entry names is computed by every process alike, from what is `whole` (Shoeybi et al., Megatron-LM, 2019; with parts of the
sequence between the divided layers: Korthikanti et al., 2022).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from torch import nn

from training.errors import Problem, SpecError, spec_error

Kind = Literal["column", "row", "sequence", "features", "gather"]
Extent = Literal["whole", "features", "sequence"]


@dataclass(frozen=True, slots=True)
class Division:
    """How one module is divided.

    `column`: a Linear by its outputs, an Embedding by the width of its vectors. `row`: a Linear by its inputs, an Embedding by its ids.
    `sequence`: a LayerNorm, RMSNorm or Dropout that works on a part of the sequence. `features`: a Dropout that works on a part of the
    features. `gather`: a module of any type whose first input is put together from the parts of the sequence, once for all layers in it.
    """

    kind: Kind
    takes: Extent | None = None
    """What reaches it; None: `whole` for `column` and an Embedding, `features` for a Linear by `row`, else what the kind says."""
    gives: Extent | None = None
    """What leaves it; None: `features` for `column`, `whole` for `row`, else what the kind says."""
    unit: int = 1
    """Features that stay together, such as those of an attention head: each process has a multiple of it."""


TensorPlan = Mapping[str, Division | Kind]
"""By the name of a module as `named_modules` has it; `*` stands for one part of a name: `blocks.*.up`."""

HINT: Final = "correct tensor_plan of the class; docs/large-models.md has an example"


def no_plan(model: str) -> SpecError:
    """Return the refusal of a model that has no plan."""
    message = f"parallel.tensor divides layers, and {model} does not say how (its tensor_plan returns None)"
    hint = "write the method tensor_plan of the class (docs/large-models.md); or use parallel.shard, which needs none"
    return spec_error("train.parallel", "parallel.no_tensor_plan", message, hint=hint, field="train.parallel.tensor")


def checked(module: nn.Module, plan: TensorPlan, size: int) -> dict[str, Division]:
    """Return the division of each module that a plan names, every default filled in.

    Args:
        size: processes over which layers are divided.

    Raises:
        SpecError: `parallel.tensor_plan`, one problem for each module that cannot be divided so.
    """
    modules = dict(module.named_modules())
    found: dict[str, Division] = {}
    wrong = [] if plan else ["the plan is empty"]
    for pattern, given in plan.items():
        expression = re.compile(r"[^.]+".join(re.escape(part) for part in pattern.split("*")))
        names = [name for name in modules if name and expression.fullmatch(name)]
        if not names:
            wrong.append(f"no module is named {pattern}")
        for name in names:
            if name in found:
                wrong.append(f"{name} is named by two entries, the second is {pattern}")
                continue
            division = given if isinstance(given, Division) else Division(given)
            found[name] = _filled(modules[name], division)
            reason = _reason_against(modules[name], found[name], size) or _reason_of_parent(modules.get(name.rpartition(".")[0]))
            if reason is not None:
                wrong.append(f"{name}: {reason}")
    if wrong:
        problems = [Problem(code="parallel.tensor_plan", field="train.parallel.tensor", message=text, hint=HINT) for text in wrong]
        raise SpecError("train.parallel", problems)
    return found


def _filled(layer: nn.Module, division: Division) -> Division:
    is_embedding = isinstance(layer, nn.Embedding)
    defaults: dict[str, tuple[Extent, Extent]] = {
        "column": ("whole", "features"),
        "row": ("whole" if is_embedding else "features", "whole"),
        "sequence": ("sequence", "sequence"),
        "features": ("features", "features"),
        "gather": ("sequence", "whole"),
    }
    takes, gives = defaults.get(division.kind, ("whole", "whole"))
    return Division(division.kind, division.takes or takes, division.gives or gives, division.unit)


WIDTHS: Final = {
    ("column", nn.Linear): "out_features",
    ("row", nn.Linear): "in_features",
    ("column", nn.Embedding): "embedding_dim",
    ("row", nn.Embedding): "num_embeddings",
}
"""The attribute of a layer that is divided."""


@dataclass(frozen=True, slots=True)
class Extents:
    """How far a plan divides a model."""

    most: int
    """Processes; each divisor of it is possible too. 1: the plan divides no layer."""
    divided_bytes: int
    """Of the parameters that are divided."""
    has_sequence: bool
    """Whether what is between the divided layers is divided too."""


def extents_of(module: nn.Module, plan: TensorPlan) -> Extents:
    """Return how far a plan divides a model.

    Raises:
        SpecError: `parallel.tensor_plan`.
    """
    divisions = checked(module, plan, 1)
    units: list[int] = []
    divided: dict[int, int] = {}
    for name, division in divisions.items():
        layer = module.get_submodule(name)
        attribute = next((found for (kind, known), found in WIDTHS.items() if division.kind == kind and isinstance(layer, known)), None)
        if attribute is None:
            continue
        units.append(getattr(layer, attribute) // division.unit)
        # The bias of a Linear that is divided by its inputs is added once, and whole.
        parameters = [layer.weight] if division.kind == "row" else list(layer.parameters())
        divided.update({id(parameter): parameter.numel() * parameter.element_size() for parameter in parameters})  # type: ignore[operator]
    has_sequence = any(division.kind == "sequence" for division in divisions.values())
    return Extents(math.gcd(*units) or 1, sum(divided.values()), has_sequence)


POSSIBLE: Final[Mapping[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]]] = {
    ("column", "Linear"): (("whole", "sequence"), ("features", "whole")),
    ("column", "Embedding"): (("whole",), ("features", "whole")),
    ("row", "Linear"): (("features", "whole"), ("whole", "sequence")),
    ("row", "Embedding"): (("whole",), ("whole", "sequence")),
    ("sequence", "LayerNorm"): (("sequence", "whole"), ("sequence", "whole")),
    ("sequence", "RMSNorm"): (("sequence", "whole"), ("sequence", "whole")),
    ("sequence", "Dropout"): (("sequence",), ("sequence",)),
    ("features", "Dropout"): (("features",), ("features",)),
}
"""What a layer of each kind may take and give. `gather` is for a module of any type."""

TYPES: Final = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)


def _reason_against(layer: nn.Module, division: Division, size: int) -> str | None:
    if division.kind == "gather":
        asked = (division.takes, division.gives)
        return None if asked == ("sequence", "whole") else "gather takes sequence and gives whole, nothing else"
    name = next((known.__name__ for known in TYPES if isinstance(layer, known)), None)
    possible = None if name is None else POSSIBLE.get((division.kind, name))
    if possible is None:
        types = ", ".join(known for kind, known in POSSIBLE if kind == division.kind)
        fits = f"is for {types}" if types else "is none of column, row, sequence, features, gather"
        return f"{division.kind} {fits}; this is a {type(layer).__name__}"
    for what, extent, allowed in (("takes", division.takes, possible[0]), ("gives", division.gives, possible[1])):
        if extent not in allowed:
            return f"{division.kind} of a {name} {what} {' or '.join(allowed)}, not {extent}"
    return _reason_of_size(layer, division, size) or _reason_of_options(layer, division.kind)


def _reason_of_size(layer: nn.Module, division: Division, size: int) -> str | None:
    for (kind, known), attribute in WIDTHS.items():
        if division.kind == kind and isinstance(layer, known) and getattr(layer, attribute) % (size * division.unit):
            by = f"tensor ({size})" if division.unit == 1 else f"unit * tensor ({division.unit} * {size} = {division.unit * size})"
            return f"{attribute} ({getattr(layer, attribute)}) must be divisible by {by}"
    return None


def _reason_of_options(layer: nn.Module, kind: Kind) -> str | None:
    if not isinstance(layer, nn.Embedding):
        return None
    options = {"max_norm": layer.max_norm, "sparse": layer.sparse or None, "scale_grad_by_freq": layer.scale_grad_by_freq or None}
    if kind == "row":
        # Each process would leave out the row of this number of its own part.
        options["padding_idx"] = layer.padding_idx
    used = [name for name, value in options.items() if value is not None]
    return f"an Embedding with {used[0]} cannot be divided by {kind}" if used else None


def _reason_of_parent(parent: nn.Module | None) -> str | None:
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention uses its weights as a whole; write the projections as Linear layers"
    return None
