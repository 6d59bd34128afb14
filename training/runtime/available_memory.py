"""How much memory there is: of the machine, or of the control group around this process."""

from __future__ import annotations

import os
from pathlib import Path


def memory_limit_bytes() -> int:
    """Return what this machine, or the control group around it, allows a process."""
    found = []
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(size for size in found if size > 0)
