"""Checks pipelines' files with their suites and, with `--data`, their data, before a run does.

    nightshift check [--data [--as-of 2026-01-31] [--size 256MiB]] FILE...

With `--data`, ingest, validate and prepare run on the data of the next run, in a scratch folder: nothing is registered, and no store or
ledger is touched. Of a table larger than `--size`, some files are read, spread evenly over the window; a single file is read whole.
Exit code 0, or the one that the first stage that failed would have.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from training.command_line import describe
from training.contracts import ExitCode, Instant, RunIdentity, StageRequest
from training.errors import NightshiftError, SpecError, counted
from training.installation import DATABASE
from training.process.scratch import scratch_folder
from training.runtime.exhausted_resources import machine_limit
from training.spec import check as spec_check
from training.spec.scalar_types import parse_size
from training.spec.schedule.instants import check_not_future, settle_as_of
from training.spec.uris import resolve_uris

if TYPE_CHECKING:
    from training.runtime.context import StageContext
    from training.sources.interface import ListedPart
    from training.spec import PipelineSpec
    from training.store import Store

SIZE: Final = "256MiB"
MIB: Final = 2**20
MIN_FILES: Final = 6
OF_THE_WHOLE_WINDOW: Final = frozenset({"data.empty_days", "data.missing_days", "volume.change", "freshness.late"})
"""Codes of checks that need all files."""
Listing = dict[str, "list[ListedPart]"]
Say = Callable[[str], None]


def check_data(spec: PipelineSpec, as_of: Instant, *, size_bytes: int, say: Say) -> ExitCode:
    """Run the stages up to the training on data of a pipeline; return the exit code of the first that failed, or 0.

    Args:
        as_of: of the run that is imagined.
        size_bytes: of the files that are read of a table.
        say: is given each line as soon as it is known.
    """
    say(f"{spec.name}: as of {as_of.isoformat()}")
    try:
        sources = _listing(spec, as_of, size_bytes, say)
        with _scratch() as folder:
            return _stages(_Bench(spec, as_of, folder), sources, say)
    except _Refused as err:
        say(f"  FAIL  {err.stage}: {_words(err.error)}")
        return err.error.exit_code


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder that is removed, also if the process is asked to end. Ingest registers its snapshot in a database there."""
    known = DATABASE.value() if DATABASE.is_set() else None
    before = signal.signal(signal.SIGTERM, _end)
    with scratch_folder() as folder:
        os.environ[DATABASE.name] = f"sqlite:///{folder}/check.db"
        try:
            yield folder
        finally:
            signal.signal(signal.SIGTERM, before)
            if known is None:
                del os.environ[DATABASE.name]
            else:
                os.environ[DATABASE.name] = known


def _end(number: int, _frame: object) -> NoReturn:
    # As a shell says of a process that a signal ended; what is open is left, and removed, on the way out.
    sys.exit(128 + number)


def _words(err: NightshiftError) -> str:
    # A SpecError's text names each problem, its code and what to do.
    return str(err) if isinstance(err, SpecError) else f"[{err.code}] {err.message}" + (f" ({err.hint})" if err.hint else "")


class _Refused(Exception):
    """A stage refused the data."""

    def __init__(self, stage: str, error: NightshiftError) -> None:
        super().__init__(stage)
        self.stage, self.error = stage, error


class _Bench:
    """Runs stages in a scratch folder."""

    def __init__(self, spec: PipelineSpec, as_of: Instant, folder: Path) -> None:
        from training.store import Store

        self.spec = spec
        self._as_of, self._folder = as_of, folder
        self.store: Store = Store(str(folder / "store"))

    def context(self, stage: str, inputs: Mapping[str, str], parameters: Mapping[str, Any]) -> StageContext:
        from training.runtime.context import StageContext, StopFlag

        request = StageRequest(
            pipeline=self.spec.name,
            stage=stage,
            work_id="0" * 64,
            attempt_id="check",
            store_uri=self.store.root_uri,
            spec_uri="",
            as_of=self._as_of,
            inputs=dict(inputs),
            parameters=dict(parameters),
            run=RunIdentity(dag_id=self.spec.name, run_id="check", task_id=stage),
        )
        folder = self._folder / stage
        folder.mkdir()
        return StageContext(store=self.store, request=request, spec=self.spec, folder=folder, stop=StopFlag())


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """The files that are read."""

    listing: Listing
    is_sample: bool
    """Whether some are left out."""
    share: float
    """Of the main table's bytes."""


def _listing(spec: PipelineSpec, as_of: Instant, size_bytes: int, say: Say) -> _Sources:
    from training.sources.listing import listing_for, missing_partitions

    try:
        missing, listing = missing_partitions(spec, as_of), listing_for(spec, as_of)
    except NightshiftError as err:
        raise _Refused("the sources", err) from err
    for lacking in missing:
        names = ", ".join(lacking.names[:3]) + (" …" if len(lacking.names) > 3 else "")
        say(f"  WARN  {lacking.table}: {len(lacking.names)} of {lacking.expected} partitions are not there yet: {names}")
    is_sample, share = False, 1.0
    for table, parts in listing.items():
        kept = sample(parts, size_bytes)
        read = sum(part["size_bytes"] for part in kept)
        left = "" if len(kept) == len(parts) else f" of {len(parts)}, spread over the window"
        say(f"        {table}: {counted(len(kept), 'file')}{left}, {read / MIB:,.1f} MiB")
        if table == spec.data.source.table:
            share = read / max(1, sum(part["size_bytes"] for part in parts))
        is_sample, listing[table] = is_sample or len(kept) < len(parts), kept
    return _Sources(listing=listing, is_sample=is_sample, share=share)


def sample(parts: list[ListedPart], size_bytes: int) -> list[ListedPart]:
    """Return files of about this size; of a union some of each of its tables, without which ingest would refuse it."""
    whole = sum(part["size_bytes"] for part in parts)
    by_table: dict[str | None, list[ListedPart]] = {}
    for part in parts:
        by_table.setdefault(part.get("table"), []).append(part)
    sizes = {table: sum(part["size_bytes"] for part in found) for table, found in by_table.items()}
    return [part for table, found in by_table.items() for part in _spread(found, size_bytes * sizes[table] // max(whole, 1))]


def _spread(parts: list[ListedPart], size_bytes: int) -> list[ListedPart]:
    whole = sum(part["size_bytes"] for part in parts)
    if whole <= size_bytes or len(parts) <= MIN_FILES:
        return parts
    count = max(MIN_FILES, int(len(parts) * size_bytes / whole))
    # By time, where the parts have one: the first and the last are among them.
    ordered = sorted(parts, key=lambda part: (part["partition"] or "", part["uri"]))
    places = sorted({round(number * (len(parts) - 1) / (count - 1)) for number in range(count)})
    return [ordered[place] for place in places]


def _stages(bench: _Bench, sources: _Sources, say: Say) -> ExitCode:
    from training.models.memory_check import planned_limit_bytes, shortage
    from training.sources.rows_outside import is_warning, outside_lines
    from training.stages import ingest, prepare

    spec = bench.spec
    with _refused_by("ingest"):
        snapshot = ingest.work(bench.context("ingest", {}, {"listing": sources.listing}))
    say(f"  ok    ingest: {snapshot.scalars['rows']:,} rows")
    for line in outside_lines(snapshot.scalars):
        say(f"  WARN  ingest: {line}" if is_warning(line) else f"        {line}")
    if not _validated(bench, snapshot.artifact_uri, say, is_sample=sources.is_sample):
        say("        prepare was not tried")
        return ExitCode.BAD_DATA
    with _refused_by("prepare"):
        prepared = prepare.work(bench.context("prepare", {"snapshot": snapshot.artifact_uri}, {}))
    counts: Mapping[str, Any] = prepared.scalars
    splits = ", ".join(f"{name} {counts[f'rows_{name}']:,}" for name in ("train", "validation", "test"))
    say(f"  ok    prepare: rows of {splits}; {counts['features']} features")
    # Of a sample, about as many as its share of the bytes says.
    lacking = shortage(spec, int((counts["rows_train"] + counts["rows_validation"]) / sources.share), planned_limit_bytes(spec))
    if lacking is not None:
        say(f"  WARN  train: {lacking}")
    label = spec.data.label.column
    if "label_mean" in counts:
        say(f"        label {label}: mean {counts['label_mean']}")
    if "classes" in counts:
        say(f"        label {label}: {counts['classes']} classes")
    if not sources.is_sample:
        _say_blocks(bench, prepared.artifact_uri, say)
    return ExitCode.DONE


def _say_blocks(bench: _Bench, dataset_uri: str, say: Say) -> None:
    """Say how many blocks of time the interval of a gain would have."""
    import numpy as np

    from training.data.dataset.reader import DatasetReader
    from training.data.join.contract import LABEL
    from training.evaluation.bootstrap.label_blocks import label_blocks
    from training.evaluation.raw_rows import RawRows
    from training.evaluation.rows import LabelledRows
    from training.registry.gates.significance import blocks_of_labels

    context, rules = bench.context("evaluate", {"dataset": dataset_uri}, {}), bench.spec.evaluate
    dataset = context.input("dataset")
    reader = DatasetReader(context.store, dataset, context.folder)
    raw = RawRows(reader, reader.numbers("test"))
    labels = reader.rows_numbered(raw.numbers, [LABEL])[LABEL].to_numpy(dtype=np.float64)
    found = label_blocks(LabelledRows.of(bench.spec, raw, labels, dataset.meta["group"]), confidence=rules.confidence, least=rules.block)
    if found is not None:
        is_enough, words = blocks_of_labels(found, rules.block)
        by = "by how the labels of the test split depend on each other, an interval of a gain has"
        say(f"  {'ok  ' if is_enough else 'WARN'}  evaluate: {by} {words}")


def _validated(bench: _Bench, snapshot_uri: str, say: Say, *, is_sample: bool) -> bool:
    """Say what validation finds; return whether it would pass."""
    from training.stages.validate import findings_of

    context = bench.context("validate", {"snapshot": snapshot_uri}, {})
    with _refused_by("validate"):
        manifest = context.input("snapshot")
        context.store.manifests.fetch(manifest, context.folder)
        found = findings_of(context, manifest, None)
    judged = [one for one in found.checks if not (is_sample and one.code in OF_THE_WHOLE_WINDOW)]
    failed = [one for one in judged if one.status == "failed"]
    for one in judged:
        if one.status != "passed":
            say(f"  {'FAIL' if one.status == 'failed' else 'WARN'}  validate: {one.line()}")
    if failed:
        return False
    say(f"  ok    validate: {len(judged)} checks")
    return True


@contextmanager
def _refused_by(stage: str) -> Iterator[None]:
    """Name the stage that refuses the data in this block."""
    try:
        yield
    except NightshiftError as err:
        raise _Refused(stage, err) from err
    except Exception as err:
        if (limit := machine_limit(err)) is not None:
            raise _Refused(stage, limit) from err
        raise


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _check, "nightshift check dags/pipelines/search_ranking.yaml", __doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML files of pipelines")
    parser.add_argument("--data", action="store_true", help="read data, and say what would fail in it")
    parser.add_argument("--as-of", metavar="TIME", help="with --data: of the run, a day or a time with an offset; default: the last slot")
    parser.add_argument("--size", default=SIZE, help=f"with --data: of the files that are read of a table; default {SIZE}")


def _check(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    spec_check.logger.setLevel(logging.INFO)
    # Which columns the files have in another encoding.
    logging.getLogger("training.data.snapshot.builder").setLevel(logging.INFO)
    # It logs each folder that it makes; its level is set again when it is imported.
    logging.getLogger("great_expectations.data_context.types.base").disabled = True
    specs, errors = spec_check.check_files(options.files)
    # A file is sound with its suites.
    of_suites = {path: error for path, (spec, _warnings) in specs.items() if (error := _suite_error(spec)) is not None}
    exit_code = spec_check.report({path: found for path, found in specs.items() if path not in of_suites}, errors)
    for path, error in of_suites.items():
        sys.stderr.write(f"{path}: {error}\n")
    if exit_code or of_suites:
        return int(ExitCode.BAD_SPEC)
    if not options.data:
        return exit_code
    try:
        size_bytes = parse_size(options.size)
    except ValueError:
        sys.stderr.write(f"--size {options.size!r}: write a number and a unit, at least 16MiB: {SIZE}\n")
        return int(ExitCode.BAD_SPEC)
    for path, (spec, _warnings) in specs.items():
        try:
            now = datetime.now(UTC)
            as_of = settle_as_of(spec, parameter=options.as_of, logical_date=None, run_after=now)
            check_not_future(as_of, now)
            found = check_data(resolve_uris(spec, os.environ), as_of, size_bytes=size_bytes, say=_print)
        except (NightshiftError, ValueError) as err:
            sys.stderr.write(f"{path}: {err}\n")
            exit_code = exit_code or int(getattr(err, "exit_code", ExitCode.BAD_SPEC))
            continue
        exit_code = exit_code or int(found)
    return exit_code


def _suite_error(spec: PipelineSpec) -> SpecError | None:
    """Return what is wrong with the suites of a pipeline's tables, if anything is."""
    from training.sources.table_contract import contracts_of
    from training.validation.suites.judging import check_suites

    try:
        check_suites(contracts_of(spec))
    except SpecError as err:
        return err
    return None


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
