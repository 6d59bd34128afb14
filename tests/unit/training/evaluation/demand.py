"""A made half-hourly demand: daily and weekly season on the clock of Berlin, and noise that carries over from one value to the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from training.spec import PipelineSpec, parse_spec

SPEC = """
name: demand
owner: tests
schedule: "0 2 * * *"
timezone: Europe/Berlin
data:
  source:
    table: demand
    kind: csv
    uri: "${DEMAND_URI}/demand.csv"
    event_time: at
    decision_lead: 0s
    window: 60d
    key: [area, at]
    columns:
      area: {type: string}
      at: {type: timestamp}
      known_at: {type: timestamp, known: after}
      temperature: {type: double, nullable: true}
      forecast: {type: double, nullable: true}
      megawatts: {type: double, known: after}
  label: {column: megawatts}
  split: {by: time, validation: 7d, test: 14d}
prepare:
  features:
    area: {transform: category}
    temperature: {transform: number}
train: {model: boosted_trees, seed: 3, epochs: 20, learning_rate: 0.3, settings: {max_depth: 3}}
evaluate: {task: regression, primary: mae}
promote: {model: demand}
"""
BERLIN = ZoneInfo("Europe/Berlin")
HALF_HOUR = timedelta(minutes=30)


def demand_spec(*changes: tuple[str, str]) -> PipelineSpec:
    text = SPEC
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return parse_spec(text.encode())


def demand(
    *, end: datetime = datetime(2026, 2, 1, tzinfo=UTC), days: int = 60, areas: tuple[str, ...] = ("north", "south"), seed: int = 5
) -> pd.DataFrame:
    """Return [rows] ordered by (at, area) with the columns of `SPEC`, `label` for the megawatts.

    Demand follows the clock: mornings and evenings are high, weekends low; noise has lag-1 autocorrelation 0.8.
    """
    generator = np.random.default_rng(seed)
    times = [end - timedelta(days=days) + HALF_HOUR * number for number in range(days * 48)]
    local = [time.astimezone(BERLIN) for time in times]
    hours = np.array([time.hour + time.minute / 60 for time in local])
    weekend = np.array([time.weekday() >= 5 for time in local])
    parts = []
    for level, area in enumerate(areas, start=2):
        noise = np.zeros(len(times))
        shocks = generator.normal(size=len(times)) * 12
        for number in range(1, len(times)):
            noise[number] = 0.8 * noise[number - 1] + shocks[number]
        shape = 250 * np.sin(np.pi * np.clip((hours - 5) / 17, 0, 1)) * np.where(weekend, 0.55, 1.0)
        parts.append(pd.DataFrame({"area": area, "at": times, "label": 300 * level + shape + noise}))
    frame = pd.concat(parts).sort_values(["at", "area"]).reset_index(drop=True)
    frame["at"] = pd.to_datetime(frame["at"], utc=True).astype("datetime64[us, UTC]")
    frame["known_at"] = frame["at"]
    frame["temperature"] = generator.normal(size=len(frame))
    frame["forecast"] = frame["label"] + 100 * generator.normal(size=len(frame))
    return frame


def splits_of(frame: pd.DataFrame, *, validation_days: int = 7, test_days: int = 14) -> dict[str, Any]:
    """Return row numbers of training, validation and test."""
    end = frame["at"].max() + HALF_HOUR
    test, validation = end - timedelta(days=test_days), end - timedelta(days=test_days + validation_days)
    return {
        "training": np.flatnonzero(frame["at"] < validation),
        "validation": np.flatnonzero((frame["at"] >= validation) & (frame["at"] < test)),
        "test": np.flatnonzero(frame["at"] >= test),
    }
