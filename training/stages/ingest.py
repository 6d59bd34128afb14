"""Ingest: takes an immutable snapshot of what the run may see of its sources, and registers it.

python -m training.stages.ingest REQUEST_URI
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from training.contracts import JsonObject
from training.data.join.derived import check_baseline
from training.data.snapshot.builder import KIND, Listing, SnapshotPlan, take_snapshot
from training.data.snapshot.index import register_snapshot
from training.data.snapshot.label_delay import META_KEY, SplitRule, split_lines
from training.data.snapshot.meta import rows_per_table
from training.database import connect
from training.errors import counted
from training.runtime.runner import StageContext, StageOutput, main
from training.sources.listing import lookback_of
from training.sources.rows_outside import RowsOutside, is_warning, outside_lines
from training.sources.table_contract import contracts_of
from training.spec import PipelineSpec
from training.spec.schedule.instants import window
from training.store import Manifest, set_run_ref

logger = logging.getLogger(__name__)


def work(context: StageContext) -> StageOutput:
    """Take the snapshot of `request.parameters["listing"]`, or the existing one that `request.parameters["snapshot"]` names.

    Raises:
        DataError: what the sources hold is not what the spec declares, and validation could not even look at it; `derive.expression`, the
            spec's SQL baseline is not an expression over its columns; the existing snapshot is missing or damaged; `data.empty`,
            `data.future_rows`, of the times of the rows.
        DeniedError: `snapshot.deprecated`.
    """
    spec, request, store = context.spec, context.request, context.store
    # Evaluate computes it from the columns of the spec: nothing has to be read or trained to refuse it.
    check_baseline(spec)
    chosen, outside = request.parameters.get("snapshot"), RowsOutside(datetime.now(UTC), spec.data.source.decision_lead)
    if chosen is None:
        plan = _plan(spec, request.parameters["listing"], request.as_of)
        with context.timed("snapshot"):
            uri, manifest = take_snapshot(
                store, plan, context.folder, on_file=lambda done, total: context.progress(done, total, "files"), outside=outside
            )
        outside.check(plan.window_of(plan.contracts[0]), table=plan.contracts[0].name, limit=spec.validate_.future_rows)
    else:
        # As it is: its rows, window and time, whatever the sources hold now.
        uri, manifest = str(chosen), store.manifests.get(str(chosen), kind=KIND)
    with context.timed("register"):
        by = f"{request.run.owner}/{request.run.try_number}"
        version = register_snapshot(connect(), name=spec.name, uri=uri, manifest=manifest, created_by=by)
    if chosen is not None:
        logger.info("snapshot %s as of %s is taken again; the sources are not read", version, manifest.meta["as_of"])
    _log_rows(manifest)
    for line in outside_lines(outside.scalars()):
        logger.log(logging.WARNING if is_warning(line) else logging.INFO, "%s: %s", manifest.meta["main"], line)
    set_run_ref(store, request, "snapshot", uri)
    tables, unknown = manifest.meta["tables"], manifest.meta.get(META_KEY)
    scalars = {
        **({} if unknown is None else {"unknown_labels": unknown["unknown"]}),
        "rows": tables[manifest.meta["main"]]["rows"],
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        "version": version,
        **outside.scalars(),
    }
    return StageOutput(artifact_uri=uri, digest=manifest.digest, scalars=scalars)


def _plan(spec: PipelineSpec, listing: Listing, as_of: datetime) -> SnapshotPlan:
    start, end = window(spec, as_of)
    return SnapshotPlan(
        contracts=contracts_of(spec),
        listing=listing,
        as_of=as_of,
        start=start,
        end=end,
        split=_split_facts(spec),
        split_rule=SplitRule.of(spec),
        lookback=lookback_of(spec, as_of),
    )


def _log_rows(manifest: Manifest) -> None:
    for name, facts in manifest.meta["tables"].items():
        empty = sum(not part["rows"] for part in facts["parts"].values())
        more = f", {empty} of them without rows of the window" if empty else ""
        logger.info("%s: %s in %s%s", name, counted(facts["rows"], "row"), counted(len(facts["parts"]), "file"), more)
        for table, count in rows_per_table(facts).items():
            logger.info("%s: %s rows of table %s", name, f"{count:,}", table)
        for key, count in facts.get("left_out", {}).items():
            logger.info("%s: %s rows left out by data.source.%s", name, f"{count:,}", key)
    unknown = manifest.meta.get(META_KEY)
    for line in [] if unknown is None else split_lines(unknown):
        logger.info("%s", line)


def _split_facts(spec: PipelineSpec) -> JsonObject:
    """Return the split as the snapshot records it: its kind, and what differs from the defaults."""
    split: JsonObject = spec.data.split.model_dump(mode="json")
    return {key: value for key, value in split.items() if key == "by" or value != type(spec.data.split).model_fields[key].default}


if __name__ == "__main__":
    main(work)
