"""The demo's data: the simulated shop's days that a night looks at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime

from nightshift.services.environment import environment, shop_root
from nightshift.settings import Settings
from training.errors import NightshiftError
from training.spec import PipelineSpec, partitions

SHOP_PREFIX = "${SHOP_URI}/"


def make_data(settings: Settings, spec: PipelineSpec, as_of: datetime, say: Callable[[str], None]) -> None:
    """Make the days of the night's window that are missing, if the pipeline reads the simulated shop in its usual place.

    Raises:
        NightshiftError: `demo.data`, with what the generator said.
    """
    root = shop_root(settings)
    if not spec.data.source.uri.startswith(SHOP_PREFIX) or environment(settings)["SHOP_URI"] != root.as_uri():
        return
    days = partitions(spec, as_of)
    if all((root / "clicks" / f"dt={day.isoformat()}").exists() for day in days):
        return
    say(f"making the shop's data up to {days[-1]}")
    command = [sys.executable, "-m", "training.data.shop", "--root", str(root), "--first", days[0].isoformat(), "--days", str(len(days))]
    done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NightshiftError("demo.data", f"the shop's data could not be made:\n{done.stderr[-2000:]}")
