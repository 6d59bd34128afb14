"""What a plan may say of the layers of a model, and how a wrong one is refused."""

from __future__ import annotations

import pytest
from torch import nn

from tests.unit.training.large.tiny_transformer import PLAN, SEQUENCE_PLAN, TinyTransformer
from training.errors import SpecError
from training.large.tensor_plan import Division, Extents, TensorPlan, checked, extents_of


class Model(nn.Module):
    """One layer of each type."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10, 6) for _ in range(2))
        self.padded = nn.Embedding(10, 6, padding_idx=0)
        self.bounded = nn.Embedding(10, 6, max_norm=1.0)
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)
        self.norm, self.second_norm, self.batch_norm = nn.LayerNorm(6), nn.RMSNorm(6), nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.1)
        self.attention = nn.MultiheadAttention(6, 2)


REFUSED: list[tuple[TensorPlan, int, str]] = [
    ({}, 2, "the plan is empty"),
    ({"tables.*": "row", "middle": "column"}, 2, "no module is named middle"),
    ({"table": "row"}, 2, "no module is named table"),
    ({"tables.*": "row", "tables.1": "row"}, 2, "tables.1 is named by two entries, the second is tables.1"),
    ({"up": "column"}, 2, "up: out_features (9) must be divisible by tensor (2)"),
    ({"up": Division("column", unit=2)}, 3, "up: out_features (9) must be divisible by unit * tensor (2 * 3 = 6)"),
    ({"down": "row"}, 2, "down: in_features (9) must be divisible by tensor (2)"),
    ({"tables.0": "row"}, 4, "tables.0: num_embeddings (10) must be divisible by tensor (4)"),
    ({"tables.0": "column"}, 4, "tables.0: embedding_dim (6) must be divisible by tensor (4)"),
    ({"batch_norm": "sequence"}, 2, "batch_norm: sequence is for LayerNorm, RMSNorm, Dropout; this is a BatchNorm1d"),
    ({"norm": "column"}, 2, "norm: column is for Linear, Embedding; this is a LayerNorm"),
    ({"up": "sequence"}, 2, "up: sequence is for LayerNorm, RMSNorm, Dropout; this is a Linear"),
    ({"up": "diagonal"}, 2, "up: diagonal is none of column, row, sequence, features, gather; this is a Linear"),  # type: ignore[dict-item]
    ({"up": Division("column", gives="sequence")}, 3, "up: column of a Linear gives features or whole, not sequence"),
    ({"tables.0": Division("row", takes="sequence")}, 2, "tables.0: row of a Embedding takes whole, not sequence"),
    ({"up": Division("gather", gives="sequence")}, 3, "up: gather takes sequence and gives whole, nothing else"),
    ({"padded": "row"}, 2, "padded: an Embedding with padding_idx cannot be divided by row"),
    ({"bounded": "column"}, 2, "bounded: an Embedding with max_norm cannot be divided by column"),
    (
        {"attention.out_proj": "row"},
        2,
        "attention.out_proj: nn.MultiheadAttention uses its weights as a whole; write the projections as Linear layers",
    ),
]


@pytest.mark.parametrize(("plan", "size", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_plan_that_a_model_cannot_be_divided_by_is_refused(plan: TensorPlan, size: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        checked(Model(), plan, size)
    assert [(problem.code, problem.field, problem.message) for problem in caught.value.problems] == [
        ("parallel.tensor_plan", "train.parallel.tensor", message)
    ]


def test_each_module_that_cannot_be_divided_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        checked(Model(), {"up": "column", "tables.*": "row"}, 4)
    assert [problem.message.partition(":")[0] for problem in caught.value.problems] == ["up", "tables.0", "tables.1"]


def test_star_stands_for_one_part_of_a_name() -> None:
    assert sorted(checked(Model(), {"tables.*": "row"}, 2)) == ["tables.0", "tables.1"]
    assert sorted(checked(TinyTransformer(), PLAN, 2)) == sorted(
        [
            "embedding",
            *(
                f"blocks.{n}.{name}"
                for n in (0, 1)
                for name in ("up", "down", *(f"attention.{of}" for of in ("query", "key", "value", "out")))
            ),
        ]
    )


def test_defaults_are_filled_in_by_the_type_of_a_layer() -> None:
    found = checked(Model(), {"tables.0": "row", "up": "column", "down": "row", "norm": "sequence"}, 1)
    assert found == {
        "tables.0": Division("row", "whole", "whole"),
        "up": Division("column", "whole", "features"),
        "down": Division("row", "features", "whole"),
        "norm": Division("sequence", "sequence", "sequence"),
    }


def test_plan_with_parts_of_the_sequence_is_accepted() -> None:
    assert checked(TinyTransformer(), SEQUENCE_PLAN, 2)["norm"] == Division("sequence", "sequence", "whole")


def test_extents_are_those_that_every_layer_of_a_plan_allows() -> None:
    plan: TensorPlan = {"up": "column", "down": "row", "norm": "sequence"}
    assert extents_of(Model(), plan) == Extents(most=9, divided_bytes=4 * (9 * 6 + 9 + 9 * 6), has_sequence=True)
    assert extents_of(Model(), {"up": Division("column", unit=3), "down": "row"}).most == 3
    assert extents_of(Model(), {"tables.*": "row", "up": "column"}).most == 1
    assert extents_of(Model(), {"norm": "sequence"}) == Extents(most=1, divided_bytes=0, has_sequence=True)
