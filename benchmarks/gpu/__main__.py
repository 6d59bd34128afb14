"""What trainings do on this machine's GPU, in 8 minutes: docs/gpu.md has the figures, their meaning and their goals.

    python -m benchmarks.gpu [--json-lines FILE] [--wheels FOLDER] [--only PART …] [--device cpu]

Needs torch; what else is missing is installed from FOLDER (`make gpu-wheels`) into a folder of its own, never over what is there. Each part
is a process with a time limit, and its line is written as soon as it ends, whatever ends it, with the figures that it had by then.
`--device cpu` rehearses all parts with small sizes: the figures mean nothing then. Exit code 1 where a part fails, where a goal is missed
that any machine must meet, or without a GPU (`gpu.absent`).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.gpu.goals import judged, table
from benchmarks.gpu.runner import Limits, Record, installed, run_part

ROOT: Final = Path(__file__).resolve().parents[2]
PARTS: Final = ("env", "loop", "syncs", "twice", "mfu", "loader", "stall", "fsdp", "cpu_gpu", "nccl", "ranker", "cores", "tests")
"""In the order of their worth: modules of this package with a function `measure`."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json-lines", type=Path, metavar="FILE", help="where the lines go too; what parts print goes beside it, FILE.log")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of what this Python lacks")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--part-seconds", type=float, default=75.0, help="limit of each part; default 75")
    parser.add_argument("--total-seconds", type=float, default=480.0, help="limit of all of them; default 480")
    given = parser.parse_args()
    limits = Limits(part_seconds=given.part_seconds, total_seconds=given.total_seconds)
    record = Record(given.json_lines)
    with tempfile.TemporaryDirectory(prefix="nightshift-gpu-") as scratch:
        environment = environment_of(Path(scratch), given.device)
        if given.wheels is not None:
            installed(given.wheels, Path(scratch) / "site", environment, record)
        for name in given.only:
            command = [sys.executable, "-m", "benchmarks.gpu.part", name, given.device]
            line = run_part(name, command, environment, limits, record)
            if name == "env" and line.get("cuda_available") is False and given.device == "cuda":
                reason = "check the driver, CUDA_VISIBLE_DEVICES and torch's build"
                print(f"[gpu.absent] no GPU: torch {line.get('torch')} finds none ({reason})", file=sys.stderr)
                return 1
    # A rehearsal says nothing of speed.
    goals = [goal for goal in judged(record.lines) if goal["is_certain"] or given.device == "cuda"]
    record.write({"part": "goals", "goals": goals})
    print(table(goals))
    has_failed = any("error" in line for line in record.lines)
    return int(has_failed or any(goal["is_met"] is False and goal["is_certain"] for goal in goals))


def environment_of(scratch: Path, device: str) -> dict[str, str]:
    """Return the variables of each part: they are set before torch is imported."""
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        # Parts share what is compiled.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TMPDIR": str(scratch),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return found | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


if __name__ == "__main__":
    sys.exit(main())
