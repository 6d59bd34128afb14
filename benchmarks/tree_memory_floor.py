"""What XGBoost alone takes of memory for each row, with its matrix on disk: the floor of `train` with the family `boosted_trees`.

    python -m benchmarks.tree_memory_floor [--rows 4000000 16000000] [--features 17] [--classes 2] [--rounds 2] [--folder /large/disk]

Bare `ExtMemQuantileDMatrix` and `hist` training on generated blocks of 65,536 rows; nothing of Nightshift is in the process. Each size is
a process of its own; its anonymous memory (without pages of files, which the system takes back) is read twenty times a second.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import xgboost

BLOCK_ROWS: Final = 65_536
MIB: Final = 2**20
LOOK_SECONDS: Final = 0.05


class Blocks(xgboost.DataIter):  # type: ignore[misc]
    """Generated rows, a block at a time."""

    def __init__(self, rows: int, features: int, classes: int, cache: Path) -> None:
        self._rows, self._features, self._classes, self._next = rows, features, classes, 0
        super().__init__(cache_prefix=str(cache))

    def next(self, input_data: Any) -> bool:
        first = self._next * BLOCK_ROWS
        if first >= self._rows:
            return False
        rng = np.random.default_rng(self._next)
        data = rng.random((min(BLOCK_ROWS, self._rows - first), self._features), dtype=np.float32)
        label = np.minimum((data[:, 0] + data[:, 1]) / 2 * self._classes, self._classes - 1).astype(np.int32)
        self._next += 1
        input_data(data=data, label=label)
        return True

    def reset(self) -> None:
        self._next = 0


def train(rows: int, features: int, classes: int, rounds: int, folder: Path) -> None:
    """Make the matrix and train on it."""
    matrix = xgboost.ExtMemQuantileDMatrix(Blocks(rows, features, classes, folder / "rows"), max_bin=256, nthread=2)
    task = {"objective": "binary:logistic"} if classes == 2 else {"objective": "multi:softprob", "num_class": classes}
    booster = xgboost.Booster({**task, "tree_method": "hist", "max_depth": 4, "nthread": 2}, [matrix])
    for number in range(rounds):
        booster.update(matrix, number)
        booster.eval_set([(matrix, "train")], number)


def peak_anonymous_bytes(command: list[str]) -> int:
    """Run a process; return the most anonymous memory that it had."""
    process, peak = subprocess.Popen(command), 0
    while process.poll() is None:
        with suppress(OSError):
            found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(encoding="ascii"), re.MULTILINE)
            peak = max(peak, int(found[1]) * 1024 if found else 0)
        time.sleep(LOOK_SECONDS)
    if process.returncode:
        sys.exit(f"the training ended with {process.returncode}")
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[4_000_000, 16_000_000])
    parser.add_argument("--features", type=int, default=17)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="on a disk with about 20 bytes per row; absent: TMPDIR")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        train(options.rows[0], options.features, options.classes, options.rounds, options.inside)
        return
    print(
        f"{options.features} features, {options.classes} classes; rows | anonymous MiB | bytes per row more than the size before",
        flush=True,
    )
    before: tuple[int, int] | None = None
    for rows in options.rows:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            sizes = ["--features", str(options.features), "--classes", str(options.classes), "--rounds", str(options.rounds)]
            command = [sys.executable, "-m", "benchmarks.tree_memory_floor", "--rows", str(rows), *sizes, "--inside", folder]
            peak = peak_anonymous_bytes(command)
        more = "" if before is None else f"{(peak - before[1]) / (rows - before[0]):.1f}"
        print(f"{rows:,} | {peak / MIB:.0f} | {more}", flush=True)
        before = rows, peak


if __name__ == "__main__":
    main()
