"""A neural ranker: embeddings of the ids, their pairwise products, the numbers, and a small perceptron.

Pairwise dot products of embeddings as in DLRM (Naumov et al., 2019); the loss is the listwise softmax cross entropy over
the rows of a group (ListNet's top-one form, Cao et al., 2007), or pairwise logistic (RankNet, Burges et al., 2005).
Features that a constant stands in for when scoring (the position shown) enter as a separate additive bias, so
that they explain clicks without deciding ranks (a two-tower position model, as in Zhao et al., 2019).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import torch
from torch import nn

from training.data.dataset.loader import Batch
from training.models.torch_family import TorchArchitecture, TorchFamily

if TYPE_CHECKING:
    from training.large.tensor_plan import Kind, TensorPlan


class RankerParameters(TypedDict):
    """`train.settings`, which `family.py` has checked."""

    embedding_dim: int
    hidden: list[int]
    dropout: NotRequired[float]
    loss: NotRequired[str]


class RankerModule(nn.Module):
    """[n] scores from a batch's `features_float` [n, floats] and `features_int` [n, ids]."""

    def __init__(self, architecture: TorchArchitecture) -> None:
        super().__init__()
        settings = cast(RankerParameters, architecture["settings"])
        bias = set(architecture["bias_features"])
        floats = [entry for entry in architecture["features"] if entry["dtype"] == "float32"]
        ids = [entry for entry in architecture["features"] if entry["dtype"] != "float32"]
        self._content_floats = [i for i, entry in enumerate(floats) if entry["name"] not in bias]
        self._content_ids = [i for i, entry in enumerate(ids) if entry["name"] not in bias]
        self._bias_ids = [i for i, entry in enumerate(ids) if entry["name"] in bias]
        dim = settings["embedding_dim"]
        self.embeddings = nn.ModuleList(nn.Embedding(max(1, ids[i]["cardinality"]), dim) for i in self._content_ids)
        self.offsets = nn.ModuleList(nn.Embedding(max(1, ids[i]["cardinality"]), 1) for i in [*self._content_ids, *self._bias_ids])
        for table in self.embeddings:
            nn.init.normal_(table.weight, std=0.1)  # type: ignore[arg-type]
        for table in self.offsets:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]
        num_pairs = len(self._content_ids) * (len(self._content_ids) - 1) // 2
        width = len(self._content_ids) * dim + num_pairs + len(self._content_floats)
        layers: list[nn.Module] = []
        for hidden in settings["hidden"]:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            if settings.get("dropout"):
                layers.append(nn.Dropout(settings["dropout"]))
            width = hidden
        self.perceptron = nn.Sequential(*layers, nn.Linear(width, 1))
        self.product_weights = nn.Parameter(torch.ones(num_pairs))

    def forward(self, batch: Batch) -> torch.Tensor:
        score, columns = self.inputs(batch)
        return self.with_offsets(score + self.perceptron(columns).squeeze(1), batch)

    def inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the products add to the scores, [n], and the input of the perceptron."""
        floats, ids = batch["features_float"], batch["features_int"]
        vectors = [table(ids[:, i]) for table, i in zip(self.embeddings, self._content_ids, strict=True)]
        columns = [*vectors]
        products = [(vectors[a] * vectors[b]).sum(1, keepdim=True) for a in range(len(vectors)) for b in range(a + 1, len(vectors))]
        score: torch.Tensor = torch.zeros(len(ids), device=ids.device)
        if products:
            joined = torch.cat(products, dim=1)
            score = score + joined @ self.product_weights
            columns.append(joined)
        columns.append(floats[:, self._content_floats])
        return score, torch.cat(columns, dim=1)

    def with_offsets(self, score: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Add what each id adds by itself."""
        for table, i in zip(self.offsets, [*self._content_ids, *self._bias_ids], strict=True):
            score = score + table(batch["features_int"][:, i]).squeeze(1)
        return score


class _Tables(nn.Module):
    """First stage of a pipeline: the input of the perceptron, and in the last column what is added to its scores."""

    def __init__(self, module: RankerModule) -> None:
        super().__init__()
        self.embeddings, self.offsets, self.product_weights = module.embeddings, module.offsets, module.product_weights
        self._inputs, self._with_offsets = module.inputs, module.with_offsets

    def forward(self, batch: Batch) -> torch.Tensor:
        score, columns = self._inputs(batch)
        return torch.cat([columns, self._with_offsets(score, batch).unsqueeze(1)], dim=1)


class _Layers(nn.Module):
    """Another stage: some layers of the perceptron."""

    def __init__(self, layers: nn.Sequential, *, is_last: bool) -> None:
        super().__init__()
        self.layers = layers
        self._is_last = is_last

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        output, score = self.layers(states[:, :-1]), states[:, -1:]
        return (output + score).squeeze(1) if self._is_last else torch.cat([output, score], dim=1)


class Ranker(TorchFamily):
    """Learns to order the rows of a group."""

    def __init__(self) -> None:
        self._kind = "listwise"

    def build(self, architecture: TorchArchitecture) -> nn.Module:
        self._kind = cast(RankerParameters, architecture["settings"]).get("loss", "listwise")
        return RankerModule(architecture)

    def tensor_plan(self, module: nn.Module) -> TensorPlan | None:
        """Divide tables by the width of their vectors, and the layers of the perceptron in pairs; an odd last one stays whole.

        None: there is neither a table nor a pair.
        """
        from training.large.tensor_plan import Division

        ranker = cast(RankerModule, module)
        plan: dict[str, Division | Kind] = {"embeddings.*": Division("column", gives="whole")} if len(ranker.embeddings) else {}
        pending: str | None = None
        between: list[str] = []
        for name, layer in ranker.perceptron.named_children():
            if isinstance(layer, nn.Linear) and pending is not None:
                plan[pending], plan[f"perceptron.{name}"] = "column", "row"
                for dropout in between:
                    plan[dropout] = "features"
                pending = None
            elif isinstance(layer, nn.Linear):
                pending, between = f"perceptron.{name}", []
            elif isinstance(layer, nn.Dropout):
                between.append(f"perceptron.{name}")
        return plan or None

    def pipeline_stages(self, module: nn.Module, num_stages: int) -> list[nn.Module] | None:
        """Give the tables to the first stage, and the layers of the perceptron in even parts to the others."""
        model = cast(RankerModule, module)
        starts = [number for number, layer in enumerate(model.perceptron) if isinstance(layer, nn.Linear)]
        others = num_stages - 1
        if not 1 <= others <= len(starts):
            return None
        bounds = [*(starts[len(starts) * part // others] for part in range(others)), len(model.perceptron)]
        parts = [cast(nn.Sequential, model.perceptron[first:last]) for first, last in itertools.pairwise(bounds)]
        return [_Tables(model), *(_Layers(part, is_last=part is parts[-1]) for part in parts)]

    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        scores, labels, mask = _by_group(module(batch).float(), batch["label"], batch["group"])
        return listwise_loss(scores, labels, mask) if self._kind == "listwise" else pairwise_loss(scores, labels, mask)


def listwise_loss(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the summed cross entropy between each group's labels, as shares, and the softmax of its scores.

    Args:
        scores: [groups, rows] float32, -inf where `mask` is False.
        labels: [groups, rows] float32, 0 where `mask` is False.
        mask: [groups, rows] bool. Groups without a positive label add nothing.
    """
    shares = labels / labels.sum(dim=1, keepdim=True).clamp_min(1e-12)
    logs = torch.log_softmax(scores, dim=1).masked_fill(~mask, 0.0)
    return -(shares * logs).sum()


def pairwise_loss(scores: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logistic loss of each group's mean pair with different labels, summed over groups; arguments as above."""
    safe = scores.masked_fill(~mask, 0.0)
    margins = safe.unsqueeze(2) - safe.unsqueeze(1)
    wanted = (labels.unsqueeze(2) > labels.unsqueeze(1)) & mask.unsqueeze(2) & mask.unsqueeze(1)
    losses = nn.functional.softplus(-margins).masked_fill(~wanted, 0.0).sum(dim=(1, 2))
    return (losses / wanted.sum(dim=(1, 2)).clamp_min(1)).sum()


def _by_group(scores: torch.Tensor, labels: torch.Tensor, group: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scores, labels and mask as [groups, rows of the largest]; a group's rows stand next to one another."""
    _, counts = torch.unique_consecutive(group, return_counts=True)
    if len(counts) == 0:
        return scores.reshape(0, 1), labels.reshape(0, 1), torch.zeros(0, 1, dtype=torch.bool, device=scores.device)
    widest = int(counts.max())
    if bool((counts == widest).all()):
        return (
            scores.reshape(-1, widest),
            labels.reshape(-1, widest),
            torch.ones(len(counts), widest, dtype=torch.bool, device=scores.device),
        )
    columns = torch.arange(widest, device=scores.device)
    mask = columns < counts.unsqueeze(1)
    starts = torch.cumsum(counts, 0) - counts
    rows = (starts.unsqueeze(1) + columns).clamp_max(len(scores) - 1)
    return scores[rows].masked_fill(~mask, -torch.inf), labels[rows].masked_fill(~mask, 0.0), mask


FAMILY = Ranker()
