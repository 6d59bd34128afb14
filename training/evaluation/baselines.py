"""Naive baselines: what a model must beat to be worth its training. Every evaluation scores them by default.

| task | baselines |
| --- | --- |
| binary, multiclass | class frequencies of the training rows; their most frequent class |
| regression | mean and median of the training labels; for a series the last value known and the seasonal naive of one day and one week |
| ranking | positives per showing in the training rows, by the source's key without the group |

and an SQL expression of the spec's own. No baseline sees a label that was not known at the row's decision
(`training.evaluation.label_history`): a constant is fitted on the training labels that were known when the first of the scored rows was
decided. Where `data.split.by` is not `time`, constants are fitted on all training labels, as the model is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa

from training.contracts import JsonValue
from training.data.dataset.scratch_arrays import slices_of
from training.data.join.derived import DerivedColumn, as_declared, derive
from training.evaluation.label_history import History, numbers_of
from training.evaluation.measures import Measures
from training.evaluation.raw_rows import Columns
from training.evaluation.record import Baselines, NaiveBaseline
from training.evaluation.rows import Floats, Ints, LabelledRows, dense_numbers
from training.format import number
from training.spec import PipelineSpec
from training.spec.descriptors.metrics import descriptor_of_metric, is_lower_better
from training.spec.scalar_types import duration_text
from training.sql.expressions import columns_of, hardened

logger = logging.getLogger(__name__)


SEASONS: Final = (timedelta(days=1), timedelta(days=7))
"""That are tried where the spec names none."""
SQL_WHERE: Final = "evaluate.baseline.sql"


@dataclass(frozen=True, kw_only=True, slots=True)
class Naive:
    """A baseline's scores of some rows."""

    name: str
    about: str
    """In words, for the report."""
    scores: Floats
    """[n], or [n, classes]; of a constant, one value stands for all rows."""
    coverage: float = 1.0
    """Share of the rows that its own rule has a value for; the others have the mean of the training labels."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    """A dataset: single columns of all rows, and the numbers of each split's rows."""

    frame: Columns
    """[n] rows of all splits."""
    columns: Sequence[str]
    """Of the frame, without the label."""
    labels: Floats
    """[n]"""
    event_us: Ints | None = None
    """[n] times of the events, microseconds since 1970, UTC; None: they are read from `frame`."""
    training: Ints
    """Row numbers, as are the others."""
    validation: Ints
    test: Ints

    def rows(self, numbers: Ints, group: str | None) -> LabelledRows:
        """Return rows of which only labels and groups are known."""
        groups = None if group is None else dense_numbers(self.frame[group].iloc[numbers])
        return LabelledRows(labels=self.labels[numbers], groups=groups)


def naive_record(spec: PipelineSpec, splits: Splits, candidate: Floats, metrics: Mapping[str, float]) -> Baselines:
    """Return `baselines` of `metrics.json`: every baseline's metrics on the test rows, and the candidate against the best one.

    The best one is chosen by the primary metric on the validation rows.

    Args:
        splits: all rows.
        candidate: scores of the test rows.
        metrics: the candidate's.

    Raises:
        DataError: `derive.expression` or `derive.failed`, the spec's SQL baseline cannot be computed.
    """
    why = why_none(spec)
    if why is not None:
        return _nothing(why)
    history = History.of(spec, splits.frame, splits.labels, splits.event_us)
    chosen_by = _primary_by_name(spec, splits, history)
    of_test = naive_scores(spec, splits, history, splits.test) if chosen_by else []
    if not of_test:
        return _nothing(f"no training label was known when the first {'test' if chosen_by else 'validation'} row was decided")
    measures = _measures(spec, splits, splits.test)
    found = tuple(
        NaiveBaseline(
            name=naive.name,
            about=naive.about,
            coverage=naive.coverage,
            validation=chosen_by.get(naive.name, float("nan")),
            metrics=measures.metrics(naive.scores),
        )
        for naive in of_test
    )
    warnings = _season_warnings(spec, history, found)
    best = best_of(found, spec.evaluate.primary)
    if best is None:
        return Baselines(why_none=None, best=None, found=found, comparison=None, worse=(), warnings=warnings)
    scores = next(naive.scores for naive in of_test if naive.name == best.name)
    comparison = measures.compare(candidate, scores)
    worse = tuple(name for name, value in best.metrics.items() if _is_worse(name, metrics.get(name), value))
    return Baselines(why_none=None, best=best.name, found=found, comparison=comparison, worse=worse, warnings=warnings)


def _primary_by_name(spec: PipelineSpec, splits: Splits, history: History) -> dict[str, float]:
    """Return the primary metric of each baseline on the validation rows, by which the best one is chosen; empty: there is none."""
    found = naive_scores(spec, splits, history, splits.validation)
    if not found:
        return {}
    measures = _measures(spec, splits, splits.validation)
    return {naive.name: measures.primary(naive.scores) for naive in found}


def _measures(spec: PipelineSpec, splits: Splits, numbers: Ints) -> Measures:
    return Measures(spec.evaluate, splits.rows(numbers, spec.data.group), seed=spec.train.seed, lenient=True)


def _nothing(why: str) -> Baselines:
    return Baselines(why_none=why, best=None, found=(), comparison=None, worse=(), warnings=())


def why_none(spec: PipelineSpec) -> str | None:
    """Return why the spec's task has no naive baseline, None where it has one."""
    rules, source = spec.evaluate, spec.data.source
    if not rules.baseline.enabled:
        return "switched off (evaluate.baseline.enabled)"
    if rules.task == "language":
        return "the task language has none"
    if rules.task == "ranking" and rules.baseline.sql is None and not _shown(spec):
        return f"data.source.key ({', '.join(source.key)}) has no column besides the group that names what is ranked"
    return None


def naive_scores(spec: PipelineSpec, splits: Splits, history: History, target: Ints) -> list[Naive]:
    """Return the baselines' scores of the rows `target`; none where no training label was known when the first of them was decided."""
    # Splits that are not made by time have training rows after the first of these, for the model too.
    by_time = spec.data.split.by == "time"
    known = history.known_at_first_decision(splits.training, target) if by_time else splits.training
    if not len(known):
        return []
    found: list[Naive] = []
    if spec.evaluate.task == "binary":
        num_positive = sum(int((splits.labels[known[part]] > 0).sum()) for part in slices_of(len(known)))
        found += _of_classes(np.array([len(known) - num_positive, num_positive]) / len(known), len(target), is_binary=True)
    elif spec.evaluate.task == "multiclass":
        found += _of_classes(_class_counts(splits.labels, known) / len(known), len(target), is_binary=False)
    elif spec.evaluate.task == "regression":
        labels = splits.labels[known]
        found += _of_numbers(labels, len(target))
        found += _of_series(spec, history, target, mean=float(labels.mean()))
    elif spec.evaluate.task == "ranking" and _shown(spec):
        found.append(_of_showings(spec, splits, known, target))
    if spec.evaluate.baseline.sql is not None:
        labels = splits.labels[known]
        mean = float((labels > 0).mean() if spec.evaluate.task == "ranking" else labels.mean())
        found.append(_of_sql(spec.evaluate.baseline.sql, splits, target, mean=mean, types=spec.data.frame_types()))
    return found


def _class_counts(labels: Floats, known: Ints) -> Ints:
    """Return how many of the `known` rows each class has."""
    counts = np.zeros(1, dtype=np.int64)
    for part in slices_of(len(known)):
        more = np.bincount(labels[known[part]].astype(np.int64), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return counts


def best_of(found: Sequence[NaiveBaseline], primary: str) -> NaiveBaseline | None:
    """Return the baseline that is best on the validation rows, the first of equal ones; None where none has a value there."""
    sign = -1.0 if is_lower_better(primary) else 1.0
    known = [(sign * entry.validation, entry) for entry in found if np.isfinite(entry.validation)]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def named_entries(record: Baselines, spec: PipelineSpec) -> list[dict[str, JsonValue]]:
    """Return the entries of the baselines that the spec names by a key, without the best one.

    Returns:
        Each entry as JSON with `key`: `evaluate.baseline.season` or `evaluate.baseline.sql`.
    """
    asked, names = spec.evaluate.baseline, {}
    if asked.season is not None:
        names[f"seasonal_{duration_text(asked.season)}"] = "evaluate.baseline.season"
    if asked.sql is not None:
        names["sql"] = SQL_WHERE
    found = [entry for entry in record.found if entry.name in names and entry.name != record.best]
    return [{**entry.to_json(), "key": names[entry.name]} for entry in found]


def log_record(record: Baselines, primary: str, metrics: Mapping[str, float]) -> None:
    """Log how the candidate compares with the best baseline, as a warning where it is worse on any metric."""
    for warning in record.warnings:
        logger.warning("%s", warning)
    best = record.best_entry
    if best is None:
        logger.info("no naive baseline: %s", record.why_none or f"none has {primary} on the validation rows")
        return
    of_best, own = number(best.metrics.get(primary)), number(metrics.get(primary))
    logger.info("best naive baseline %s: %s %s, candidate %s", best.name, primary, of_best, own)
    if record.worse:
        values = ", ".join(f"{name} {number(metrics.get(name))} against {number(best.metrics[name])}" for name in record.worse)
        logger.warning("the candidate is worse than the naive baseline %s: %s", best.name, values)


def _shown(spec: PipelineSpec) -> list[str]:
    """Return the columns that name what is ranked: the source's key without group and event time."""
    return [name for name in spec.data.source.key if name not in (spec.data.group, spec.data.source.event_time)]


def _is_worse(name: str, candidate: float | None, baseline: float) -> bool:
    descriptor = descriptor_of_metric(name)
    if candidate is None or not (np.isfinite(candidate) and np.isfinite(baseline)) or (descriptor and descriptor.constants_do_well):
        return False
    return bool(candidate > baseline if is_lower_better(name) else candidate < baseline)


def _of_classes(shares: Floats, num_rows: int, *, is_binary: bool) -> list[Naive]:
    likeliest = (np.arange(len(shares)) == shares.argmax()).astype(np.float64)
    both = (
        ("prior", "the class frequencies of the training rows", shares),
        ("majority_class", "the most frequent class of the training rows", likeliest),
    )
    return [
        Naive(name=name, about=about, scores=np.broadcast_to(row[1], num_rows) if is_binary else np.broadcast_to(row, (num_rows, len(row))))
        for name, about, row in both
    ]


def _of_numbers(labels: Floats, num_rows: int) -> Iterator[Naive]:
    yield Naive(name="mean", about="the mean of the training labels", scores=np.broadcast_to(labels.mean(), num_rows))
    yield Naive(name="median", about="the median of the training labels", scores=np.broadcast_to(np.median(labels), num_rows))


def _of_series(spec: PipelineSpec, history: History, target: Ints, *, mean: float) -> Iterator[Naive]:
    """Yield the last value and the seasonal naive where the rows are series or the spec names a season."""
    asked = spec.evaluate.baseline.season
    if history.series is None and asked is None:
        return
    series = history.series or history
    last = series.last_value(target)
    if np.isfinite(last).any():
        yield _filled("last_value", "the last value of the entity known at the decision", last, mean)
    for season in (asked,) if asked is not None else SEASONS:
        season_us = season // timedelta(microseconds=1)
        if asked is None and (series.step_us is None or season_us <= series.step_us or season_us % series.step_us):
            continue
        values = series.seasonal(target, season)
        if np.isfinite(values).any():
            name = duration_text(season)
            filled = np.where(np.isfinite(values), values, np.where(np.isfinite(last), last, mean))
            coverage = float(np.isfinite(values).mean())
            yield Naive(name=f"seasonal_{name}", about=f"the value of the same time {name} before", scores=filled, coverage=coverage)


def _season_warnings(spec: PipelineSpec, history: History, found: Sequence[NaiveBaseline]) -> tuple[str, ...]:
    """Return what is wrong with a season that the spec names."""
    season = spec.evaluate.baseline.season
    if season is None:
        return ()
    step_us = (history.series or history).step_us
    season_us, where = season // timedelta(microseconds=1), f"evaluate.baseline.season {duration_text(season)}"
    warnings = []
    if step_us is not None and (season_us <= step_us or season_us % step_us):
        warnings.append(f"{where} is not a longer multiple of the series' step, {timedelta(microseconds=step_us)}")
    if not any(entry.name.startswith("seasonal_") for entry in found):
        warnings.append(f"{where} has no value for any test row: there is no seasonal baseline")
    return tuple(warnings)


def _of_showings(spec: PipelineSpec, splits: Splits, known: Ints, target: Ints) -> Naive:
    columns = _shown(spec)
    numbers = numbers_of(splits.frame, columns, len(splits.labels))
    positive = (splits.labels[known] > 0).astype(np.float64)
    num, shown = int(numbers.max()) + 1, numbers[known]
    showings = np.bincount(shown, minlength=num)
    with np.errstate(invalid="ignore"):
        rates = np.bincount(shown, weights=positive, minlength=num) / showings
    about = f"positives per showing of each {' and '.join(columns)} in the training rows"
    return _filled("positives_per_showing", about, rates[numbers[target]], float(positive.mean()))


def _of_sql(sql: str, splits: Splits, target: Ints, *, mean: float, types: Mapping[str, str]) -> Naive:
    # A constant needs no column; the rows must be there all the same.
    used = sorted(columns_of(sql, list(splits.columns), where=SQL_WHERE)) or list(splits.columns[:1])
    rows = pa.Table.from_pandas(pd.DataFrame({name: splits.frame[name].iloc[target] for name in used}), preserve_index=False)
    table = pa.table({name: as_declared(rows[name], types.get(name), name) for name in used})
    expression = DerivedColumn(name=SQL_WHERE, type="double", sql=sql)
    with hardened() as connection:
        values = derive(connection, table, [expression])[expression.name].to_numpy().astype(np.float64)
    return _filled("sql", "the expression of evaluate.baseline.sql", values, mean)


def _filled(name: str, about: str, values: Floats, mean: float) -> Naive:
    is_known = np.isfinite(values)
    return Naive(name=name, about=about, scores=np.where(is_known, values, mean), coverage=float(is_known.mean()))
