"""A registered model's files, checked and loaded. A registered model carries this module: it imports neither MLflow, spec nor store."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from training.models.base import Family
from training.models.predictor import NamedPredictor, Predictor, load_predictor
from training.registry.model.files import check_files, has_list

logger = logging.getLogger(__name__)

DATA_FOLDER: Final = "data/"


def load_checked(path: str, family: Family | None = None, *, requirements: Sequence[str] = ()) -> Predictor | NamedPredictor:
    """Return the predictor of a registered model; its `predict(raw_frame)` includes the preprocessing.

    Where the label's classes have names, the answer has a column for each of them, else it is an array.

    The files of the folder are compared with the list that came with them: a damaged model is refused. One that was replaced together with
    its list is not noticed here, see `training.registry.serving.load_verified`.

    Args:
        path: the folder of the model's data.
        family: what scores; absent: the family that the model names, as this installation has it.
        requirements: `distribution==version` of the libraries that the model was registered with; others are only warned of.

    Raises:
        DataError: `model.altered`, `model.newer`.
    """
    if other := [words for requirement in requirements if (words := _mismatch(requirement))]:
        logger.warning("the model was registered with other libraries than are installed here: %s", ", ".join(other))
    model = next((folder for folder in Path(path).parents[:2] if has_list(folder)), None)
    if model is None:
        logger.warning("the model was registered without a list of its files: they are not checked")
    else:
        check_files(model, digest=None, below=DATA_FOLDER)
    predictor = load_predictor(Path(path), family)
    return NamedPredictor(predictor) if predictor.classes else predictor


def _mismatch(requirement: str) -> str:
    """Return what is installed instead of a requirement, in words; empty where it is the same."""
    name, _, version = requirement.partition("==")
    try:
        found = importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return f"{name} {version} (not installed)"
    return "" if found == version else f"{name} {version} (installed: {found})"
