"""The demo's data: the simulated shop's days that a night looks at."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from typing import Final

from devstack.environment import environment, shop_root
from devstack.wait_messages import Awaited
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.spec import PipelineSpec, partitions

POLL_SECONDS: Final = 1.0
SHOP_PREFIX = "${SHOP_URI}/"


def make_data(settings: Settings, spec: PipelineSpec, as_of: datetime, say: Callable[[str], None]) -> None:
    """Make the days of the night's window that are missing, if the pipeline reads the simulated shop in its usual place.

    Raises:
        NightshiftError: `demo.data`, with what the generator said.
    """
    root = shop_root(settings)
    if not (spec.data.source.uri or "").startswith(SHOP_PREFIX) or environment(settings)["SHOP_URI"] != root.as_uri():
        return
    days = partitions(spec, as_of)
    if all((root / "clicks" / f"dt={day.isoformat()}").exists() for day in days):
        return
    say(f"making the shop's data up to {days[-1]}")
    command = [sys.executable, "-m", "devstack.shop", "--root", str(root), "--first", days[0].isoformat(), "--days", str(len(days))]
    _run(command, environment(settings), Awaited(say))


def _run(command: list[str], variables: dict[str, str], awaited: Awaited) -> None:
    # In a file: a full pipe would stop the generator while it is awaited.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                awaited.look("the shop's data")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
            raise NightshiftError("demo.data", f"the shop's data could not be made:\n{said[-2000:]}")
