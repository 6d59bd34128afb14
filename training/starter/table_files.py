"""Which files a table has: one, those of a folder, or those of folders or files that are named after a time."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from training.errors import DataError, shown
from training.sources.compression import CODECS
from training.sources.content import SHEET, UNPACK
from training.sources.lake_tables import refuse_lake_table
from training.sources.listing import check_tables_above
from training.sources.local_folder import is_data
from training.spec.schedule.partitions import (
    FORMS,
    PLACEHOLDER,
    TIME,
    Grain,
    bounds_of,
    grain_of,
    names_in,
    other_paddings,
    partition_at,
    partition_fault,
    values_at,
)

SUFFIXES: Final = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
REMEDIES: Final = dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods"), SHEET) | dict.fromkeys((".zip", ".7z", ".bz2", ".xz"), UNPACK)
FORBIDDEN: Final = re.compile(r"[\\#?@%$]|[^\S ]")
"""In the name of a file, as `training.spec.uris` has it; and what would be decoded."""
TIMES: Final = (
    (re.compile(r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)"), "{date}"),
    (re.compile(r"(?<!\d)\d{4}-\d\d(?![\d-])"), "{month}"),
    (re.compile(r"(?<!\d)(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?!\d)"), "%Y%m%d"),
    (re.compile(r"(?<=year=)\d{4}(?!\d)"), "%Y"),
    (re.compile(r"(?<=month=)\d\d(?!\d)"), "%m"),
    (re.compile(r"(?<=day=)\d\d(?!\d)"), "%d"),
    (re.compile(r"(?<=hour=)\d\d(?!\d)"), "{hour}"),
    (re.compile(r"(?<![^/])\d{4}/\d\d/\d\d/\d\d(?![^/])"), "%Y/%m/%d/%H"),
    (re.compile(r"(?<![^/])\d{4}/\d\d/\d\d(?![^/])"), "%Y/%m/%d"),
    (re.compile(r"(?<![^/])\d{4}/\d\d(?![^/])"), "%Y/%m"),
)
"""What times look like in the names of folders and files, and the placeholder of `data.source.partition`."""
UNPADDED: Final = {
    unit: (re.compile(rf"(?<={unit}=)(?:[1-9]\d|\d)(?!\d)"), f"%-{unit[0] if unit != 'hour' else 'H'}") for unit in ("month", "day", "hour")
}
VALUE: Final = re.compile(r"(?<![^/])([A-Za-z_][A-Za-z0-9_]*)=[^/{}%]+(?=/)")
"""A folder with the value of a column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFiles:
    """The files of a table."""

    root: Path
    """What `uri` names: the file, or the folder."""
    kind: str
    """Of the source that reads them: csv, jsonl, parquet."""
    paths: Sequence[Path]
    partition: str = ""
    """As `data.source.partition`; empty: none."""
    names: Sequence[str] = ()
    """Of each path's partition, where there are some."""
    num_empty: int = 0
    """Files of 0 bytes that have others beside them: they are passed over."""

    @property
    def grain(self) -> Grain | None:
        return grain_of(self.partition) if self.partition else None

    @property
    def is_one_per_partition(self) -> bool:
        """Whether a file has no other one beside it in its partition."""
        return len(set(self.names)) == len(self.paths) if self.partition else len(self.paths) == 1

    def starts(self, zone: str) -> dict[Path, datetime]:
        """Return when the partition of each file begins."""
        by_name = {name: bounds_of(name, ZoneInfo(zone))[0] for name in set(self.names)}
        return {path: by_name[name] for path, name in zip(self.paths, self.names, strict=True)} if self.partition else {}

    def values(self) -> dict[Path, dict[str, str | None]]:
        """Return the values of columns that the folders of each file name, in all files the same columns; those of times are none."""
        found = {path: values_at(self.partition or None, path.relative_to(self.root).as_posix()) for path in self.paths}
        common = set.intersection(*(set(values) for values in found.values()))
        named = [name for name in found[self.paths[0]] if name in common and (not self.partition or name in names_in(self.partition))]
        return {path: {name: values[name] for name in named} for path, values in found.items()}

    def newest_without_gap(self, zone: str) -> tuple[datetime, datetime, str]:
        """Return begin and end of the newest partitions of which none is missing, and the name of the missing one before, or nothing."""
        names = sorted(set(self.names), reverse=True)
        start, end = bounds_of(names[0], ZoneInfo(zone))
        for name in names[1:]:
            earlier, later = bounds_of(name, ZoneInfo(zone))
            if later != start:
                moment = (start - timedelta(microseconds=1)).astimezone(ZoneInfo(zone))
                return start, end, moment.strftime(FORMS[self.grain or Grain.DAY])
            start = earlier
        return start, end, ""


def kind_of(path: Path) -> str:
    """Return the kind of source that reads a file, by its suffixes.

    Raises:
        DataError: `init.file`, there is none for it.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in CODECS:
        suffixes.pop()
    kind = SUFFIXES.get(suffixes[-1] if suffixes else "")
    if kind is None:
        message = f"{shown(path.name)} has none of the suffixes {', '.join(SUFFIXES)}"
        other = REMEDIES.get(path.suffix.lower(), "name the file after its format; text files may be compressed, .gz or .zst")
        raise DataError("init.file", message, hint=other)
    return kind


def files_of(named: Sequence[str]) -> TableFiles:
    """Return the files that the command line names.

    Args:
        named: one file, one folder, a folder with a partition below it (`data/dt={date}`), or files and folders of one table, as a
            shell makes them of `data/*.csv`; the same as a pattern.

    Raises:
        DataError: `init.file`, there are none, they are of several kinds, or a source would read others too; `source.lake_table`;
            `partition.padding`.
    """
    if len(named) == 1 and TIME.search(named[0]):
        return _of_pattern(named[0])
    given = [Path(path) for text in named for path in _expanded(text)]
    if len(given) == 1 and not given[0].is_dir():
        # What a link names: a source of the link's folder does not follow it out of there.
        path = given[0].resolve()
        kind = kind_of(path)
        _check_name(path.name)
        if not path.is_file():
            raise DataError("init.file", f"{path} is not a file", hint="name a CSV, JSON lines or Parquet file, or a folder of such files")
        check_tables_above(path.as_uri(), None)
        return TableFiles(root=path, kind=kind, paths=[path])
    root = given[0] if len(given) == 1 else Path(os.path.commonpath([path.resolve().parent for path in given]))
    chosen = [found for path in given for found in (_below(path) if path.is_dir() else [path.resolve()])]
    return _of_folder(root, chosen)


def _expanded(text: str) -> list[str]:
    if Path(text).exists():
        return [text]
    found = sorted(glob.glob(text))
    if not found:
        raise DataError("init.file", f"there is no file {text}", hint="name a file, or a folder of files")
    return found


def _below(folder: Path) -> list[Path]:
    """Return the data files of a folder, as sources list them."""
    folder = folder.resolve()
    inside = {path: path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()}
    refuse_lake_table(str(folder), (found.as_posix() for found in inside.values()))
    return [path for path, found in inside.items() if all(is_data(part) for part in found.parts)]


def _of_folder(root: Path, chosen: Sequence[Path]) -> TableFiles:
    root = root.resolve()
    if not chosen:
        raise DataError("init.file", f"{root} has no data files", hint="name a folder with CSV, JSON lines or Parquet files")
    partition = _detected([path.relative_to(root) for path in chosen])
    found = _with_names(root, partition, _below(root)) if partition else TableFiles(root=root, kind="", paths=_below(root))
    others = set(found.paths) - set(chosen)
    if others:
        message = f"a source of {root} would also read {sorted(others)[0].relative_to(root)}"
        raise DataError("init.file", message, hint="name the folder, or move the files of other tables out of it")
    return _checked(found)


def _of_pattern(text: str) -> TableFiles:
    parts = text.split("/")
    first = next(number for number, part in enumerate(parts) if PLACEHOLDER.search(part))
    root, partition = Path("/".join(parts[:first]) or ("/" if text.startswith("/") else ".")).resolve(), "/".join(parts[first:])
    fault = partition_fault(partition)
    if fault:
        raise DataError(
            "init.file", f"{shown(partition)} {fault}", hint="name the folder or file of a day: data/dt={date}, data/{date}.csv"
        )
    below = _below(root) if root.is_dir() else []
    found = _with_names(root, partition, below)
    for other in other_paddings(partition):
        if more := set(_with_names(root, other, below).paths) - set(found.paths):
            message = f"{root} has {sorted(more)[0].relative_to(root)}, which is not in {partition}"
            raise DataError("partition.padding", message, hint=f"write {other}")
    if not found.paths:
        raise DataError("init.file", f"{root} has no files in {partition}", hint="correct the folder, or name a file")
    return _checked(found)


def _checked(found: TableFiles) -> TableFiles:
    """Return the files with their kind."""
    check_tables_above(found.root.as_uri(), None)
    kinds = {kind_of(path): path for path in found.paths}
    if len(kinds) > 1:
        names = " and ".join(str(path.relative_to(found.root)) for path in kinds.values())
        raise DataError("init.file", f"{found.root} has files of several formats: {names}", hint="one table has one format")
    for part in {part for path in found.paths for part in path.relative_to(found.root).parts} | {found.root.name}:
        _check_name(part)
    named = list(zip(found.paths, found.names or [""] * len(found.paths), strict=True))
    filled = {name for path, name in named if path.stat().st_size}
    kept = [(path, name) for path, name in named if name not in filled or path.stat().st_size]
    return TableFiles(
        root=found.root,
        kind=next(iter(kinds)),
        paths=[path for path, _ in kept],
        partition=found.partition,
        names=[name for _, name in kept] if found.names else (),
        num_empty=len(named) - len(kept),
    )


def _check_name(name: str) -> None:
    strange = FORBIDDEN.search(name)
    if strange or not name.isprintable():
        found = shown(strange[0]) if strange else "characters that cannot be printed"
        raise DataError("init.file", f"the name {shown(name)} has {found}: no uri of a source may have it", hint="rename the file")


def _detected(paths: Sequence[Path]) -> str:
    """Return the partition of which each file is one part, or nothing: of its folder, or else its name."""
    for texts in ({f"{path.parent.as_posix()}/" for path in paths}, {path.as_posix() for path in paths}):
        unpadded = [unit for unit in UNPADDED if any(re.search(rf"(?<={unit}=)\d(?!\d)", text) for text in texts)]
        found = {_with_placeholders(text, unpadded).rstrip("/") for text in texts}
        if len(found) == 1 and not partition_fault(partition := found.pop()):
            return partition
    return ""


def _with_placeholders(text: str, unpadded: Sequence[str]) -> str:
    for pattern, placeholder in (*(UNPADDED[unit] for unit in unpadded), *TIMES):
        text = pattern.sub(placeholder, text)
    return VALUE.sub(r"\1={\1}", text)


def _with_names(root: Path, partition: str, paths: Sequence[Path]) -> TableFiles:
    """Return the files that are in a partition, with its name."""
    places = ((path, partition_at(partition, path.relative_to(root).as_posix())) for path in paths)
    named = {path: name for path, name in places if name}
    return TableFiles(root=root, kind="", paths=list(named), partition=partition, names=list(named.values()))
