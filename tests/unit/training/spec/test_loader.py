# ruff: noqa: E501 - the table shows whole messages
"""What is wrong with a pipeline's YAML, in the exact words that its author reads."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from training.contracts import ExitCode
from training.errors import Problem, SpecError
from training.spec import PipelineSpec, known_families, load_spec, parse_spec
from training.spec.families import FAMILIES

Changed = Callable[..., bytes]

R, F = "search_ranking", "flight_delay"
CRON = '(minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two)'
NAME = "(at most 63 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit: [a-z0-9][a-z0-9._-]{0,62})"
NUMBER = "(text is not read as anything else; numbers are written 0.1, 1e-3 or 1000, without quotes)"
PLACE = "(name the place by an environment variable, ${SHOP_URI}/clicks, or write s3://bucket/…, gs://… or az://…)"
DURATION = "(write a number and a unit: 30d, 36h, 10m or 90s)"

LR, EPOCHS, PLACEMENT = "learning_rate: 2e-2", "epochs: 3", "nodes: 1, processes_per_node: 2"
NAMED = "name: search_ranking"
SCHEDULE = '"0 2 * * *"'
URI = '"${SHOP_URI}/clicks"'

CASES: list[tuple[str, str, str, str]] = [
    # pipeline, text, its replacement, the problem as shown
    (R, "owner: search-relevance", "owner: x\nownr: x", "ownr: [spec.unknown_key] unknown key 'ownr' (did you mean owner?)"),
    (
        R,
        "position: {type: int32}",
        "position: {typ: int32, type: int32}",
        "data.source.columns.position.typ: [spec.unknown_key] unknown key 'typ' (did you mean type?)",
    ),
    (
        R,
        "hidden: [64, 32]",
        "hiden: [64, 32]",
        "train.settings.hiden: [spec.unknown_key] unknown key 'hiden' (did you mean hidden?)",
    ),
    (
        R,
        "weight_decay: 0.5",
        "zzz: 1",
        "train.zzz: [spec.unknown_key] unknown key 'zzz' (known: batch_size, checkpoint, early_stopping, epochs, learning_rate, model, placement, precision, seed, settings, warmup_steps, weight_decay)",
    ),
    (R, LR, "learning_rate: 0", "train.learning_rate: [field.range] must be greater than 0, got 0"),
    (R, LR, "learning_rate: -1", "train.learning_rate: [field.range] must be greater than 0, got -1"),
    (R, LR, "learning_rate: .nan", "train.learning_rate: [field.range] must be finite, got nan"),
    (R, LR, "learning_rate: 1e999", "train.learning_rate: [field.range] must be finite, got inf"),
    (R, LR, 'learning_rate: "0.1"', f"train.learning_rate: [field.type] expected a number, got '0.1' {NUMBER}"),
    (R, LR, "learning_rate: true", "train.learning_rate: [field.type] expected a number, got true"),
    (R, LR, "learning_rate: null", "train.learning_rate: [field.type] expected a number, got null"),
    (R, LR, "learning_rate: 1_000", f"train.learning_rate: [field.type] expected a number, got '1_000' {NUMBER}"),
    (R, LR, "learning_rate: 12:30:00", f"train.learning_rate: [field.type] expected a number, got '12:30:00' {NUMBER}"),
    (R, EPOCHS, "epochs: 0", "train.epochs: [field.range] must be at least 1, got 0"),
    (R, EPOCHS, "epochs: 1.5", "train.epochs: [field.range] must be a whole number, got 1.5"),
    (R, EPOCHS, f"epochs: 1{'0' * 30}", f"train.epochs: [field.range] must be at most 100000, got 1{'0' * 30}"),
    (R, EPOCHS, f"epochs: {'9' * 5000}", "train.epochs: [field.range] must be a whole number, got inf"),
    (R, "  epochs: 3\n", "", "train.epochs: [field.missing] the key epochs is missing"),
    (R, "  batch_size: 4096\n", "", "train.batch_size: [field.missing] the key batch_size is missing: ranker needs it"),
    (R, "tags: [ranking, torch, demo]", "tags: no", "tags: [field.type] expected a list, got 'no'"),
    (R, "owner: search-relevance", "owner: 010", "owner: [field.type] expected text, got 10 (quote it)"),
    (
        R,
        "kind: parquet",
        "kind: parqet",
        "data.source.kind: [field.choice] must be 'csv' or 'parquet', got 'parqet' (did you mean parquet?)",
    ),
    (R, "window: 30d", "window: 30 days", f"data.source.window: [duration.invalid] expected a duration, got '30 days' {DURATION}"),
    (R, "window: 30d", "window: 30", f"data.source.window: [duration.invalid] expected a duration, got 30 {DURATION}"),
    (R, "window: 30d", "window: 9999d", "data.source.window: [field.range] must be at most 3650d, got '9999d'"),
    (R, "every: 10m", "every: 0s", "train.checkpoint.every: [field.range] must be longer than 0s"),
    (R, 'deadline: "07:00"', "deadline: 25:00", "deadline: [field.type] expected a time of day, got '25:00' (write it as \"07:00\")"),
    (R, "hidden: [64, 32]", "hidden: [64, 0]", "train.settings.hidden[1]: [field.range] must be at least 1, got 0"),
    (
        R,
        "batch_size: 4096",
        "batch_size: 97",
        "train.batch_size: [batch.indivisible] batch_size (97) must be divisible by nodes * processes_per_node (1 * 2 = 2) (set batch_size to 96 or 98)",
    ),
    (
        R,
        "batch_size: 4096",
        "batch_size: 1",
        "train.batch_size: [batch.indivisible] batch_size (1) must be divisible by nodes * processes_per_node (1 * 2 = 2) (set batch_size to 2)",
    ),
    (
        R,
        "model: ranker",
        "model: rnker",
        "train.model: [model.unknown] there is no model 'rnker' (known: boosted_trees, ranker; classes of your own: see NIGHTSHIFT_MODEL_PACKAGES)",
    ),
    (
        R,
        "model: ranker",
        "model: os:system",
        "train.model: [model.unknown] there is no model 'os:system' (known: boosted_trees, ranker; classes of your own: see NIGHTSHIFT_MODEL_PACKAGES)",
    ),
    (R, SCHEDULE, "not a cron", f"schedule: [schedule.invalid] 'not a cron' has 3 fields, cron has 5 {CRON}"),
    (
        R,
        SCHEDULE,
        '"61 * * * *"',
        f"schedule: [schedule.invalid] '61 * * * *' is not a cron line: [61 * * * *] is not acceptable, out of range {CRON}",
    ),
    (
        R,
        SCHEDULE,
        '"*/0 * * * *"',
        f"schedule: [schedule.invalid] '*/0 * * * *' is not a cron line: [*/0 * * * *] step '0' in field 0 is not acceptable {CRON}",
    ),
    (R, SCHEDULE, '"0 0 1 1 1 1"', f"schedule: [schedule.invalid] '0 0 1 1 1 1' has 6 fields, cron has 5 {CRON}"),
    (R, SCHEDULE, '"@daily"', f"schedule: [schedule.invalid] '@daily' has 1 field, cron has 5 {CRON}"),
    (R, SCHEDULE, '"H 2 * * *"', f"schedule: [schedule.invalid] 'H 2 * * *' is not a cron line: h is no month or day {CRON}"),
    (R, SCHEDULE, '"0 0 30 2 *"', "schedule: [schedule.never] '0 0 30 2 *' never comes (no month has that day)"),
    (
        R,
        SCHEDULE,
        '"0 0 29 2 *"',
        "schedule: [schedule.never] '0 0 29 2 *' does not come within 400 days (leave `schedule` out and start it by hand)",
    ),
    (
        R,
        "timezone: UTC",
        "timezone: Mars/Phobos",
        "timezone: [schedule.range] there is no time zone 'Mars/Phobos' (an IANA name: UTC, Europe/Berlin)",
    ),
    (
        R,
        "timezone: UTC",
        "timezone: ../UTC",
        "timezone: [schedule.range] there is no time zone '../UTC' (an IANA name: UTC, Europe/Berlin)",
    ),
    (
        R,
        "timezone: UTC",
        "start: 2026-01-01T00:00:00",
        "start: [schedule.range] expected a day, got '2026-01-01T00:00:00' (write it as 2026-01-31)",
    ),
    (R, "timezone: UTC", "start: 2026-02-30", "start: [schedule.range] expected a day, got '2026-02-30' (write it as 2026-01-31)"),
    (R, "timezone: UTC", "start: 9999-01-01", "start: [schedule.range] must be between 1970 and 2100, got '9999-01-01'"),
    (R, NAMED, "name: ../x", f"name: [name.invalid] '../x' is not a name {NAME}"),
    (R, NAMED, "name: a/b", f"name: [name.invalid] 'a/b' is not a name {NAME}"),
    (R, NAMED, "name: A", f"name: [name.invalid] 'A' is not a name {NAME}"),
    (R, NAMED, 'name: ""', f"name: [name.invalid] '' is not a name {NAME}"),
    (R, NAMED, 'name: "a\\n"', f"name: [name.invalid] 'a\\n' is not a name {NAME}"),
    (R, NAMED, "name: 😀", f"name: [name.invalid] '😀' is not a name {NAME}"),
    (R, NAMED, f"name: {'x' * 260}", f"name: [name.invalid] '{'x' * 78}… is not a name {NAME}"),
    (
        R,
        "suite: search_ranking/clicks",
        "suite: ../secrets",
        "validate.suite: [name.invalid] '../secrets' is not a suite (the file below expectations/ without .json: flight_delay/flights)",
    ),
    (
        R,
        "rating: {type: float}",
        "=cmd(): {type: float}",
        "data.source.columns.=cmd(): [column.name] '=cmd()' is not a column's name (letters, digits and '_', not beginning with a digit)",
    ),
    (
        R,
        PLACEMENT,
        "memory: 64GB!",
        "train.placement.memory: [resources.memory] expected an amount of memory, got '64GB!' (write a number and a unit: 512MiB, 16GiB, 64GB)",
    ),
    (R, PLACEMENT, "memory: 1B", "train.placement.memory: [resources.memory] memory must be from 16MiB to 32TiB, got '1B'"),
    (R, PLACEMENT, "gpus: -1", "train.placement.gpus: [resources.gpus] must be at least 0, got -1"),
    (R, PLACEMENT, "gpus: 1000000", "train.placement.gpus: [resources.gpus] must be at most 64, got 1000000"),
    (
        R,
        PLACEMENT,
        "gpus: 1, processes_per_node: 2",
        "train.placement.gpus: [resources.gpus] gpus (1) must be divisible by processes_per_node (2) (both count per node; each process has as many GPUs as any other)",
    ),
    (R, PLACEMENT, "nodes: 0", "train.placement.nodes: [resources.nodes] must be at least 1, got 0"),
    (R, PLACEMENT, "cpus: 0", "train.placement.cpus: [resources.cpus] must be greater than 0, got 0"),
    (
        F,
        "early_stopping: 20",
        "placement: {processes_per_node: 2}",
        "train.placement: [resources.processes] boosted_trees trains in one process, placement asks for 1 * 2 (set nodes and processes_per_node to 1)",
    ),
    (
        F,
        "early_stopping: 20",
        "batch_size: 20",
        "train.batch_size: [field.conflict] batch_size has no effect on boosted_trees (leave it out)",
    ),
    (R, URI, "file:///etc/passwd", f"data.source.uri: [uri.forbidden] 'file:///etc/passwd' is no place that a YAML may name {PLACE}"),
    (
        R,
        '"${ALERTS_URI}"',
        "https://hooks.example.com/secret",
        "alerts.webhook: [uri.forbidden] the address of a webhook is often a secret, and the file is none (put it in an environment variable and write ${ALERTS_URI})",
    ),
    (
        R,
        "event_time: shown_at",
        "event_time: shownat",
        "data.source.event_time: [column.unknown] shownat is no column of table clicks (did you mean shown_at?)",
    ),
    (
        R,
        "event_time: shown_at",
        "event_time: price",
        "data.source.event_time: [column.type] price is of type float, a time must be a timestamp",
    ),
    (
        R,
        "label: {column: clicked}",
        "label: {column: click}",
        "data.label.column: [column.unknown] click is no column of table clicks (did you mean clicked?)",
    ),
    (
        F,
        "arr_delay: {type: int64",
        "arr_delay: {type: string",
        "data.label.rule: [column.type] arr_delay is of type string, the rule '> 15' compares numbers",
    ),
    (
        F,
        'rule: "> 15"',
        'rule: "; drop"',
        "data.label.rule: [field.pattern] '; drop' does not have the form ^(<|<=|>|>=|=|==|!=|<>) ?-?[0-9]+(\\.[0-9]+)?$",
    ),
    (
        R,
        "group: search_id",
        "group: search",
        "data.group: [column.unknown] search is no column of table clicks (did you mean search_id?)",
    ),
    (
        R,
        "  group: search_id\n",
        "",
        "data.group: [field.missing] the key group is missing: the task ranking needs it (the column whose rows are ranked together)",
    ),
    (
        R,
        "category_id]",
        "categry]",
        "evaluate.slices[0]: [column.unknown] categry is no column of the joined frame (did you mean category_id?)",
    ),
    (
        F,
        "slices: [carrier, origin]",
        "slices: [route]",
        "evaluate.slices[0]: [column.unknown] route is derived in prepare; slices are made of columns of the joined frame (derive it in data.source.derive)",
    ),
    (
        F,
        "    dewp: {transform",
        "    dew: {transform",
        "prepare.features.dew: [column.unknown] dew is no column of the joined frame, nor of prepare.derive (did you mean dewp?)",
    ),
    (
        F,
        "ignore: [rownames]",
        "ignore: [rownames, year]",
        "data.source.ignore: [column.clash] year is declared and ignored (keep one of the two)",
    ),
    (
        F,
        "- table: planes",
        "- table: weather",
        "data.features[1].table: [table.clash] there is a table weather already (each table has a name of its own)",
    ),
    (
        F,
        "on: {tailnum: tailnum}",
        "on: {tailnum: tailnum, origin: tail}",
        "data.features[1].on.origin: [column.unknown] tail is no column of table planes (did you mean tailnum?)",
    ),
    (
        F,
        "on: {tailnum: tailnum}",
        "on: {tailnum: tailnum}\n      max_age: 1d",
        "data.features[1].max_age: [field.conflict] max_age needs an event_time (a dimension has no age)",
    ),
    (
        R,
        "test: 2d",
        "test: 29d",
        "data.split: [split.window] validation (1d) and test (29d) leave nothing of the window (30d) to train on (make data.source.window longer than 30d)",
    ),
    (
        R,
        '"dt={date}"',
        '"dt=day"',
        "data.source.partition: [partition.invalid] 'dt=day' has {date} 0 times, it needs it once (one folder a day: \"dt={date}\")",
    ),
    (
        R,
        '"dt={date}"',
        '"../{date}"',
        "data.source.partition: [partition.invalid] '../{date}' is no folder below uri (one folder a day: \"dt={date}\")",
    ),
    (
        R,
        "window: 30d",
        "window: 100h",
        "data.source.window: [partition.window] 100h is no whole number of days, and the partitions are days",
    ),
    (
        F,
        "window: 60d",
        "window: 60d\n    wait: 2h",
        "data.source.wait: [field.conflict] wait needs a partition (only a day's partition can be seen to be missing)",
    ),
    (
        F,
        'sql: "year - built_year"',
        'sql: "year - (select 1)"',
        "prepare.derive.aircraft_age.sql: [sql.forbidden] the SQL of aircraft_age uses select: it must be one expression over one row (write one expression over the row's columns)",
    ),
    (
        F,
        'sql: "year - built_year"',
        'sql: "now() - built_year"',
        "prepare.derive.aircraft_age.sql: [sql.forbidden] the SQL of aircraft_age uses now, which differs from one run to the next (write one expression over the row's columns)",
    ),
    (
        F,
        'sql: "year - built_year"',
        'sql: "aircraft_age + 1"',
        "prepare.derive.aircraft_age.sql: [derive.cycle] derived columns go in a circle: aircraft_age -> aircraft_age",
    ),
    (
        F,
        'label: {column: arr_delay, rule: "> 15", known_at: landed_at}',
        'label: {column: arr_delay, rule: "> 15", positive: "yes", known_at: landed_at}',
        "data.label.positive: [field.conflict] positive names a class of a label of type string, and arr_delay is of type int64 (remove it: 1, true, or what the rule selects is positive)",
    ),
    (
        F,
        'label: {column: arr_delay, rule: "> 15", known_at: landed_at}',
        "label: {column: landed_at, known_at: landed_at}",
        "data.label.column: [column.type] landed_at is of type timestamp: a label is a number, a boolean or a text (derive a number or a text from it in data.source.derive)",
    ),
    (
        R,
        "clicked: {type: int8, known: after}",
        "clicked: {type: string, known: after}",
        "data.label.column: [column.type] clicked is of type string: the label of the task ranking is a number (set evaluate.task to multiclass or binary, or derive a number in data.source.derive)",
    ),
    (
        R,
        "test: 2d}",
        "test: 2d, end: labels_complete}",
        "data.split.end: [field.conflict] labels_complete needs data.label.known_at (name the column that says when the label is known: data.label.known_at)",
    ),
    (
        F,
        "test: 7d}",
        "test: 7d, end: soon}",
        "data.split.end: [field.choice] must be window or labels_complete or a duration, got 'soon' (window, labels_complete, or a duration before the window's end: 14d)",
    ),
    (
        F,
        "test: 7d}",
        "test: 7d, end: 50d}",
        "data.split: [split.window] validation (7d) and test (7d) before the last 50d leave nothing of the window (60d) to train on (make data.source.window longer than 64d)",
    ),
    (
        R,
        "freshness: 36h",
        "freshness: 36h\n  unknown_labels: 0.2",
        "validate.unknown_labels: [field.conflict] unknown_labels needs data.label.known_at (name the column that says when the label is known: data.label.known_at)",
    ),
    (
        R,
        "freshness: 36h",
        "freshness: 36h\n  empty_days: [sat, sunday]",
        "validate.empty_days: [field.choice] must be allow or a list of weekdays, got 'sunday' (write allow, or a list of different days of mon, tue, wed, thu, fri, sat, sun: [sat, sun])",
    ),
    (
        F,
        'sql: "year - built_year"',
        'sql: "1 + 1"',
        "prepare.derive.aircraft_age.sql: [derive.constant] the SQL of aircraft_age mentions no column, so it has the same value in every row (write an expression over the row's columns)",
    ),
    (
        R,
        "primary: ndcg@10",
        "primary: auc",
        "evaluate.primary: [metric.unknown] the task ranking has no metric 'auc' (known: ndcg@10, mrr, recall@10)",
    ),
    (
        F,
        "minimum: {auc: 0.55}",
        "minimum: {log_loss: 0.5}",
        "evaluate.minimum.log_loss: [metric.direction] lower is better for log_loss: a minimum would let bad models pass (write it under evaluate.maximum)",
    ),
    (
        R,
        "{relative: 0.005}",
        "{relative: 0.005, absolute: 1}",
        "evaluate.improvement: [field.conflict] improvement is absolute or relative, not both (keep one of the two)",
    ),
    (
        R,
        "price: {transform: log}",
        "price: {transform: log, buckets: 3}",
        "prepare.features.price.buckets: [field.conflict] the transform log has no buckets (hash and bucket have)",
    ),
]


@pytest.mark.parametrize(("pipeline", "old", "new", "expected"), CASES, ids=[f"{case[0][0]}{i}" for i, case in enumerate(CASES)])
def test_problem_is_shown_in_these_words_at_its_key(changed: Changed, pipeline: str, old: str, new: str, expected: str) -> None:
    text = changed(pipeline, (old, new))
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "p.yaml")
    (problem,) = caught.value.problems
    assert problem.render("p.yaml").split(": ", 1)[1] == expected
    assert problem.line is not None
    assert problem.column is not None
    at = text.decode().splitlines()[problem.line - 1][problem.column - 1 :]
    key = problem.field.rsplit(".", 1)[-1]
    parent = problem.field.rsplit(".", 2)[-2] if "." in problem.field else ""
    assert at.startswith(parent if problem.code == "field.missing" else key) or key.endswith("]")


def test_all_codes_of_the_table_are_many() -> None:
    assert len({case[3].split("[", 1)[1].split("]")[0].split("[")[-1] for case in CASES}) >= 25


def test_all_problems_are_told_at_once_in_the_order_of_the_lines(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(
        R,
        (NAMED, "name: A"),
        (SCHEDULE, "never"),
        ("window: 30d", "window: x"),
        (LR, "learning_rate: 0"),
        ("[category_id]", "[x]"),
        (EPOCHS, "epochs: 1\n  epochs: 2"),
    )
    found = [problem.code for problem in problems]
    assert found == ["name.invalid", "schedule.invalid", "duration.invalid", "spec.duplicate_key", "field.range"]
    lines = [problem.line for problem in problems]
    assert lines == sorted(lines)


def test_rules_over_sound_sections_speak_although_another_section_is_broken(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(R, ("approval: automatic", "approval: never"), ("test: 2d", "test: 40d"), ("batch_size: 4096", "batch_size: 97"))
    assert [problem.code for problem in problems] == ["split.window", "batch.indivisible", "field.choice"]


def test_value_refused_in_the_text_is_not_refused_again(refuse: Callable[..., tuple[Problem, ...]]) -> None:
    problems = refuse(R, ("seed: 17", "seed: *x"), ("price: {transform: log}", "price: &p {transform: log}"), (EPOCHS, "epochs: !!int 3"))
    assert [problem.code for problem in problems] == ["spec.alias", "spec.alias", "spec.tag"]


@pytest.mark.parametrize(("spelling", "value"), [("1e-3", 0.001), ("0.001", 0.001), (".001", 0.001), ("1", 1.0), ("010", 10.0)])
def test_numbers_have_the_same_value_however_they_are_spelled(accept: Callable[..., PipelineSpec], spelling: str, value: float) -> None:
    assert accept(R, (LR, f"learning_rate: {spelling}")).train.learning_rate == value


@pytest.mark.parametrize("word", ["no", "on", "12:30:00", "1_000", "0x", "2026-01-31"])
def test_words_stay_words_in_fields_of_text(accept: Callable[..., PipelineSpec], word: str) -> None:
    assert accept(R, ("owner: search-relevance", f"owner: {word}")).owner == word


@pytest.mark.parametrize("text", ["{{ var.value.x }}", "{% raw %}", "$(id)", "`id`", "${HOME}"])
def test_template_and_shell_words_stay_literal_text(accept: Callable[..., PipelineSpec], text: str) -> None:
    assert accept(R, ("owner: search-relevance", f"owner: '{text}'")).owner == text


def test_byte_order_mark_and_windows_line_ends_make_no_difference(changed: Changed, ranking: PipelineSpec) -> None:
    assert parse_spec(b"\xef\xbb\xbf" + changed(R).replace(b"\n", b"\r\n")) == ranking


def test_defaults_of_the_family_are_filled_in(flights: PipelineSpec) -> None:
    assert flights.train.settings == {
        "max_depth": 4,
        "min_child_weight": 5.0,
        "subsample": 0.8,
        "colsample": 0.8,
        "reg_lambda": 1.0,
        "reg_alpha": 0.0,
        "gamma": 0.0,
        "max_bin": 256,
    }


def test_the_world_size_is_the_number_of_all_processes(ranking: PipelineSpec, flights: PipelineSpec) -> None:
    assert (ranking.train.placement.world_size, flights.train.placement.world_size) == (2, 1)


def test_class_of_an_allowed_package_is_accepted_and_its_settings_are_its_own(
    accept: Callable[..., PipelineSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme, other")
    spec = accept(
        R,
        ("model: ranker", "model: acme.rank.deep:Model"),
        ("{embedding_dim: 16, hidden: [64, 32]}", "{depth: 3, layers: [[1, 2], a], on: null}"),
    )
    assert spec.train.settings == {"depth": 3, "layers": [[1, 2], "a"], "on": None}


@pytest.mark.parametrize("model", ["acme2.rank:Model", "acme", "acme.rank", "acme.rank:Model.build", "os:system"])
def test_class_of_any_other_package_is_refused(
    refuse: Callable[..., tuple[Problem, ...]], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    (problem,) = refuse(R, ("model: ranker", f'model: "{model}"'))
    assert problem.code == "model.unknown"
    assert problem.hint == "known: boosted_trees, ranker; or package.module:Class of acme"


def test_family_is_known_by_its_file_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "tower.py").write_text("FAMILY = 1 / 0\n")
    (tmp_path / "predictor.py").write_text("class Predictor: ...\n")
    (tmp_path / "_private.py").write_text("FAMILY = 1\n")
    assert known_families(tmp_path) == ("tower",)


def test_families_whose_settings_are_described_are_there() -> None:
    assert set(FAMILIES) <= set(known_families())


def test_file_is_named_after_its_pipeline(tmp_path: Path, changed: Changed) -> None:
    path = tmp_path / "other.yaml"
    path.write_bytes(changed(R))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert (
        caught.value.message
        == f"{path}:3:1: name: [name.file] the pipeline is named 'search_ranking' and its file 'other' (name the file after the pipeline)"
    )


def test_file_that_is_not_there_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "gone.yaml")
    assert (
        caught.value.message
        == f"{tmp_path / 'gone.yaml'}: [spec.unreadable] cannot be read: No such file or directory (check the path and its permissions)"
    )
    assert caught.value.exit_code is ExitCode.BAD_SPEC


def test_importing_and_loading_brings_nothing_heavy_in(pipelines: Path) -> None:
    heavy = ["pandas", "numpy", "torch", "airflow", "duckdb", "mlflow", "pyarrow", "sqlalchemy", "obstore"]
    code = f"import sys, training.spec as s; s.PipelineSpec.thaw(s.freeze(s.load_spec(sys.argv[1]))); sys.exit(', '.join(m for m in {heavy} if m in sys.modules) or 0)"
    found = subprocess.run(
        [sys.executable, "-c", code, str(pipelines / "flight_delay.yaml")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pipelines.parents[1])},
        check=False,
    )
    assert (found.returncode, found.stderr.strip()) == (0, "")
