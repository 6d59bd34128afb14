"""What the stage `train` does in a run that judges a model from outside: the artifact becomes a model of its family, or is refused.

Nothing of the artifact is unpickled, and nothing is committed before the model has scored rows of the dataset.
"""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.dataset.manifest import meta_of
from training.data.dataset.reader import DatasetReader
from training.data.dataset.shard_format import FeatureEntry
from training.data.features.classes import Classes
from training.data.features.transforms import FittedTransforms
from training.data.features.transforms_file import malformed
from training.data.join.contract import LABEL
from training.errors import DataError, NightshiftError, shown
from training.models.base import FitResult, ImportedArtifact
from training.models.isolated_import import load_apart, unscored
from training.runtime.runner import StageContext
from training.spec import PipelineSpec
from training.spec.rules.leakage import Lateness
from training.spec.schedule.instants import parse_as_of
from training.store import Manifest

TRANSFORMS_NAME: Final = "transforms.json"
TRIED_ROWS: Final = 256
"""Rows of the validation split that a model must be able to score before it is taken."""
MAX_NAMED: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A model from outside as the stage commits it."""

    result: FitResult
    transforms: bytes
    """Those that came with it, or the dataset's."""
    registered: Mapping[str, Any]
    """Where it came from, and what is claimed of it."""


def import_model(context: StageContext, dataset: Manifest) -> Imported:
    """Return the model of `parameters["artifact"]`, for the rows of a dataset.

    Raises:
        DataError: `artifact.test_rows`, it has seen the test rows; `artifact.*`, it is damaged, or not a model of these rows and this task;
            `leakage.time`; `transforms.*`.
        SpecError: `artifact.family`.
    """
    store, spec = context.store, context.spec
    artifact = store.manifests.get(str(context.request.parameters["artifact"]), kind="artifact")
    _check_rows(dataset, artifact.meta.get("trained_until"), spec.timezone)
    with context.timed("fetch"):
        path = store.manifests.fetch(artifact, context.folder, ["artifact"]) / "artifact"
        has_own = TRANSFORMS_NAME in artifact.files
        transforms = store.manifests.read(artifact if has_own else dataset, TRANSFORMS_NAME)
        reader = DatasetReader(store, dataset, context.folder / "dataset")
    try:
        fitted = FittedTransforms.from_json(transforms)
        if has_own:
            _check_columns(spec, fitted, reader)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as err:
        raise malformed(err) from err
    features: list[FeatureEntry] = [{"name": cell.name, "dtype": cell.dtype, "cardinality": cell.cardinality} for cell in fitted.layout]
    num_classes = _num_classes(dataset, reader) if spec.evaluate.task == "multiclass" else None
    with context.timed("import"), tempfile.TemporaryDirectory(dir=context.folder) as folder:
        asked = ImportedArtifact(path=path, spec=spec, features=features, num_classes=num_classes)
        result = load_apart(asked, _cells(fitted, reader), Path(folder), context.request.code_files)
    return Imported(result=result, transforms=transforms, registered=dict(artifact.meta))


def _check_rows(dataset: Manifest, trained_until: str | None, timezone: str) -> None:
    """Refuse a model that was trained on test rows: no gate could tell."""
    if trained_until is None:
        return
    start, end = datetime.fromisoformat(dataset.meta["bounds"]["test"][0]), parse_as_of(trained_until, timezone)
    if end > start:
        message = f"it was trained on rows until {end.isoformat()}, and the test rows begin at {start.isoformat()}"
        raise DataError("artifact.test_rows", message, hint="register it with a later as_of, or train it on earlier rows")


def _check_columns(spec: PipelineSpec, fitted: FittedTransforms, reader: DatasetReader) -> None:
    """Check that the transforms read columns that the pipeline has, and none that is known too late."""
    known, needed = [name for name in reader.schema.names if name != LABEL], fitted.inputs(serving=True)
    if missing := [name for name in needed if name not in known]:
        close = difflib.get_close_matches(missing[0], known, n=1)
        message = f"its transforms read {_named(missing)}, which the pipeline's rows do not have"
        hint = f"did you mean {close[0]}?" if close else "add them to the YAML, or register the model with a pipeline that has them"
        raise DataError("artifact.columns", message, hint=hint)
    lateness = Lateness(spec.data, spec.prepare)
    late = [f"{name} {why}" for name in fitted.inputs(serving=False) if (why := lateness.why(name)) is not None]
    if late:
        message = f"its transforms read what is known only after the decision: {'; '.join(late[:MAX_NAMED])}"
        raise DataError("leakage.time", message, hint="train it without these columns")


def _num_classes(dataset: Manifest, reader: DatasetReader) -> int:
    """Return how many classes a model of these rows must know, as a training here would."""
    classes = Classes.of(meta_of(dataset))
    if classes is not None:
        return len(classes.learned)
    from training.models.shard_rows import num_classes

    labels = reader[LABEL].to_numpy(dtype=np.float32)
    return num_classes(np.concatenate([labels[reader.numbers(split)] for split in ("train", "validation")]))


def _cells(fitted: FittedTransforms, reader: DatasetReader) -> NDArray[np.int32]:
    """Return the input of some rows, [n, features], with which the model is tried."""
    names = fitted.inputs(serving=True)
    rows = reader.rows_numbered(reader.numbers("validation")[:TRIED_ROWS], names or reader.schema.names[:1])
    try:
        return fitted.apply(rows, serving=True).cells
    except NightshiftError:
        raise
    except Exception as err:  # Transforms from outside have SQL of their own.
        raise unscored(len(rows), err) from err


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(shown(name) for name in names[:MAX_NAMED]) + more
