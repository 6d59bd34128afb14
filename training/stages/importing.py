"""What the stage `train` does in a run that judges a model from outside: the artifact becomes a model of its family, or is refused.

Nothing of the artifact is unpickled, and nothing is committed before the model has scored rows of the dataset.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from training.data.classes import Classes
from training.data.dataset import meta_of
from training.data.dataset_reader import DatasetReader
from training.data.joins import LABEL
from training.data.transforms import FittedTransforms
from training.data.transforms_file import malformed
from training.errors import DataError, NightshiftError, shown
from training.format import figure
from training.models.base import Artifact, FitResult, load_family
from training.runtime.runner import StageContext
from training.spec.rules.leakage import Lateness
from training.spec.schedule import parse_as_of
from training.store import Manifest

TRANSFORMS_NAME: Final = "transforms.json"
TRIED_ROWS: Final = 256
"""Rows of the validation split that a model must be able to score before it is taken."""
MAX_NAMED: Final = 10
SUM_TOLERANCE: Final = 1e-3
DEPENDENCE_TOLERANCE: Final = 1e-3
"""Share of a score. Products of matrices of other sizes round otherwise, by less than a thousandth of this."""


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
    _check_rows(context, dataset, artifact.meta.get("trained_until"))
    with context.timed("fetch"):
        path = store.objects.fetch(artifact.files["artifact"].digest, context.folder / "artifact")
        own = artifact.files.get(TRANSFORMS_NAME)
        transforms = store.objects.get_bytes((own or dataset.files[TRANSFORMS_NAME]).digest)
        reader = DatasetReader(store, dataset, context.folder / "dataset")
    try:
        fitted = FittedTransforms.from_json(transforms)
        if own is not None:
            _check_columns(context, fitted, reader)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as err:
        raise malformed(err) from err
    num_classes = _num_classes(context, dataset, reader)
    with context.timed("import"):
        result = load_family(spec.train.model).imported(
            Artifact(
                path=path,
                spec=spec,
                features=[{"name": cell.name, "dtype": cell.dtype, "cardinality": cell.cardinality} for cell in fitted.layout],
                num_classes=num_classes,
            )
        )
        _check_scores(context, result, fitted, reader, num_classes)
    return Imported(result=result, transforms=transforms, registered=dict(artifact.meta))


def _check_rows(context: StageContext, dataset: Manifest, trained_until: str | None) -> None:
    """Refuse a model that was trained on test rows: no gate could tell."""
    if trained_until is None:
        return
    start, end = datetime.fromisoformat(dataset.meta["bounds"]["test"][0]), parse_as_of(trained_until, context.spec.timezone)
    if end > start:
        message = f"it was trained on rows until {end.isoformat()}, and the test rows begin at {start.isoformat()}"
        raise DataError("artifact.test_rows", message, hint="register it with a later as_of, or train it on earlier rows")


def _check_columns(context: StageContext, fitted: FittedTransforms, reader: DatasetReader) -> None:
    """Check that the transforms read columns that the pipeline has, and none that is known too late."""
    known, needed = [name for name in reader.schema.names if name != LABEL], fitted.inputs(serving=True)
    if missing := [name for name in needed if name not in known]:
        close = difflib.get_close_matches(missing[0], known, n=1)
        message = f"its transforms read {_named(missing)}, which the pipeline's rows do not have"
        hint = f"did you mean {close[0]}?" if close else "add them to the YAML, or register the model with a pipeline that has them"
        raise DataError("artifact.columns", message, hint=hint)
    lateness = Lateness(context.spec.data, context.spec.prepare)
    late = [f"{name} {why}" for name in fitted.inputs(serving=False) if (why := lateness.why(name)) is not None]
    if late:
        message = f"its transforms read what is known only after the decision: {'; '.join(late[:MAX_NAMED])}"
        raise DataError("leakage.time", message, hint="train it without these columns")


def _num_classes(context: StageContext, dataset: Manifest, reader: DatasetReader) -> int | None:
    """Return how many classes a model of these rows must know, as a training here would; None for other tasks."""
    if context.spec.evaluate.task != "multiclass":
        return None
    classes = Classes.of(meta_of(dataset))
    if classes is not None:
        return len(classes.learned)
    from training.models.shard_rows import num_classes

    labels = reader[LABEL].to_numpy(dtype=np.float32)
    return num_classes(np.concatenate([labels[reader.numbers(split)] for split in ("train", "validation")]))


def _check_scores(
    context: StageContext, result: FitResult, fitted: FittedTransforms, reader: DatasetReader, num_classes: int | None
) -> None:
    """Have the model score some rows: what the evaluation would stumble over in an hour is found now."""
    folder = context.folder / "tried"
    folder.mkdir()
    (folder / result.weights_name).write_bytes(result.weights)
    scorer = load_family(context.spec.train.model).load(folder, result.architecture)
    names = fitted.inputs(serving=True)
    rows = reader.rows_numbered(reader.numbers("validation")[:TRIED_ROWS], names or reader.schema.names[:1])
    try:
        scores = scorer(fitted.apply(rows, serving=True))
        # Every second row in the reverse order: other rows beside each, and another number of them.
        others = scorer(fitted.apply(rows.iloc[1::2].iloc[::-1], serving=True))[::-1]
    except NightshiftError:
        raise
    except Exception as err:  # There is no list of what libraries raise for a file from outside.
        words = f"{type(err).__name__}: {next(iter(str(err).splitlines()), '')[:300]}"
        hint = "score some rows of the pipeline with it, more than one at a time, where it was made"
        raise DataError("artifact.scores", f"{len(rows)} rows of the validation split cannot be scored: {words}", hint=hint) from err
    fault = _fault(scores, len(rows), context.spec.evaluate.task, num_classes) or _dependence(scores[1::2], others)
    if fault:
        raise DataError("artifact.scores", f"on {len(rows)} rows of the validation split, {fault}", hint="its output does not fit the task")


def _fault(scores: NDArray[np.float64], num_rows: int, task: str, num_classes: int | None) -> str:
    """Return what is wrong with the scores, or nothing."""
    wanted = (num_rows,) if num_classes is None else (num_rows, num_classes)
    if scores.shape != wanted:
        return f"its scores have the shape {list(scores.shape)}, needed: {list(wanted)}"
    if not np.isfinite(scores).all():
        return f"{int((~np.isfinite(scores)).sum())} scores are not finite"
    if task in ("binary", "multiclass") and (scores.min(initial=0) < 0 or scores.max(initial=0) > 1):
        return f"its scores are from {figure(scores.min())} to {figure(scores.max())}, and probabilities from 0 to 1"
    if num_classes is not None and len(scores) and np.abs(scores.sum(axis=1) - 1).max() > SUM_TOLERANCE:
        return "the probabilities of a row do not add up to 1"
    return ""


def _dependence(scores: NDArray[np.float64], others: NDArray[np.float64]) -> str:
    """Return what is wrong where the scores of the same rows differ beside other rows, or nothing."""
    if np.allclose(scores, others, rtol=DEPENDENCE_TOLERANCE, atol=DEPENDENCE_TOLERANCE * np.abs(scores).max(initial=0)):
        return ""
    return "the score of a row is another one beside other rows, or each time: no evaluation says what it would be in service"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(shown(name) for name in names[:MAX_NAMED]) + more
