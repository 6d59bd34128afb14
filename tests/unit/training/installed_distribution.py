"""A distribution of another author, installed for a test in a folder of its own: files, metadata and entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def installed(
    folder: Path, name: str, *, group: str, points: Mapping[str, str], files: Mapping[str, str], caches: Sequence[Any]
) -> Iterator[Path]:
    """Install a distribution in the block; its modules and what was found of it are forgotten afterwards.

    Args:
        folder: put on sys.path.
        name: of the distribution.
        group: of its entry points.
        points: name of an entry point to its module.
        files: path below `folder` to text.
        caches: functions with a `functools.cache` that keep what is installed.
    """
    info = f"{name}-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/entry_points.txt": f"[{group}]\n" + "".join(f"{point} = {module}\n" for point, module in points.items()),
        f"{info}/top_level.txt": "".join(f"{module}\n" for module in points.values()),
    }
    for path, text in (dict(files) | metadata).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for cached in caches:
            cached.cache_clear()
        yield folder
    for cached in caches:
        cached.cache_clear()
    for module in [module for module in sys.modules if module.partition(".")[0] in points.values()]:
        del sys.modules[module]
