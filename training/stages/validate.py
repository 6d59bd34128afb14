"""Validate: runs the checks that no user can remove, then the suites; a snapshot that fails is never trained on.

python -m training.stages.validate REQUEST_URI
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from training.contracts import JsonObject, canonical_json, instant_of
from training.data.snapshot.label_delay import META_KEY
from training.data.snapshot.meta import SnapshotMeta, snapshot_meta
from training.errors import DataError
from training.pages.validation import render_report
from training.runtime.runner import StageContext, StageOutput, main
from training.sources.listing import profile_ref_name, snapshot_ref_name
from training.sources.rows_outside import outside_lines
from training.sources.table_contract import contracts_of
from training.store import Manifest, Store, point_at
from training.store.work_folder import StoreUri
from training.validation.all_checks import DEFAULT_MEMORY, CheckRules, validate_snapshot
from training.validation.checks.damaged_files import naming_damage
from training.validation.columns.profiles import tables_of, to_json
from training.validation.drift.limits import Earlier, in_words
from training.validation.results import CheckResult, Findings
from training.validation.snapshot_view import open_snapshot

logger = logging.getLogger(__name__)


def work(context: StageContext) -> StageOutput:
    """Validate `inputs["snapshot"]` against the spec, and against `parameters["previous_snapshot"]` where there is one.

    The report is always published. A snapshot that passes becomes the validated snapshot of its run.

    Raises:
        DataError: code of the first check that failed; the message lists up to ten of them, and the report. `format.parquet`: a file of
            the snapshot cannot be decoded.
        SpecError: `suite.missing`, `suite.invalid`, `suite.memory`.
    """
    request, store, manifest = context.request, context.store, context.input("snapshot")
    uri = request.inputs["snapshot"]
    previous, without = _previous(store, request.parameters.get("previous_snapshot"), table=context.spec.data.source.table)
    with context.timed("fetch"):
        store.manifests.fetch(manifest, context.folder)
    with context.timed("checks"):
        findings = findings_of(context, manifest, previous)
    findings.checks += without
    window = manifest.meta["window"]
    page = render_report(
        findings,
        pipeline=request.pipeline,
        as_of=request.as_of,
        window=(instant_of(window["start"]), instant_of(window["end"])),
        snapshot_digest=manifest.digest,
        timezone=context.spec.timezone,
        outside=[*outside_lines(request.parameters.get("ingest", {}))],
    )
    report_uri = context.publish_page("validation", page)
    for check in findings.checks:
        if check.status == "warned":
            logger.warning("%s", check.line())
    findings.raise_if_failed(report_uri)
    to_approve = findings.to_approve
    meta = {"snapshot": manifest.digest, "checks": findings.counts, **({"to_approve": to_approve} if to_approve else {})}
    artifact_uri, artifact = store.manifests.put_files("validation", {"results.json": canonical_json(findings.to_json())}, meta)
    profiles = to_json(findings.profiles, snapshot=manifest.digest, as_of=request.as_of, runs=findings.runs)
    # Also of a run that is no reference: its model may become champion, against whose rows later nights measure drift.
    point_at(store.ref(profile_ref_name(request.pipeline, manifest.digest)), store.put_json(profiles))
    if request.parameters.get("is_reference", True):
        point_at(store.ref(snapshot_ref_name(request.pipeline, request.as_of)), uri)
    counts = findings.counts
    logger.info("%d checks passed, %d warned", counts["passed"], counts["warned"])
    return StageOutput(
        artifact_uri=artifact_uri,
        digest=artifact.digest,
        scalars={
            "rows": manifest.meta["tables"][manifest.meta["main"]]["rows"],
            "checks": len(findings.checks),
            "warnings": counts["warned"],
            **({"to_approve": len(to_approve)} if to_approve else {}),
        },
        reports={"validation": report_uri},
    )


def findings_of(context: StageContext, manifest: Manifest, previous: SnapshotMeta | None) -> Findings:
    """Return what all checks find in a snapshot whose files are in the folder of `context`."""
    spec, window = context.spec, manifest.meta["window"]
    rules = CheckRules(
        as_of=context.request.as_of,
        start=datetime.fromisoformat(window["start"]),
        end=datetime.fromisoformat(window["end"]),
        zone=ZoneInfo(spec.timezone),
        label=spec.data.label.column,
        volume_change=spec.validate_.volume_change,
        freshness=spec.validate_.freshness,
        unknown_labels=spec.validate_.unknown_labels,
        schema_change=spec.validate_.schema_change,
        empty_days=spec.validate_.empty_days,
        drift=spec.validate_.drift,
        memory=spec.validate_.memory or DEFAULT_MEMORY,
        unknown=manifest.meta.get(META_KEY),
    )
    views = open_snapshot(manifest, context.folder, contracts_of(spec))
    parameters, table = context.request.parameters, spec.data.source.table
    earlier, lost = _earlier(context.store, parameters.get("earlier") or [], table=table)
    with naming_damage(views):
        findings = validate_snapshot(
            views,
            rules,
            previous,
            on_table=lambda done, total: context.progress(done, total, "tables"),
            suites_path=_fetched_suites(context.store, parameters.get("suites"), context.folder),
            earlier=earlier,
        )
    findings.checks += lost
    return findings


def _previous(store: Store, uri: str | None, *, table: str) -> tuple[SnapshotMeta | None, list[CheckResult]]:
    """Return what is compared with for volume and columns, and a warning if it cannot be read, for the reason of `_earlier`."""
    if not uri:
        return None, []
    try:
        return snapshot_meta(store.manifests.get(uri, kind="snapshot")), []
    except DataError as err:
        return None, [_not_compared(table, "volume and columns against the previous snapshot", f"[{err.code}] {err.message}")]


def _earlier(store: Store, listed: Sequence[Mapping[str, Any]], *, table: str) -> tuple[list[Earlier], list[CheckResult]]:
    """Return the listed profiles (of snapshots with `names`, at the URI `profile`), and a warning for each that cannot be read.

    A profile that is lost must not stop every later run: nothing can bring it back.
    """
    found, lost = [], []
    for given in listed:
        names = tuple(given["names"])
        check = f"drift against {in_words(names)}"
        try:
            stored = store.get_json(given["profile"])
        except DataError as err:
            lost.append(_not_compared(table, check, f"[{err.code}] {err.message}"))
            continue
        tables, runs = tables_of(stored), cast("list[JsonObject]", stored.get("runs") or [])
        if tables is None:
            lost.append(_not_compared(table, check, f"its profile has format {stored['format']}, which this version does not read"))
        else:
            found.append(Earlier(names=names, as_of=instant_of(str(stored["as_of"])), tables=tables, runs=runs))
    return found, lost


def _not_compared(table: str, check: str, why: str) -> CheckResult:
    return CheckResult(
        code="drift.not_compared",
        check=check,
        table=table,
        status="warned",
        observed="not compared",
        allowed="compared",
        detail=why,
    )


def _fetched_suites(store: Store, suites: Mapping[str, str] | None, scratch: Path) -> Path | None:
    """Fetch suites, name to URI, to a folder; None for a request that names none: then the installation's folder has them."""
    if suites is None:
        return None
    # No table's name begins with an underscore.
    folder = scratch / "_suites"
    folder.mkdir()
    for name, uri in suites.items():
        store.objects.fetch(StoreUri(uri).digest, folder / f"{name}.json")
    return folder


if __name__ == "__main__":
    main(work)
