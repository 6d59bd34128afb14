"""The one way to score: evaluation, the registered MLflow model and serving all use it. Transforms included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from training.data.features.transforms import FittedTransforms
from training.errors import DataError
from training.models.base import Family, Scorer
from training.models.caller_rows import typed_rows

if TYPE_CHECKING:
    from training.contracts import JsonObject

FORMAT_VERSION: Final = 2
"""1: without `label_center`."""


class ModelFacts(TypedDict):
    """`model.json` of a model."""

    format_version: int
    family: str
    task: str
    architecture: JsonObject
    """Of its family."""
    code_version: str
    environment: Mapping[str, str]
    device: str
    """That it was trained on."""
    requirements: NotRequired[list[str]]
    """See `training.models.base.FitResult`."""
    classes: NotRequired[list[str]]
    """Names in the order of their numbers, where they have names."""
    inputs: NotRequired[Mapping[str, str]]
    """Columns of a raw frame to their types, as the YAML declares them (`int64, nullable`); absent in models of 0.3.0."""
    source_names: NotRequired[Mapping[str, str]]
    """Of those that the source calls otherwise, its name."""
    label_center: NotRequired[float]
    """What is added to the scores: the training's labels were differences from it."""


class Predictor:
    """Raw frames to scores."""

    def __init__(self, transforms: FittedTransforms, scorer: Scorer, facts: ModelFacts) -> None:
        self._transforms = transforms
        self._scorer = scorer
        self.facts = facts
        """model.json."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns that a raw frame must have."""
        return self._transforms.inputs(serving=True)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers: of a binary label the negative one first; empty where they have none."""
        return tuple(self.facts.get("classes") or ())

    def predict(self, rows: Any) -> NDArray[np.float64]:
        """Return one score per row, [n] float64: a probability for binary models, an order for rankers.

        A model of several classes returns [n, classes]: the probability of each class.

        Args:
            rows: as callers have them (`training.models.caller_rows`).

        Raises:
            DataError: a column is missing or of another type.
        """
        inputs = self.facts.get("inputs")
        return self.score(rows if inputs is None else typed_rows(rows, inputs, self.facts.get("source_names", {})))

    def score(self, raw_frame: pd.DataFrame) -> NDArray[np.float64]:
        """Return `predict` of rows as the frame of a dataset has them, all columns there.

        Raises:
            DataError: a column is missing or of another type.
        """
        scores = self._scorer(self._transforms.apply(raw_frame, serving=True))
        return scores + self.facts["label_center"] if "label_center" in self.facts else scores


class NamedPredictor:
    """A predictor whose answer names the classes: what MLflow loads for labels of type string."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, rows: Any) -> pd.DataFrame:
        """Return the probability of each class, one column per class with its name, one row per row of `rows`, with its index.

        Raises:
            DataError: a column is missing or of another type.
        """
        scores = self._predictor.predict(rows)
        table = np.column_stack([1 - scores, scores]) if scores.ndim == 1 else scores
        return pd.DataFrame(table, columns=list(self._predictor.classes), index=rows.index if isinstance(rows, pd.DataFrame) else None)


def load_predictor(folder: Path, family: Family | None = None) -> Predictor:
    """Load the model whose files (digests checked) are in the local `folder`.

    Args:
        family: what scores; absent: the family that the model names, as this installation has it.

    Raises:
        DataError: `model.newer`.
        SpecError: `model.unknown`, its family is not installed here.
    """
    facts: ModelFacts = json.loads((folder / "model.json").read_bytes())
    if facts["format_version"] > FORMAT_VERSION:
        message = f"model has format {facts['format_version']}, this version reads up to {FORMAT_VERSION}"
        raise DataError("model.newer", message, hint="upgrade Nightshift")
    transforms = FittedTransforms.from_json((folder / "transforms.json").read_bytes())
    if family is None:
        from training.models.base import load_family

        family = load_family(facts["family"])
    return Predictor(transforms, family.load(folder, facts["architecture"]), facts)
