"""A registered model's schema as MLflow's pages show it: in the description of the version, and as parameters of the logged model.

It is no signature of MLflow's. With one, MLflow refuses what the model scores: whole numbers with missing values, whole numbers for a
`double`, timestamps with a zone, nullable and categorical columns of pandas. The model checks its columns itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from training.sanitizing import for_markdown

HEADING: Final = "**Schema**"
MAX_SCHEMA_CHARS: Final = 2500
"""Half of what MLflow's column of a description holds: the decision stands before it."""
SCORES: Final[Mapping[str, str]] = {"binary": "probability", "ranking": "score"}
"""Task to what its one score is; of all others a prediction."""


class ModelSchema(NamedTuple):
    """What a model takes and returns."""

    inputs: Mapping[str, str]
    """Columns of a raw frame to their types, as the YAML declares them (`int64`, `int64, nullable`)."""
    outputs: Sequence[str]
    """Columns of the answer, all of type double; empty where they are not known."""


def output_columns(task: str, label: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return what the columns of a model's answer are.

    Args:
        classes: names of the label's classes; empty where they have none.
    """
    if classes:
        return tuple(f"probability of {name}" for name in classes)
    if task == "multiclass":
        return (f"probability of each class of {label}",)
    return (f"{SCORES.get(task, 'prediction')} of {label}",)


def schema_text(schema: ModelSchema) -> str:
    """Return a schema as the part of a version's description; empty where it has no columns."""
    if not schema.inputs:
        return ""
    rows = [*(("input", name, kind) for name, kind in schema.inputs.items()), *(("output", name, "double") for name in schema.outputs)]
    head = [HEADING, "", "| | column | type |", "| --- | --- | --- |"]
    lines = [f"| {side} | {for_markdown(name)} | {kind} |" for side, name, kind in rows]
    return "\n".join([*head, *_that_fit(lines, MAX_SCHEMA_CHARS - len("\n".join(head)))])


def schema_part(description: str) -> str:
    """Return the schema in a version's description; empty where it has none."""
    place = description.find(HEADING)
    return "" if place < 0 else description[place:]


def is_schema_alone(description: str) -> bool:
    """Return whether nothing but the schema is in a description: what a registration writes."""
    return description.startswith(HEADING)


def _that_fit(lines: Collection[str], num_chars: int) -> Iterable[str]:
    """Yield the lines that fit, and how many do not."""
    left = num_chars
    for number, line in enumerate(lines):
        left -= len(line) + 1
        if left < 40:
            yield f"| | … and {len(lines) - number} more | |"
            return
        yield line
