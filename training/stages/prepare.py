"""Prepare: joins a snapshot into one raw frame, divides it, fits the transforms on the training rows and writes shards.

python -m training.stages.prepare REQUEST_URI
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from training.contracts import Scalar
from training.data.dataset.frame_writer import FrameWriter
from training.data.dataset.frames import pandas_rows
from training.data.dataset.groups import column_numbers, kept_numbers
from training.data.dataset.manifest import DatasetMeta, DescribedFrame, describe_frame
from training.data.dataset.row_weights import weight_column
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.dataset.shard_format import SHARDED_SPLITS
from training.data.dataset.shard_writer import ShardWriter, describe_layout
from training.data.exact.sums import exact_mean
from training.data.features.classes import Classes, check_class_numbers, number_classes
from training.data.features.encoders import EncoderSettings
from training.data.features.target_encoding import TargetRows, frame_fold_numbers
from training.data.features.transforms import FeaturePlan, FittedTransforms, Matrix
from training.data.join.contract import LABEL, JoinedTable, MainTable
from training.data.join.derived import DerivedColumn, check_baseline
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.engines.interface import Engine, Frame
from training.data.join.window_plan import window_columns
from training.data.snapshot.label_delay import META_KEY, SplitRule, split_bounds, split_lines
from training.data.snapshot.parquet_parts import merged
from training.data.split.by_time import SPLITS, SplitBounds, check_labels, is_before, split_rows
from training.data.split.kinds import divide, split_meta
from training.errors import DataError, shown
from training.models.label_check import check_learnable
from training.runtime.runner import Outcome, StageContext, main
from training.sources.arrow_schema import ARROW_TYPES
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES
from training.spec.scalar_types import duration_text
from training.store import Manifest, set_run_ref

logger = logging.getLogger(__name__)

MAX_CLASSES_SHOWN: Final = 20
"""Names of classes in a line of the log."""

Rows = Mapping[str, NDArray[np.int64]]


def work(context: StageContext) -> Outcome:
    """Make the dataset of `request.inputs["snapshot"]`.

    Raises:
        DataError: the data cannot be joined, divided or learned from; see `training.data.join.contract`, `splits` and `transforms`.
    """
    snapshot = context.store.manifests.get(context.request.inputs["snapshot"], kind="snapshot")
    # Here too: an ingest that is reused has checked another expression.
    check_baseline(context.spec)
    with context.timed("fetch"):
        _fetch(context, snapshot)
    engine = DuckDBEngine(context.folder, context.progress)
    with context.timed("join"):
        frame = _join(context, snapshot, engine)
    with context.timed("split"):
        bounds = _bounds(context.spec, snapshot)
        scratch = ScratchArrays(context.folder)
        divided = _divide(context.spec, frame, bounds, scratch)
    with context.timed("transform"):
        numbers = _target_rows(context.spec, divided, scratch)
        transforms = _fit(context.spec, engine, divided, numbers, scratch)
    with context.timed("store"):
        files, shards, described = _write(context, divided, transforms, numbers)
    groups, classes = divided.groups, divided.classes
    meta: DatasetMeta = {
        "rows": {name: len(divided.rows[name]) for name in SPLITS},
        "layout": describe_layout(transforms.layout, has_group=groups is not None, has_weight=divided.weights is not None),
        "format": described["format"],
        "parts": described["parts"],
        "schema": described["schema"],
        "shards": shards,
        "label": LABEL,
        "group": context.spec.data.group,
        "bounds": bounds.to_json(),
        "snapshot": snapshot.digest,
    }
    if classes is not None:
        named = classes.meta()
        meta["classes"], meta["unseen_classes"] = named["classes"], named["unseen_classes"]
    division = split_meta(context.spec, divided.frame, divided.rows["test"])
    if division is not None:
        meta["split"] = division
    if context.spec.data.weight is not None:
        meta["weight"] = context.spec.data.weight
    if META_KEY in snapshot.meta:
        meta["unknown_labels"] = snapshot.meta[META_KEY]
    with context.timed("store"):
        uri, manifest = context.store.manifests.put_files("dataset", files, meta)
    set_run_ref(context.store, context.request, "dataset", uri)
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=_scalars(divided, transforms))


@dataclass(frozen=True, kw_only=True, slots=True)
class Divided:
    """The rows that the dataset has, and what decides where each goes, column by column."""

    frame: Frame
    label: NDArray[np.float32]
    """[n]; of classes with names, their numbers."""
    groups: NDArray[np.int32] | None
    """[n] dense numbers."""
    rows: Rows
    classes: Classes | None
    weights: NDArray[np.float32] | None
    """[n]; None: each row counts as much as any other."""


def _fetch(context: StageContext, snapshot: Manifest) -> None:
    """Copy the snapshot's files to scratch, digests checked."""
    names = sorted(snapshot.files)
    for done, name in enumerate(names):
        context.progress(done, len(names), "files")
        context.store.manifests.fetch(snapshot, context.folder / "snapshot", [name])
    context.progress(len(names), len(names), "files")


def _join(context: StageContext, snapshot: Manifest, engine: Engine) -> Frame:
    spec, folder = context.spec, context.folder
    source, label = spec.data.source, spec.data.label
    facts = snapshot.meta["tables"]
    main_table = MainTable(
        name=source.table,
        paths=_parts(snapshot, source.table, folder),
        columns={name: name for name in source.types},
        event_time=source.event_time,
        key=source.key,
        decision_lead=source.decision_lead,
        label_column=label.column,
        label_rule=label.rule,
        label_is_text=_is_text(spec),
        label_known_at=label.known_at,
        start=None if source.history is None else datetime.fromisoformat(snapshot.meta["window"]["start"]),
    )
    features = [
        JoinedTable(
            name=table.table,
            paths=_parts(snapshot, table.table, folder),
            on=table.on,
            columns={name: column.as_ or name for name, column in table.columns.items() if (column.as_ or name) in table.joined},
            event_time=table.event_time,
            available_after=table.available_after,
            max_age=table.max_age,
        )
        for table in spec.data.features
    ]
    num_rows = facts[source.table]["rows"]
    frame = engine.join(main_table, features, window_columns(spec), as_of=datetime.fromisoformat(context.request.as_of))
    if frame.num_rows < num_rows:
        reasons = {
            f"{label.known_at} (when the label is known) is null": label.known_at is not None,
            "they are history before the window": source.history is not None,
        }
        why = ", or ".join(reason for reason, is_possible in reasons.items() if is_possible)
        logger.info("%s of %s rows left out: %s", f"{num_rows - frame.num_rows:,}", f"{num_rows:,}", why)
    return frame


def _divide(spec: PipelineSpec, frame: Frame, bounds: SplitBounds, scratch: ScratchArrays) -> Divided:
    """Say which split each row belongs to, and what its label is; rows after the test split's end are left out."""
    event_time, group = spec.data.source.event_time, spec.data.group
    times = scratch.column(frame, event_time, "datetime64[us]")
    groups = None if group is None else column_numbers(frame, group, scratch)
    kept = is_before(times, bounds.end, groups=groups)
    if not kept.all():
        logger.info("%s rows after the test split's end at %s left out", f"{int((~kept).sum()):,}", bounds.end.isoformat())
        frame = frame.filtered(kept)
        times = scratch.column(frame, event_time, "datetime64[us]")
        # Counted again: numbers are dense.
        groups = None if groups is None else kept_numbers(groups, kept, scratch)
    if bounds.is_by_time:
        by_time = split_rows(times, bounds, groups=groups, numbers_of=scratch.numbers_of)
        frame, groups, rows = _without_gaps(spec, frame, groups, by_time, scratch)
    else:
        rows = divide(spec, frame, bounds, groups, times, scratch)
    label, classes = _labels(spec, frame, rows, scratch)
    check_labels(label, rows, task=spec.evaluate.task, names=() if classes is None else classes.names)
    check_learnable(spec, label, rows, () if classes is None else classes.learned)
    weight = spec.data.weight
    weights = None if weight is None else weight_column(frame, rows, scratch, column=weight)
    frame = frame if classes is None else frame.with_label(label)
    return Divided(frame=frame, label=label, groups=groups, rows=rows, classes=classes, weights=weights)


def _without_gaps(
    spec: PipelineSpec, frame: Frame, groups: NDArray[np.int32] | None, rows: Rows, scratch: ScratchArrays
) -> tuple[Frame, NDArray[np.int32] | None, Rows]:
    """Return the frame, the groups and the rows of each split without the rows of the gaps, which are in none."""
    gap = spec.data.split.gap
    if gap is None:
        return frame, groups, rows
    kept = np.zeros(frame.num_rows, dtype=bool)
    for part in rows.values():
        kept[part] = True
    logger.info("%s rows in the gaps of %s before validation and test left out", f"{int((~kept).sum()):,}", duration_text(gap))
    of_split = np.full(frame.num_rows, -1, dtype=np.int8)
    for number, part in enumerate(rows.values()):
        of_split[part] = number
    of_split = of_split[kept]
    return (
        frame.filtered(kept),
        None if groups is None else kept_numbers(groups, kept, scratch),
        {name: scratch.numbers_of(of_split == number) for number, name in enumerate(rows)},
    )


def _is_text(spec: PipelineSpec) -> bool:
    label = spec.data.label
    return label.rule is None and spec.data.source.types[label.column] == "string"


def _labels(spec: PipelineSpec, frame: Frame, rows: Rows, scratch: ScratchArrays) -> tuple[NDArray[np.float32], Classes | None]:
    """Return the labels, [n]: numbers unchanged, named classes as their numbers."""
    if not _is_text(spec):
        label: NDArray[np.float32] = scratch.column(frame, LABEL, np.float32)
        if spec.evaluate.task in ("binary", "multiclass"):
            check_class_numbers(label, is_binary=spec.evaluate.task == "binary")
        return label, None
    settings = spec.data.label
    numbers, classes = number_classes(frame, rows, scratch, column=settings.column, positive=settings.positive)
    logger.info("%d classes: %s", len(classes.names), ", ".join(classes.names[:MAX_CLASSES_SHOWN]))
    for split, names in classes.unseen.items():
        listed = ", ".join(names[:MAX_CLASSES_SHOWN])
        logger.warning(
            "%d classes of the %s rows are not in the rows before them, so no model can know them: %s", len(names), split, listed
        )
    return numbers, classes


def _parts(snapshot: Manifest, table: str, folder: Path) -> list[Path]:
    """Return the files of a table, or one of all their rows where they are many and small."""
    facts = snapshot.meta["tables"][table]
    paths = [folder / "snapshot" / name for name in sorted(facts["parts"])]
    schema = facts["schema"]
    # Files of several schemas are left to the join, which names what is wrong with them.
    is_one = all(part.get("schema", schema) == schema for part in facts["parts"].values()) and set(schema.values()) <= ARROW_TYPES.keys()
    return merged(paths, schema, folder / "snapshot", table) if is_one else paths


def _bounds(spec: PipelineSpec, snapshot: Manifest) -> SplitBounds:
    """Return the bounds of the splits; what the snapshot says of labels that are not known yet decides where they end."""
    start, end = (datetime.fromisoformat(snapshot.meta["window"][name]) for name in ("start", "end"))
    unknown = snapshot.meta.get(META_KEY)
    for line in [] if unknown is None else split_lines(unknown):
        logger.info("%s", line)
    return split_bounds(SplitRule.of(spec), start, end, unknown)


def _fit(
    spec: PipelineSpec, engine: Engine, divided: Divided, numbers: NDArray[np.int32] | None, scratch: ScratchArrays
) -> FittedTransforms:
    training, target = _training(divided), None
    if numbers is not None:
        target = TargetRows(label=scratch.selected(divided.label, training), numbers=scratch.selected(numbers, training))
    plans = [
        FeaturePlan(
            name=name,
            settings=EncoderSettings(
                kind=feature.transform,
                fill=feature.fill,
                max_categories=feature.max_categories,
                buckets=feature.buckets,
                top=feature.top,
                parts=feature.parts,
                form=feature.form or "number",
                zone=spec.timezone,
                tokens=feature.tokens or "words",
                ngrams=feature.ngrams,
                lowercase=feature.lowercase is not False,
                scale=feature.scale or "count",
                smoothing=feature.smoothing,
                folds=feature.folds,
            ),
            serve_as=feature.serve_as,
            target=target if feature.transform == "target_encode" else None,
        )
        for name, feature in spec.prepare.features.items()
    ]
    derived = [DerivedColumn(name=name, type=column.type, sql=column.sql) for name, column in spec.prepare.derive_in_order()]
    return engine.fit(divided.frame, training, derived=derived, features=plans)


def _target_rows(spec: PipelineSpec, divided: Divided, scratch: ScratchArrays) -> NDArray[np.int32] | None:
    """Return the numbers that give training rows their fold, [n]; None: no feature is made of labels."""
    if not any(feature.transform == "target_encode" for feature in spec.prepare.features.values()):
        return None
    key = (spec.data.group,) if spec.data.group else spec.data.source.key
    return frame_fold_numbers(divided.frame, key, _training(divided), scratch)


def _training(divided: Divided) -> NDArray[np.bool_]:
    training = np.zeros(divided.frame.num_rows, dtype=bool)
    training[divided.rows["train"]] = True
    return training


def _write(
    context: StageContext, divided: Divided, transforms: FittedTransforms, numbers: NDArray[np.int32] | None
) -> tuple[dict[str, Path | bytes], dict[str, list[int]], DescribedFrame]:
    """Write the dataset's files in one pass over the rows.

    Returns:
        Files by name, the rows of each shard by split, and the parts of the frame.
    """
    frame, groups, num_features = divided.frame, divided.groups, len(transforms.layout)
    writers = {
        split: ShardWriter(
            context.folder,
            split,
            divided.rows[split],
            groups,
            num_features=num_features,
            weights=divided.weights,
            arrays=ScratchArrays(context.folder),
        )
        for split in SHARDED_SPLITS
    }
    facts = FAMILIES.get(context.spec.train.model)
    takes_missing = facts is None or facts.takes_missing_numbers
    total, done, first = sum(len(divided.rows[split]) for split in SHARDED_SPLITS), 0, 0
    frame_writer = FrameWriter(context.folder, frame.schema, divided.rows)
    for batch in frame.batches():
        frame_writer.write(batch)
        rows = slice(first, first + batch.num_rows)
        matrix = transforms.apply(
            pandas_rows(batch, frame.nullable), serving=False, fold_numbers=None if numbers is None else numbers[rows]
        )
        if not takes_missing:
            _check_numbers(matrix)
        for shard_writer in writers.values():
            done += shard_writer.write(first, matrix, divided.label[rows], None if groups is None else groups[rows])
        first += batch.num_rows
        context.progress(done, total, "rows sharded")
    frame_writer.finish()
    files: dict[str, Path | bytes] = {"transforms.json": transforms.to_json(), **frame_writer.files}
    files |= {name: file for shard_writer in writers.values() for name, file, _rows in shard_writer.files()}
    shards = {split: [rows for _name, _path, rows in shard_writer.files()] for split, shard_writer in writers.items()}
    return files, shards, describe_frame(frame_writer.parts, frame_writer.columns)


def _check_numbers(matrix: Matrix) -> None:
    """Refuse missing numbers, for a family that cannot take them.

    Raises:
        DataError: `feature.missing`.
    """
    missing = np.isnan(matrix.floats)
    if missing.any():
        place = int(np.argmax(missing.any(axis=0)))
        name = matrix.layout[place].name
        message = f"feature {shown(name)}: {int(missing[:, place].sum())} of {len(missing)} rows that were looked at lack a number"
        hint = f"the model family takes none that is missing: set prepare.features.{name}.fill: mean, or the transform bucket"
        raise DataError("feature.missing", message, hint=hint)


def _scalars(divided: Divided, transforms: FittedTransforms) -> dict[str, Scalar]:
    counts = {f"rows_{name}": len(divided.rows[name]) for name in SPLITS}
    classes = divided.classes
    return {
        "rows": divided.frame.num_rows,
        **counts,
        "features": len(transforms.layout),
        # Of several classes with names, a mean would be one of arbitrary numbers.
        **({"classes": len(classes.names)} if classes else {}),
        **({} if classes and len(classes.names) > 2 else {"label_mean": round(exact_mean(divided.label), 6)}),
    }


if __name__ == "__main__":
    main(work)
