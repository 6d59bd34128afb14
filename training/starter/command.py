"""Writes a pipeline for a table: YAML, expectations suite and DAG file, guessed from the rows.

    nightshift init FILE --label COLUMN [--time COLUMN] [--name NAME]

Reads CSV, JSON lines (also .gz, .zst) or Parquet: a file, a folder of files, or partitions by hour, day or month (`data`, or
`data/day={date}`, `data/{date}.csv`). Columns are named as in the file; values that only folders name (`country=DE`) are columns too.
Without --time, a row has the time of its partition; without partitions, all rows count as of one instant, and they are divided at
random. Columns that nearly give the label away are declared `known: after`, so that no model sees them; the output names them, and every
other guess. All rows are read as a run reads them before anything is written. No file is replaced without --force, and none is written
if one cannot be. The files go below --to; without it into NIGHTSHIFT_PIPELINES, the folder above that, and NIGHTSHIFT_EXPECTATIONS; where
these are not set, into the checkout that this folder is in, else into this folder.
Exit code 0, or that of the error that is printed.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from training.command_line import describe
from training.contracts import JsonObject
from training.errors import DataError, DeniedError, counted, shown
from training.installation import EXPECTATIONS, PIPELINES
from training.process.scratch import scratch_folder
from training.spec import PipelineSpec
from training.spec.check import check_files
from training.spec.scalar_types import NAME_RULE
from training.spec.uris import resolve_uris
from training.starter.column_types import FoundColumn
from training.starter.command_options import SPLITS, Choices
from training.starter.generated_files import DAG, Naming, suite_text, yaml_text
from training.starter.label_task import PRIMARY, label_of
from training.starter.pipeline_draft import Draft, drafted
from training.starter.table_files import TableFiles, files_of
from training.starter.tables import FoundTable, Report, opened
from training.starter.time_columns import EventTime, event_time_of
from training.starter.trial_reading import read_as_ingest
from training.validation.suites.judging import suites_folder

MAX_SHOWN: Final = 12
STORED: Final = {
    "int96_utc": "Spark's INT96, taken for UTC",
    "decimal": "the nearest double of decimals of more than 15 digits; exact with {type: int64, scale: …}",
    "scale": "the integer is the file's number times 10 to this power",
    "zone": "its times have none; --timezone names another",
}
"""What a key of a column in Parquet says, by its name, or the value of `stored_as`."""
PROGRESS_SECONDS: Final = 5.0


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _init, "nightshift init orders.csv --time ordered_at --label cancelled", __doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="table with one row per prediction: .csv, .jsonl, .parquet, or a folder")
    parser.add_argument(
        "--time",
        default="",
        metavar="COLUMN[,COLUMN]",
        help="when a row happened: an instant, a day, a year, a number since 1970; or a day and a time of day",
    )
    parser.add_argument("--label", required=True, metavar="COLUMN", help="what is predicted")
    parser.add_argument("--key", default="", metavar="COLUMN[,COLUMN]", help="columns that identify a row; default: found")
    parser.add_argument("--split", choices=SPLITS, default="", help="default: time; without --time stratified by class, or random")
    parser.add_argument("--split-column", default="", metavar="COLUMN", help="of --split group or stratified")
    parser.add_argument("--name", default="", help="of the pipeline and the model; default: that of the file")
    parser.add_argument("--task", choices=tuple(PRIMARY), help="default: by the label's values")
    parser.add_argument("--positive", default="", metavar="CLASS", help="of a binary label of texts; default: a guess that is printed")
    form = "of times that are not in ISO 8601: %%d.%%m.%%y; %%s: seconds since 1970"
    parser.add_argument("--time-format", default="", metavar="FORMAT", help=form)
    parser.add_argument("--timezone", default="UTC", metavar="ZONE", help="of days and of times without an offset; default: UTC")
    parser.add_argument("--owner", default="", help="default: your login")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="default: those of the installation, else this checkout or folder")
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument("--json", action="store_true", help="print what was found and written as JSON")


def _init(options: argparse.Namespace) -> int:
    files = files_of(options.files)
    naming = _naming(options, files)
    paths = _paths(naming, options.to)
    _check_free(paths, force=options.force)
    with (
        scratch_folder() as scratch,
        opened(files, scratch, progress(), label=options.label, zone=naming.zone) as table,
    ):
        choices = _choices(options, naming)
        time = event_time_of(table, options.time, zone=naming.zone, now=choices.now, time_format=options.time_format)
        if options.label == options.time:
            raise DataError("init.label", f"{shown(options.label)} is the time of a row", hint="name another column")
        label = label_of(table, options.label, task=options.task or "", positive=options.positive)
        draft = drafted(table, time, label, choices, report=progress())
        texts = {"yaml": yaml_text(table, time, draft, naming), "suite": suite_text(table, draft, naming), "dag": DAG}
        spec = _checked(texts["yaml"], naming, scratch)
        read_as_ingest(resolve_uris(spec, {naming.variable: data_folder(files).as_uri()}), files, scratch)
        _write({paths[what]: text for what, text in texts.items()}, force=options.force)
        if options.json:
            sys.stdout.write(json.dumps(_as_json(table, time, draft, paths), indent=1, ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(_report(table, time, draft, naming, paths))
    return 0


def _paths(naming: Naming, to: Path | None) -> dict[str, Path]:
    """Return where the files go: below `to` where it is given, else where the installation has its own."""
    root = to or _checkout(Path.cwd())
    pipelines, expectations = ("", "") if to else (PIPELINES.text(), EXPECTATIONS.text())
    yaml_folder = Path(pipelines or root / "dags" / "pipelines")
    return {
        "yaml": yaml_folder / f"{naming.name}.yaml",
        "suite": Path(expectations or root / "expectations") / f"{naming.suite}.json",
        "dag": yaml_folder.parent / f"{naming.name}.py",
    }


def _choices(options: argparse.Namespace, naming: Naming) -> Choices:
    key = [name.strip() for name in options.key.split(",") if name.strip()]
    return Choices(key=key, split=options.split, split_column=options.split_column, zone=naming.zone, now=datetime.now(UTC))


def _naming(options: argparse.Namespace, files: TableFiles) -> Naming:
    """Return the names.

    Raises:
        DataError: `init.name`, the name is none, or the time zone is not known.
    """
    stem = files.root.resolve().name.split(".")[0]
    name = options.name or re.sub(r"[^a-z0-9_]+", "_", stem.lower()).strip("_")
    if not re.fullmatch(NAME_RULE, name, re.ASCII):
        raise DataError("init.name", f"{shown(name)} is not a pipeline's name", hint="--name orders: letters a-z, digits, '_', '-', '.'")
    try:
        ZoneInfo(options.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise DataError("init.name", f"{shown(options.timezone)} is not a time zone", hint="--timezone Europe/Berlin") from err
    try:
        login = getpass.getuser()
    except (KeyError, OSError):
        login = ""
    return Naming(name=name, owner=options.owner or login or "nobody", zone=options.timezone)


def progress(clock: Callable[[], float] = monotonic) -> Report:
    """Return what prints a line to the standard error every few seconds of work."""
    printed_at = clock()

    def report(what: str, number: int, count: int) -> None:
        nonlocal printed_at
        if clock() - printed_at >= PROGRESS_SECONDS:
            printed_at = clock()
            sys.stderr.write(f"{what}: column {number:,} of {count:,}\n")

    return report


def _checkout(folder: Path) -> Path:
    for place in (folder, *folder.parents):
        if (place / "dags" / "pipelines").is_dir():
            return place
    return folder


def _check_free(paths: Mapping[str, Path], *, force: bool) -> None:
    there = [str(path) for path in paths.values() if path.exists() or path.is_symlink()]
    if there and not force:
        message = f"{', '.join(there)} {'exists' if len(there) == 1 else 'exist'} already; nothing was written"
        raise DeniedError("init.exists", message, hint="choose another --name, or replace it by --force")


def _checked(text: str, naming: Naming, scratch: Path) -> PipelineSpec:
    """Return the spec, or raise what `nightshift check` would say of the file, before anything is written."""
    path = scratch / f"{naming.name}.yaml"
    path.write_text(text, encoding="utf-8")
    specs, errors = check_files([str(path)])
    for error in errors:
        raise error
    return specs[str(path)].spec


def _write(texts: Mapping[Path, str], *, force: bool) -> None:
    """Write all files or none.

    Raises:
        DeniedError: `init.exists`, another process has written one meanwhile; `init.folder`, a file cannot be written.
    """
    prepared: dict[Path, Path] = {}
    made: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            prepared[path] = path.with_name(f".{path.name}.{os.getpid()}")
            prepared[path].write_text(text, encoding="utf-8")
        for path, written in prepared.items():
            if force:
                os.replace(written, path)
            else:
                # Unlike a rename, a link never replaces a file.
                os.link(written, path)
                made.append(path)
    except OSError as err:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(err, FileExistsError):
            raise DeniedError(
                "init.exists", f"{err.filename2 or err.filename} exists already; nothing was written", hint="use --force"
            ) from err
        message = f"{err.filename}: {err.strerror}; nothing was written"
        raise DeniedError("init.folder", message, hint="choose a folder that you may write to: --to FOLDER") from err
    finally:
        for written in prepared.values():
            written.unlink(missing_ok=True)


def _report(table: FoundTable, time: EventTime, draft: Draft, naming: Naming, paths: Mapping[str, Path]) -> str:
    label = draft.label
    renamed = [f"{column.name} is {shown(column.source_name)}" for column in table.columns.values() if column.source_name != column.name]
    of_path = [column.source_name for column in table.columns.values() if column.is_of_path]
    lines = [
        f"{table.path.name}: {_counted(table)}{table.num_rows:,} rows, {len(table.columns) + len(table.left_out)} columns",
        *([f"  names      {_listed(renamed)}"] if renamed else []),
        *([f"  folders    name values that the files lack, read as columns: {_listed(of_path)}"] if of_path else []),
        f"  time       {_time(time)}",
        f"  label      {label.column}: {label.task}" + (f", {len(label.classes)} classes" if label.classes else ""),
        f"  key        {', '.join(draft.key)}",
        f"  split      {draft.split}",
        f"  features   {len(draft.features)}: {_listed(list(draft.features))}",
    ]
    look = [f"{name} is not a feature, for it may be the label in other words: {reason}" for name, reason in draft.late.items()]
    look += [f"{name} is not a feature: {reason}" for name, reason in draft.skipped.items()]
    look += [f"column {shown(name)} is not read: {reason}" for name, reason in table.left_out.items()]
    if empty := table.files.num_empty:
        look.append(f"{counted(empty, 'file')} of 0 bytes {'is' if empty == 1 else 'are'} passed over")
    look += [_stored(column) for column in table.columns.values() if column.keys]
    for texts in dict.fromkeys(tuple(column.missing) for column in table.columns.values() if column.missing):
        names = [column.name for column in table.columns.values() if tuple(column.missing) == texts]
        look.append(f"{', '.join(map(shown, texts))} {'counts' if len(texts) == 1 else 'count'} as missing in {_listed(names)}")
    if label.missing:
        look.append(f"{shown(label.missing)} in {label.column} counts as a missing label, as it is a missing number in other columns")
    look += [f"{label.num_missing:,} rows without a label are left out"] if label.num_missing else []
    look += [label.note] if label.note else []
    look += draft.notes
    if look:
        lines += ["look at:", *(f"  - {each}" for each in look[:40]), *([f"  - … and {len(look) - 40} more"] if len(look) > 40 else [])]
    lines += ["written:", *(f"  {path}" for path in paths.values())]
    uri, suites = data_folder(table.files).as_uri(), paths["suite"].parents[naming.suite.count("/")]
    lines += [
        "next:",
        f"  export {naming.variable}={uri}",
        *([f"  export {EXPECTATIONS.name}={shlex.quote(str(suites))}"] if suites != suites_folder() else []),
        f"  nightshift check --data --as-of {draft.night} {shlex.quote(str(paths['yaml']))}",
        f"  make run PIPELINE={naming.name} NIGHT={draft.night}     # in a checkout",
        *([f"  nightshift schedule on {naming.name}     # from then on by its schedule"] if draft.is_recent else []),
    ]
    return "\n".join(lines) + "\n"


def data_folder(files: TableFiles) -> Path:
    """Return the folder that the pipeline's environment variable names."""
    return files.root.resolve().parent


def _stored(column: FoundColumn) -> str:
    ((key, value),) = column.keys.items()
    return f"{column.name} is read with {key}: {value}, {STORED[str(value) if key == 'stored_as' else key]}"


def _counted(table: FoundTable) -> str:
    files = table.files
    if files.partition:
        return f"{len(files.paths):,} files of {len(set(files.names)):,} {files.grain}s ({files.partition}), "
    return f"{len(files.paths):,} files, " if len(files.paths) > 1 else ""


def _time(time: EventTime) -> str:
    if time.is_constant:
        return f"none: all rows count as of one instant, {time.reading}"
    if time.is_generated:
        return f"{time.name}, the begin of the row's partition"
    return time.column + (f", read as {time.reading}" if time.sql else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN]) + (" …" if len(names) > MAX_SHOWN else "")


def _as_json(table: FoundTable, time: EventTime, draft: Draft, paths: Mapping[str, Path]) -> JsonObject:
    return {
        "rows": table.num_rows,
        "files": len(table.files.paths),
        "partition": table.files.partition,
        "of_path": [column.source_name for column in table.columns.values() if column.is_of_path],
        "names": {column.name: column.source_name for column in table.columns.values()},
        "time": {"column": time.column, "sql": time.instant_sql},
        "label": {"column": draft.label.column, "task": draft.label.task, "positive": draft.label.positive, "note": draft.label.note},
        "key": list(draft.key),
        "split": draft.split,
        "night": str(draft.night),
        "features": list(draft.features),
        "suspected": draft.late,
        "skipped": draft.skipped,
        "not_read": dict(table.left_out),
        "notes": list(draft.notes),
        "written": {what: str(path) for what, path in paths.items()},
    }
