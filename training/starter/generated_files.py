"""The files of a drafted pipeline: YAML, suite, DAG file."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Final

from training.contracts import JsonValue
from training.spec.sections.derived import sql_of_local
from training.sql.expressions import literal, quoted
from training.starter.column_types import FoundColumn
from training.starter.label_task import PRIMARY
from training.starter.pipeline_draft import FEW_VALUES, Draft
from training.starter.tables import FoundTable
from training.starter.time_columns import EventTime
from training.starter.yaml_scalars import duration, flow_list, scalar

MOSTLY: Final = 0.95
EXACT: Final = Context(prec=2_000, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""Holds each difference of two numbers of 64 bits."""
LARGEST_INTEGER: Final = 1 << 64
INDEPENDENT: Final = "each is independent of the others, which no time shows: else name what is, such as the customer"
DAG: Final = "from nightshift.wiring.pipeline import pipeline_dag  # an Airflow DAG\n\ndag = pipeline_dag(__file__)\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Naming:
    """What the pipeline is called."""

    name: str
    owner: str
    zone: str

    @property
    def variable(self) -> str:
        """The environment variable with the folder of the data."""
        found = re.sub(r"[^A-Z0-9]", "_", self.name.upper())
        # It begins with a letter.
        return f"{found if found[0].isalpha() else f'DATA_{found}'}_URI"

    @property
    def suite(self) -> str:
        return f"{self.folder}/rows"

    @property
    def folder(self) -> str:
        """Of the suite: its names have no dots."""
        return self.name.replace(".", "_")


def yaml_text(table: FoundTable, time: EventTime, draft: Draft, naming: Naming) -> str:
    """Return the YAML."""
    why_by_hand = "nothing says how old a row is" if time.is_constant else "the newest row is older than 3 days"
    lines = [
        "# yaml-language-server: $schema=pipeline.schema.json",
        f"# Written by `nightshift init` from {_comment(table.path.name)}, {table.num_rows:,} rows. You may change every line.",
        f"name: {scalar(naming.name)}",
        f"description: {scalar(f'Predicts {draft.label.column} of {table.path.name}')}",
        f"owner: {scalar(naming.owner)}",
        'schedule: "0 3 * * *"'
        if draft.is_recent
        else f'# schedule: "0 3 * * *"       # {why_by_hand}: without it, runs are started by hand',
        f"timezone: {naming.zone}",
        "",
        "data:",
        *_source(table, time, draft, naming),
        *_windows(draft),
        f"  label: {{{', '.join(_label(draft))}}}",
        f"  split: {draft.split}",
        "",
        "validate:",
        f"  suite: {naming.suite}",
        "  empty_days: allow",
        *(["  volume_change: 0.5", "  freshness: 3d"] if draft.is_recent else []),
        "",
        "prepare:",
        "  features:",
        *(f"    {scalar(name)}: {text}" for name, text in draft.features.items()),
        *(f"    # {_comment(name)}: {_comment(reason)}" for name, reason in draft.skipped.items()),
        "",
        *_train(table),
        "",
        "evaluate:",
        f"  task: {draft.label.task}",
        f"  primary: {PRIMARY[draft.label.task]}",
        "  improvement: {absolute: 0.0}   # a later model must be better than the champion by more than this",
        # Otherwise a lag that ranks the labels well is taken for the label.
        *(["  severity: {leakage: warn}     # lags rank the labels of a series well, and are known before"] if draft.windows else []),
        *([f"  slices: {flow_list([*draft.slices])}"] if draft.slices else []),
        *([f"  entities: {flow_list([*draft.entities])}   # {INDEPENDENT}"] if draft.entities else []),
        "",
        f"promote: {{model: {scalar(naming.name)}, approval: automatic}}",
    ]
    return "\n".join(lines) + "\n"


def _source(table: FoundTable, time: EventTime, draft: Draft, naming: Naming) -> list[str]:
    late = {draft.label.column, *draft.late}
    lines = [
        "  source:",
        "    table: rows",
        f"    kind: {table.files.kind}",
        f"    uri: {scalar('${' + naming.variable + '}/' + table.path.name)}",
        *([f"    partition: {json.dumps(table.files.partition)}"] if table.files.partition else []),
        f"    event_time: {scalar(time.name)}",
        f"    window: {duration(draft.window)}",
        f"    key: {flow_list([*draft.key])}",
        "    columns:",
        *([f"      {scalar(draft.row_number)}: {{type: int64, generated: row_number}}"] if draft.row_number else []),
        *([f"      {scalar(time.name)}: {{type: timestamp, generated: partition_start}}"] if time.is_generated else []),
    ]
    for column in table.columns.values():
        keys = [
            f"type: {column.type}",
            *([f"source_name: {json.dumps(column.source_name, ensure_ascii=False)}"] if column.source_name != column.name else []),
            *(f"{key}: {value}" for key, value in column.keys.items()),
            *(["generated: partition_value"] if column.is_of_path else []),
            *_texts(column),
            *(["nullable: true"] if column.num_missing else []),
            *(["known: after"] if column.name in late else []),
        ]
        reason = draft.late.get(column.name, "")
        comment = f"   # like the label: {reason}. Known before? Then remove `known: after`, and add a feature" if reason else ""
        lines.append(f"      {scalar(column.name)}: {{{', '.join(keys)}}}{comment}")
    if table.left_out:
        lines.append("    ignore:")
        lines += [f"      - {scalar(name)}   # {_comment(reason)}" for name, reason in table.left_out.items()]
    one = "   # no column is the time of a row: all rows count as of this instant" if time.is_constant else ""
    derived = [f"      {scalar(time.name)}: {{type: timestamp, {_instant(time)}}}{one}"] if time.sql else []
    if derived:
        lines += ["    derive:", *derived]
    if draft.label.num_missing:
        because = "a row without a label can neither train nor judge"
        name = quoted(draft.label.column)
        text = f"nullif({name}, {literal(draft.label.missing)})" if draft.label.missing else name
        # An empty text is no label either.
        known = f"{text} <> ''" if draft.label.classes else f"{name} IS NOT NULL"
        lines.append(f"    where: {{sql: {scalar(known)}, because: {because}}}")
    return lines


def _instant(time: EventTime) -> str:
    """Return the keys of the derived event time."""
    if not time.zone:
        return f"sql: {scalar(time.sql)}"
    clock = time.clock
    keys = [
        f"local: {scalar(time.column)}" if time.sql == sql_of_local(time.column) else f"sql: {scalar(time.sql)}",
        f"zone: {scalar(time.zone)}",
        *([f"twice: {clock.twice}"] if clock.twice else []),
        *([f"by: {flow_list([*clock.by])}"] if clock.by else []),
        *(["missing: shift"] if clock.is_shifted else []),
    ]
    return ", ".join(keys)


def _texts(column: FoundColumn) -> list[str]:
    """Return the keys that say how the texts of a column are read."""
    found = []
    if column.form is not None:
        form = {"decimal": column.form.decimal, "thousands": column.form.thousands, "unit": column.form.unit}
        keys = [f"{key}: {json.dumps(text, ensure_ascii=False)}" for key, text in form.items() if text]
        found.append(f"number_format: {{{', '.join(keys)}}}")
    if column.missing:
        found.append(f"missing: [{', '.join(json.dumps(text, ensure_ascii=False) for text in column.missing)}]")
    return found


def _windows(draft: Draft) -> list[str]:
    if not draft.windows:
        return []
    return ["  windows:", *(f"    {name}: {text}" for name, text in draft.windows.items())]


def _label(draft: Draft) -> list[str]:
    found = [f"column: {scalar(draft.label.column)}"]
    if draft.label.rule:
        found.append(f"rule: {scalar(draft.label.rule)}")
    if draft.label.positive:
        found.append(f"positive: {json.dumps(draft.label.positive, ensure_ascii=False)}")
    return found


def _train(table: FoundTable) -> list[str]:
    depth, rate = (3, 0.1) if table.num_rows < 5_000 else (6, 0.05)
    return [
        "train:",
        "  model: boosted_trees",
        "  seed: 1",
        "  epochs: 400                    # boosting rounds, at most",
        f"  learning_rate: {rate}",
        f"  settings: {{max_depth: {depth}}}",
        "  early_stopping: 30",
    ]


def suite_text(table: FoundTable, draft: Draft, naming: Naming) -> str:
    """Return the suite: what the values are today, with room; only what the label is fails a run."""
    found = []
    for column in table.columns.values():
        is_label = column.name == draft.label.column
        if column.name in draft.late or (expectation := _expectation(table, column)) is None:
            continue
        kind, kwargs = expectation
        severity = "warning"
        if is_label and draft.label.task != "regression":
            severity = "critical"
            kwargs.pop("mostly", None)
        found.append({"type": kind, "kwargs": {"column": column.name, **kwargs}, "severity": severity})
    lines = ",\n".join("    " + json.dumps(each, ensure_ascii=False) for each in found)
    return f'{{\n  "name": {json.dumps(naming.suite)},\n  "expectations": [\n{lines}\n  ]\n}}\n'


def _expectation(table: FoundTable, column: FoundColumn) -> tuple[str, dict[str, JsonValue]] | None:
    name = quoted(column.name)
    if column.type == "string":
        query = f"SELECT {name} AS value, count(*) FROM rows WHERE {name} IS NOT NULL GROUP BY 1 ORDER BY 1 LIMIT {FEW_VALUES + 1}"  # noqa: S608
        values = [row[0] for row in table.rows(query)]
        if 2 <= len(values) <= FEW_VALUES:
            return "expect_column_values_to_be_in_set", {"value_set": values, "mostly": MOSTLY}
        return None
    if not column.is_number:
        return None
    low, high = table.rows(f"SELECT min({name}), max({name}) FROM rows WHERE isfinite(CAST({name} AS DOUBLE))")[0]  # noqa: S608
    if low is None or low == high:
        return None
    least, most = limits_of(low, high)
    return "expect_column_values_to_be_between", {"min_value": least, "max_value": most}


def limits_of(low: float, high: float) -> tuple[float, float]:
    """Return limits with half of the values' range as room on each side, or from 0, rounded outwards to three digits of the room."""
    with localcontext(EXACT):
        room = (Decimal(high) - Decimal(low)) / 2
        # Three of the value would be 2020 for a year's 2018.25.
        digit = Decimal(1).scaleb(max(room.adjusted() - 2, 0) if isinstance(low, int) else room.adjusted() - 2)
        least = Decimal(0) if 0 <= low <= room else (Decimal(low) - room).quantize(digit, ROUND_FLOOR)
        most = (Decimal(high) + room).quantize(digit, ROUND_CEILING)
    return _in_json(least), _in_json(most)


def _in_json(limit: Decimal) -> float:
    return (
        int(limit)
        if limit == limit.to_integral_value() and abs(limit) < LARGEST_INTEGER
        else max(-sys.float_info.max, min(float(limit), sys.float_info.max))
    )


def _comment(text: str) -> str:
    """Return a text for a comment: on one line, and without characters that YAML refuses."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
