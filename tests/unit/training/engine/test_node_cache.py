"""Files that the ranks of a node share."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from training.engine.node_cache import _link


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK])
def test_file_system_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    source, target = tmp_path / "source", tmp_path / "of rank 1" / "target"
    source.write_bytes(b"rows")

    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("training.engine.node_cache.os.link", refuse)
    _link(source, target)

    assert target.read_bytes() == b"rows"
