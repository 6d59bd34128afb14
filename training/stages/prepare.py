"""Prepare: joins a snapshot into one raw frame, divides it, fits the transforms on the training rows and writes shards.

python -m training.stages.prepare REQUEST_URI
"""

from __future__ import annotations

from training.contracts import Scalar
from training.data.dataset.dataset_writer import DatasetRows, WrittenDataset, write_dataset
from training.data.dataset.manifest import DatasetMeta
from training.data.dataset.row_weights import weight_column
from training.data.dataset.scratch_arrays import ScratchArrays
from training.data.dataset.shard_writer import describe_layout
from training.data.exact.sums import exact_mean
from training.data.features.feature_plans import fit_transforms
from training.data.features.labels import label_center, labels_of
from training.data.features.transforms import FittedTransforms
from training.data.join.contract import LABEL
from training.data.join.derived import check_baseline
from training.data.join.engines.duckdb import DuckDBEngine
from training.data.join.engines.interface import Frame
from training.data.join.plan import join_snapshot
from training.data.snapshot.label_delay import META_KEY
from training.data.split.by_time import SPLITS, SplitBounds
from training.data.split.division import bounds_of, divide_rows
from training.data.split.kinds import split_meta
from training.models.label_check import check_learnable
from training.runtime.runner import StageContext, StageOutput, main
from training.spec import PipelineSpec
from training.spec.descriptors.families import FAMILIES
from training.store import Manifest


def work(context: StageContext) -> StageOutput:
    """Make the dataset of `request.inputs["snapshot"]`.

    Raises:
        DataError: the data cannot be joined, divided or learned from; see `join_snapshot`, `divide_rows`, `labels_of` and `fit_transforms`.
    """
    spec, folder, snapshot = context.spec, context.folder, context.input("snapshot")
    # Here too: an ingest that is reused has checked another expression.
    check_baseline(spec)
    with context.timed("fetch"):
        names = sorted(snapshot.files)
        for done, name in enumerate(names):
            context.progress(done, len(names), "files")
            context.store.manifests.fetch(snapshot, folder / "snapshot", [name])
        context.progress(len(names), len(names), "files")
    engine, arrays = DuckDBEngine(folder, context.progress), ScratchArrays(folder)
    with context.timed("join"):
        frame = join_snapshot(spec, snapshot, folder / "snapshot", engine, as_of=context.request.as_of)
    with context.timed("split"):
        bounds = bounds_of(spec, snapshot)
        rows = _dataset_rows(spec, frame, bounds, arrays)
    with context.timed("transform"):
        transforms, fold_numbers = fit_transforms(spec, rows, engine, arrays)
    with context.timed("store"):
        family = FAMILIES.get(spec.train.model)
        takes_missing = family is None or family.takes_missing_numbers
        written = write_dataset(folder, rows, transforms, fold_numbers, context.progress, takes_missing=takes_missing)
        meta = _meta(spec, snapshot, bounds, rows, transforms, written)
        return context.store_artifact("dataset", written.files, meta, _scalars(rows, transforms), ref="dataset")


def _dataset_rows(spec: PipelineSpec, frame: Frame, bounds: SplitBounds, arrays: ScratchArrays) -> DatasetRows:
    """Say which split each row belongs to, what its label is, and how much it counts."""
    division = divide_rows(spec, frame, bounds, arrays)
    label, classes = labels_of(spec, division, arrays)
    check_learnable(spec, label, division.rows, () if classes is None else classes.learned)
    weight = spec.data.weight
    return DatasetRows(
        frame=division.frame if classes is None else division.frame.with_label(label),
        rows=division.rows,
        groups=division.groups,
        label=label,
        label_center=label_center(label, division.rows["train"], task=spec.evaluate.task),
        classes=classes,
        weights=None if weight is None else weight_column(division.frame, division.rows, arrays, column=weight),
    )


def _meta(
    spec: PipelineSpec, snapshot: Manifest, bounds: SplitBounds, rows: DatasetRows, transforms: FittedTransforms, written: WrittenDataset
) -> DatasetMeta:
    meta: DatasetMeta = {
        "rows": {name: len(rows.rows[name]) for name in SPLITS},
        "layout": describe_layout(transforms.layout, has_group=rows.groups is not None, has_weight=rows.weights is not None),
        "format": written.frame["format"],
        "parts": written.frame["parts"],
        "schema": written.frame["schema"],
        "shards": written.shards,
        "label": LABEL,
        "group": spec.data.group,
        "bounds": bounds.to_json(),
        "snapshot": snapshot.digest,
    }
    if rows.classes is not None:
        named = rows.classes.meta()
        meta["classes"], meta["unseen_classes"] = named["classes"], named["unseen_classes"]
    division = split_meta(spec, rows.frame, rows.rows["test"])
    if division is not None:
        meta["split"] = division
    if rows.label_center:
        meta["label_center"] = rows.label_center
    if spec.data.weight is not None:
        meta["weight"] = spec.data.weight
    if META_KEY in snapshot.meta:
        meta["unknown_labels"] = snapshot.meta[META_KEY]
    return meta


def _scalars(rows: DatasetRows, transforms: FittedTransforms) -> dict[str, Scalar]:
    classes = rows.classes
    return {
        "rows": rows.frame.num_rows,
        **{f"rows_{name}": len(rows.rows[name]) for name in SPLITS},
        "features": len(transforms.layout),
        # Of several classes with names, a mean would be one of arbitrary numbers.
        **({"classes": len(classes.names)} if classes else {}),
        **({} if classes and len(classes.names) > 2 else {"label_mean": round(exact_mean(rows.label), 6)}),
    }


if __name__ == "__main__":
    main(work)
