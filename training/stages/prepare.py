"""Prepare: joins a snapshot into one raw frame, divides it, fits the transforms on the training rows and writes shards.

python -m training.stages.prepare REQUEST_URI
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from training.data.classes import Classes, check_class_numbers, number_classes
from training.data.derived import Derived, check_baseline
from training.data.encoders import EncoderSettings
from training.data.joins import LABEL, FeatureTable, MainTable, join_frame
from training.data.label_delay import META_KEY, SplitRule, split_bounds, split_lines
from training.data.shards import SHARDED_SPLITS, describe_layout, shard_order, write_shards
from training.data.splits import SPLITS, SplitBounds, check_labels, group_numbers, is_before, split_rows
from training.data.transforms import FeaturePlan, FittedTransforms, Matrix
from training.runtime.runner import Outcome, StageContext, main
from training.spec import PipelineSpec
from training.sql.expressions import hardened
from training.store import Manifest, set_run_ref

logger = logging.getLogger(__name__)

ROWS_PER_GROUP: Final = 65_536
MAX_CLASSES_SHOWN: Final = 20

Rows = Mapping[str, NDArray[np.int64]]


def work(context: StageContext) -> Outcome:
    """Make the dataset of `request.inputs["snapshot"]`.

    Raises:
        DataError: the data cannot be joined, divided or learned from; see `training.data.joins`, `splits` and `transforms`.
    """
    snapshot = context.store.manifests.get(context.request.inputs["snapshot"], kind="snapshot")
    # Here too: an ingest that is reused has checked another expression.
    check_baseline(context.spec)
    with context.timed("fetch"):
        _fetch(context, snapshot)
    with context.timed("join"):
        table = _join(context, snapshot)
    spec = context.spec
    with context.timed("split"):
        bounds = _bounds(spec, snapshot)
        table = _until_test_end(table, bounds, spec)
        groups = None if spec.data.group is None else group_numbers(table[spec.data.group].to_numpy())
        event_time = table[spec.data.source.event_time].to_numpy().astype("datetime64[us]")
        rows = split_rows(event_time, bounds, groups=groups)
        table, classes = _with_numbers(table, rows, spec)
        check_labels(table[LABEL].to_numpy(), rows, task=spec.evaluate.task, names=() if classes is None else classes.names)
        frame = table.to_pandas()
    with context.timed("transform"):
        transforms = _fit(spec, frame.iloc[rows["train"]].drop(columns=LABEL))
        matrix = transforms.apply(frame, serving=False)
    with context.timed("store"):
        files: dict[str, Path | bytes] = {"frame.parquet": _write_frame(table, context.folder), "transforms.json": transforms.to_json()}
        files |= {f"splits/{name}.npy": _npy(rows[name]) for name in SPLITS}
        shard_files, shards = _write_shards(context, matrix, frame[LABEL].to_numpy(), groups, rows)
        meta = {
            "rows": {name: len(rows[name]) for name in SPLITS},
            "layout": describe_layout(matrix, has_group=groups is not None),
            "shards": shards,
            "label": LABEL,
            "group": spec.data.group,
            "bounds": bounds.to_json(),
            "snapshot": snapshot.digest,
            **({} if classes is None else classes.meta()),
            **({META_KEY: snapshot.meta[META_KEY]} if META_KEY in snapshot.meta else {}),
        }
        uri, manifest = context.store.manifests.put_files("dataset", files | shard_files, meta)
    set_run_ref(context.store, context.request, "dataset", uri)
    return Outcome(artifact_uri=uri, digest=manifest.digest, scalars=_scalars(frame, rows, matrix, classes))


def _fetch(context: StageContext, snapshot: Manifest) -> None:
    """Copy the snapshot's files to scratch, digests checked."""
    names = sorted(snapshot.files)
    for done, name in enumerate(names):
        context.progress(done, len(names), "files")
        context.store.manifests.fetch(snapshot, context.folder / "snapshot", [name])
    context.progress(len(names), len(names), "files")


def _join(context: StageContext, snapshot: Manifest) -> pa.Table:
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
    )
    features = [
        FeatureTable(
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
    connection = hardened([folder])
    with _watched(context, connection, num_rows):
        frame = join_frame(connection, main_table, features, as_of=datetime.fromisoformat(context.request.as_of))
    connection.close()
    if frame.num_rows < num_rows:
        logger.info("%s of %s rows left out: when their label is known is null", f"{num_rows - frame.num_rows:,}", f"{num_rows:,}")
    return frame


def _is_text(spec: PipelineSpec) -> bool:
    label = spec.data.label
    return label.rule is None and spec.data.source.types[label.column] == "string"


def _with_numbers(table: pa.Table, rows: Rows, spec: PipelineSpec) -> tuple[pa.Table, Classes | None]:
    """Replace the names of classes by their numbers; nothing to do for other labels."""
    label = spec.data.label
    if not _is_text(spec):
        if spec.evaluate.task == "multiclass":
            check_class_numbers(table[LABEL].to_numpy())
        return table, None
    numbers, classes = number_classes(table[LABEL], rows, column=label.column, positive=label.positive)
    logger.info("%d classes: %s", len(classes.names), ", ".join(classes.names[:MAX_CLASSES_SHOWN]))
    for split, names in classes.unseen.items():
        listed = ", ".join(names[:MAX_CLASSES_SHOWN])
        logger.warning(
            "%d classes of the %s rows are not in the rows before them, so no model can know them: %s", len(names), split, listed
        )
    return table.set_column(table.column_names.index(LABEL), LABEL, pa.array(numbers)), classes


@contextmanager
def _watched(context: StageContext, connection: duckdb.DuckDBPyConnection, num_rows: int) -> Iterator[None]:
    """Feed the heartbeat while one query runs: DuckDB tells how far it is, nothing else does."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(1.0):
            percent = max(0.0, connection.query_progress())
            context.progress(int(num_rows * percent / 100), num_rows, "rows joined")

    watcher = threading.Thread(target=report, name="join-progress", daemon=True)
    context.progress(0, num_rows, "rows joined")
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    context.progress(num_rows, num_rows, "rows joined")


def _parts(snapshot: Manifest, table: str, folder: Path) -> list[Path]:
    return [folder / "snapshot" / name for name in sorted(snapshot.meta["tables"][table]["parts"])]


def _bounds(spec: PipelineSpec, snapshot: Manifest) -> SplitBounds:
    """Return the bounds of the splits; what the snapshot says of labels that are not known yet decides where they end."""
    start, end = (datetime.fromisoformat(snapshot.meta["window"][name]) for name in ("start", "end"))
    unknown = snapshot.meta.get(META_KEY)
    for line in [] if unknown is None else split_lines(unknown):
        logger.info("%s", line)
    return split_bounds(SplitRule.of(spec), start, end, unknown)


def _until_test_end(table: pa.Table, bounds: SplitBounds, spec: PipelineSpec) -> pa.Table:
    """Return the rows before the test split's end; a group stays or goes as a whole, by its first row."""
    event_time = table[spec.data.source.event_time].to_numpy().astype("datetime64[us]")
    groups = None if spec.data.group is None else group_numbers(table[spec.data.group].to_numpy())
    kept = is_before(event_time, bounds.end, groups=groups)
    if kept.all():
        return table
    logger.info("%s rows after the test split's end at %s left out", f"{int((~kept).sum()):,}", bounds.end.isoformat())
    return table.filter(pa.array(kept)).combine_chunks()


def _fit(spec: PipelineSpec, training_rows: pd.DataFrame) -> FittedTransforms:
    plans = [
        FeaturePlan(
            name=name,
            settings=EncoderSettings(
                kind=feature.transform, fill=feature.fill, max_categories=feature.max_categories, buckets=feature.buckets
            ),
            serve_as=feature.serve_as,
        )
        for name, feature in spec.prepare.features.items()
    ]
    derived = [Derived(name=name, type=column.type, sql=column.sql) for name, column in spec.prepare.derive_in_order()]
    return FittedTransforms.fit(training_rows, derived=derived, features=plans)


def _write_frame(table: pa.Table, folder: Path) -> Path:
    path = folder / "frame.parquet"
    pq.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP, write_page_checksum=True)
    return path


def _npy(rows: NDArray[np.int64]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, rows, allow_pickle=False)
    return stream.getvalue()


def _write_shards(
    context: StageContext, matrix: Matrix, label: NDArray[np.float32], groups: NDArray[np.int32] | None, rows: Rows
) -> tuple[dict[str, Path | bytes], dict[str, list[int]]]:
    files: dict[str, Path | bytes] = {}
    shards: dict[str, list[int]] = {}
    total, done = sum(len(rows[split]) for split in SHARDED_SPLITS), 0
    for split in SHARDED_SPLITS:
        shards[split] = []
        order = shard_order(rows[split], groups)
        for name, path, num_rows in write_shards(context.folder, split, matrix, label, groups, order):
            files[name] = path
            shards[split].append(num_rows)
            done += num_rows
            context.progress(done, total, "rows sharded")
    return files, shards


def _scalars(frame: pd.DataFrame, rows: Rows, matrix: Matrix, classes: Classes | None) -> dict[str, Any]:
    counts = {f"rows_{name}": len(rows[name]) for name in SPLITS}
    return {
        "rows": len(frame),
        **counts,
        "features": len(matrix.layout),
        # Of several classes with names, a mean would be one of arbitrary numbers.
        **({"classes": len(classes.names)} if classes else {}),
        **({} if classes and len(classes.names) > 2 else {"label_mean": round(float(frame[LABEL].mean()), 6)}),
    }


if __name__ == "__main__":
    main(work)
