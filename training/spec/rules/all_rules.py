"""All rules that join keys and sections: the list of them, and those that are about no single subject.

The parameters of a rule are the sections that it looks at; it yields violations. Where one section is broken, the rules over the others
still run, so that one check reports everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final

from training.errors import shown
from training.spec.descriptors.families import FAMILIES
from training.spec.reader.problems import nearest
from training.spec.reader.yaml import Path
from training.spec.rules.drift import drift_columns_fit
from training.spec.rules.evaluation import (
    baseline_fits,
    baseline_is_known_in_time,
    fairness_can_be_computed,
    gates_are_known,
    season_fits_the_window,
    severity_has_a_gate,
    slice_keys_have_slices,
    threshold_has_a_task,
)
from training.spec.rules.features import cells_are_distinct, transform_fits
from training.spec.rules.leakage import late_columns
from training.spec.rules.local_times import local_times_fit
from training.spec.rules.names import (
    Taken,
    clash,
    columns_differ_by_more_than_case,
    columns_have_sources_of_their_own,
    derived_features_differ_by_more_than_case,
    name_is_free,
)
from training.spec.rules.partitions import generated_columns_fit, partitions_fit
from training.spec.rules.row_filters import row_filters_are_known, row_filters_fit, versions_fit
from training.spec.rules.rule_problems import Rule, Violation, violations
from training.spec.rules.splits import split_columns_fit, split_keys_fit, strata_exist
from training.spec.rules.stored_columns import stored_columns_fit
from training.spec.rules.target_encoding import label_has_a_mean
from training.spec.rules.text_columns import text_columns_fit
from training.spec.rules.training import (
    compression_fits,
    elastic_fits,
    family_fits,
    layout_fits,
    metrics_exist,
    optimizer_fits,
    pipeline_fits,
    placement_fits,
    task_fits,
)
from training.spec.rules.tuning import conditions_fit, grid_is_finite, objective_exists, parameters_fit, study_fits_its_gpus
from training.spec.rules.weights import class_weights_name_classes, weight_is_a_number, weights_are_counted
from training.spec.rules.windows import rows_of_windows_are_read, windows_are_known_in_time, windows_can_be_computed
from training.spec.scalar_types import duration_text, in_yaml
from training.spec.schedule.instants import schedule_faults
from training.spec.sections.data import Column, Data, FeatureTable
from training.spec.sections.derived import Derived
from training.spec.sections.evaluation import Evaluate
from training.spec.sections.prepare import Prepare
from training.spec.sections.promotion import Promote
from training.spec.sections.resources import resources_fit
from training.spec.sections.train import Train
from training.spec.sections.validation import Validate
from training.spec.uris import forbidden_uris, forbidden_webhook
from training.sql.analysis import cycle, objection, unknown_columns, words


def broken_rules(sections: Mapping[str, object]) -> list[Violation]:
    """Return what the rules, those of the family too, find in the sections that are there, by their keys in the YAML."""
    train = sections.get("train")
    family = FAMILIES.get(train.model) if isinstance(train, Train) else None
    return violations((*RULES, *(family.rules if family is not None else ())), sections)


def columns_exist(data: Data) -> Iterator[Violation]:
    """Yield a violation for each name in `data` that is not a column, or not of the type that its use requires."""
    types = data.source.types
    named: list[tuple[Path, str]] = [
        (("data", "source", "event_time"), data.source.event_time),
        (("data", "label", "column"), data.label.column),
    ]
    named += [(("data", "source", "key", index), name) for index, name in enumerate(data.source.key)]
    named += [(("data", "group"), data.group)] if data.group else []
    named += [(("data", "label", "known_at"), data.label.known_at)] if data.label.known_at else []
    for index, table in enumerate(data.features):
        named += [(("data", "features", index, "on", ours), ours) for ours in table.on]
    for path, name in named:
        if name not in types:
            yield _unknown(path, name, f"table {data.source.table}", types)
        elif path[-1] in ("event_time", "known_at") and types[name] != "timestamp":
            yield Violation(path, "column.type", f"{name} is of type {types[name]}, a time must be a timestamp", "")
    if data.label.rule is not None and types.get(data.label.column) in ("string", "date", "timestamp", "boolean"):
        message = f"{data.label.column} is of type {types[data.label.column]}, the rule {in_yaml(data.label.rule)} compares numbers"
        yield Violation(("data", "label", "rule"), "column.type", message, "")


def feature_tables_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation for each feature table that names what it does not have, or brings a name that is taken."""
    tables = {data.source.table}
    taken = _columns_of_source(data)
    for index, table in enumerate(data.features):
        path: Path = ("data", "features", index)
        if table.table in tables:
            yield Violation((*path, "table"), "table.clash", f"there is a table {table.table} already", "give each table a different name")
        tables.add(table.table)
        yield from _feature_table(path, table)
        yield from _keys_of_a_kind(path, table, data.source.types)
        for name, column in table.joined.items():
            at = next(key for key, found in table.columns.items() if found is column)
            place = (*path, "columns", at)
            first = taken.get(name.lower())
            # Two keys of one table that differ by case alone are `columns_differ_by_more_than_case`'s.
            if first is not None and not (first.path and first.path[:-1] == place[:-1] and str(first.path[-1]).lower() == at.lower()):
                hint = f"give it another name: {{type: {column.type}, as: {table.table}_{at}}}"
                yield clash(place, name, first, hint)
            taken[name.lower()] = Taken(name, table.table, place)


def _columns_of_source(data: Data) -> dict[str, Taken]:
    source, path = data.source, ("data", "source")
    groups = ((path, "derive", source.derive), (path, "columns", source.columns))
    return {name.lower(): Taken(name, source.table, (*at, key, name)) for at, key, columns in groups for name in columns}


def _keys_of_a_kind(path: Path, table: FeatureTable, types: Mapping[str, str]) -> Iterator[Violation]:
    for ours, theirs in table.on.items():
        kinds = types.get(ours), table.columns[theirs].type if theirs in table.columns else None
        if kinds[0] != kinds[1] and "int64" in kinds and set(kinds) & {"float", "double"}:
            message = (
                f"{ours} is of type {kinds[0]}, {table.table}.{theirs} of type {kinds[1]}: integers from 2**53 would be joined as others"
            )
            yield Violation((*path, "on", ours), "column.type", message, "declare both as int64, or both as string")


def _feature_table(path: Path, table: FeatureTable) -> Iterator[Violation]:
    for ours, theirs in table.on.items():
        if theirs not in table.columns:
            yield _unknown((*path, "on", ours), theirs, f"table {table.table}", table.columns)
    if table.event_time is None:
        if table.available_after:
            yield Violation(
                (*path, "available_after"), "field.conflict", "available_after needs an event_time", "a dimension is known always"
            )
        if table.max_age is not None:
            yield Violation((*path, "max_age"), "field.conflict", "max_age needs an event_time", "a dimension has no age")
    elif table.event_time not in table.columns:
        yield _unknown((*path, "event_time"), table.event_time, f"table {table.table}", table.columns)
    elif table.columns[table.event_time].type != "timestamp":
        found = table.columns[table.event_time].type
        yield Violation((*path, "event_time"), "column.type", f"{table.event_time} is of type {found}, a time must be a timestamp", "")
    yield from _both_declared_and_ignored(path, table.columns, table.ignore)


def windows_fit(data: Data) -> Iterator[Violation]:
    """Yield a violation where the window and the split do not go together."""
    source, split = data.source, data.split
    after = split.end if isinstance(split.end, timedelta) else timedelta()
    lengths = [size for size in (split.validation, split.test) if isinstance(size, timedelta)]
    gap = split.gap or timedelta()
    held_out = sum(lengths, after) + 2 * gap
    if held_out >= source.window:
        ends = f" before the last {duration_text(after)}" if after else ""
        gaps = f", with a gap of {duration_text(gap)} before each," if gap else ""
        what = "validation ({}) and test ({})".format(*map(duration_text, lengths)) + gaps if len(lengths) == 2 else "data.split.end"
        leave = "leave" if len(lengths) == 2 else f"({duration_text(after)}) leaves"
        message = f"{what}{ends if len(lengths) == 2 else ''} {leave} nothing of the window ({duration_text(source.window)}) to train on"
        yield Violation(("data", "split"), "split.window", message, f"make data.source.window longer than {duration_text(held_out)}")


def label_type_fits(data: Data, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation where the task cannot be learned from a label of this type, or the positive class is missing or pointless."""
    label, task = data.label, evaluate.task
    kind = data.source.types.get(label.column)
    at: Path = ("data", "label", "column")
    is_text = kind == "string" and label.rule is None
    if label.positive is not None and not is_text:
        message = f"positive names a class of a label of type string, and {label.column} is of type {kind}"
        yield Violation(
            ("data", "label", "positive"), "field.conflict", message, "remove it: 1, true, or what the rule selects is positive"
        )
    if kind in ("date", "timestamp"):
        hint = "derive a number or a text from it in data.source.derive"
        yield Violation(at, "column.type", f"{label.column} is of type {kind}: a label is a number, a boolean or a text", hint)
    if not is_text:
        return
    if task not in ("binary", "multiclass"):
        hint = "set evaluate.task to multiclass or binary, or derive a number in data.source.derive"
        yield Violation(at, "column.type", f"{label.column} is of type string: the label of the task {task} is a number", hint)
    if task == "binary" and label.positive is None:
        message = f"the key positive is missing: {label.column} is of type string, and one of its two classes is the positive one"
        yield Violation(
            ("data", "label", "positive"), "field.missing", message, 'name the class whose probability is predicted: positive: "yes"'
        )
    if task == "multiclass" and label.positive is not None:
        yield Violation(("data", "label", "positive"), "field.conflict", "the task multiclass has no positive class", "remove it")


def label_delays_fit(data: Data, validate: Validate) -> Iterator[Violation]:
    """Yield a violation for each key about labels that come late, where nothing says when a label is known."""
    if data.label.known_at is not None:
        return
    hint = "name the column that says when the label is known: data.label.known_at"
    if data.split.end == "labels_complete":
        yield Violation(("data", "split", "end"), "field.conflict", "labels_complete needs data.label.known_at", hint)
    if validate.unknown_labels is not None:
        yield Violation(("validate", "unknown_labels"), "field.conflict", "unknown_labels needs data.label.known_at", hint)


def derived_columns_fit(data: Data) -> Iterator[Violation]:
    source = data.source
    taken = {name.lower(): Taken(name, source.table, ("data", "source", "columns", name)) for name in source.columns}
    yield from _derived(("data", "source", "derive"), source.derive, taken, [*source.columns, *source.ignore], source.table)
    yield from _both_declared_and_ignored(("data", "source"), source.columns, source.ignore)


def prepared_columns_fit(data: Data, prepare: Prepare) -> Iterator[Violation]:
    """Yield a violation for each derived column or feature of `prepare` that cannot be made."""
    frame = data.frame_types()
    taken = {name.lower(): Taken(name, "the joined frame") for name in (*frame, "label")}
    yield from _derived(("prepare", "derive"), prepare.derive, taken, [*frame, "label"], "the joined frame")
    yield from _constants(prepare.derive, frame)
    if "label" in frame and data.label.column != "label":
        yield Violation(
            ("data",), "column.clash", "a column is called label: the joined frame calls the label so", "give the column another name"
        )
    for name, feature in prepare.features.items():
        path: Path = ("prepare", "features", name)
        if name not in frame and name not in prepare.derive:
            yield _unknown(path, name, "the joined frame, nor of prepare.derive", [*frame, *prepare.derive])
        yield from transform_fits(path, feature, prepare.derive[name].type if name in prepare.derive else frame.get(name))
    yield from cells_are_distinct(prepare)


def _derived(
    path: Path, derive: Mapping[str, Derived], taken: Mapping[str, Taken], known: Iterable[str], owner: str
) -> Iterator[Violation]:
    columns = [*known, *derive]
    for name, column in derive.items():
        if name.lower() in taken:
            yield clash((*path, name), name, taken[name.lower()], "give the derived column another name")
        fault = objection(column.sql)
        if fault:
            yield Violation(
                (*path, name, "sql"), "sql.forbidden", f"the SQL of {name} {fault}", "write one expression over the row's columns"
            )
        for word in [] if fault else unknown_columns(column.sql, columns):
            message = f"the SQL of {name} mentions {shown(word)}, which is not a column of {owner}"
            yield Violation((*path, name, "sql"), "column.unknown", message, nearest(word, columns))
    circle = cycle(derive)
    if circle:
        message = f"derived columns go in a circle: {' -> '.join([*circle, circle[0]])}"
        yield Violation((*path, circle[0], "sql"), "derive.cycle", message, "")


def _constants(derive: Mapping[str, Derived], frame: Iterable[str]) -> Iterator[Violation]:
    """Yield a violation for each derived column of `prepare` that has the same value in every row: nothing can be learned from it."""
    columns = {name.lower() for name in (*frame, *derive)}
    for name, column in derive.items():
        if objection(column.sql) is None and not words(column.sql) & columns:
            message = f"the SQL of {name} mentions no column, so it has the same value in every row"
            yield Violation(("prepare", "derive", name, "sql"), "derive.constant", message, "write an expression over the row's columns")


def slices_exist(data: Data, prepare: Prepare, evaluate: Evaluate) -> Iterator[Violation]:
    """Yield a violation for each name of a column in `evaluate` that the evaluation will not see."""
    frame = data.frame_types()
    named = [(key, index, name) for key in ("slices", "sensitive", "entities") for index, name in enumerate(getattr(evaluate, key))]
    for key, index, name in named:
        path: Path = ("evaluate", key, index)
        if name in prepare.derive:
            message = f"{name} is derived in prepare; {key} are made of columns of the joined frame"
            yield Violation(path, "column.unknown", message, "derive it in data.source.derive")
        elif name not in frame:
            yield _unknown(path, name, "the joined frame", frame)


def canary_schedule_fits(promote: Promote) -> Iterator[Violation]:
    """Yield a violation where a canary would never be looked at."""
    if promote.canary is not None:
        for violation in schedule_faults(promote.canary.schedule):
            yield Violation(("promote", "canary", "schedule"), violation.code, violation.message, violation.hint)


def canary_can_see_new_rows(data: Data, promote: Promote) -> Iterator[Violation]:
    """Yield a violation where no row can be newer than a canary, which is judged on newer rows alone."""
    source = data.source
    time = source.derive.get(source.event_time)
    if promote.canary is None or time is None or objection(time.sql) is not None:
        return
    if not words(time.sql) & {name.lower() for name in (*source.columns, *source.ignore, *source.derive)}:
        message = f"a canary is judged on rows that are newer than it, and all rows have one instant: {source.event_time} reads no column"
        hint = "derive data.source.event_time from a column, or use promote.approval: required instead of a canary"
        yield Violation(("promote", "canary"), "field.conflict", message, hint)


def _both_declared_and_ignored(path: Path, columns: Mapping[str, Column], ignore: Iterable[str]) -> Iterator[Violation]:
    declared = {column.name_at_source(name) for name, column in columns.items() if column.is_in_file}
    for name in sorted(declared & set(ignore)):
        yield Violation((*path, "ignore"), "column.clash", f"{name or in_yaml(name)} is declared and ignored", "keep one of the two")


def _unknown(path: Path, name: str, owner: str, known: Iterable[str]) -> Violation:
    return Violation(path, "column.unknown", f"{name} is not a column of {owner}", nearest(name, known))


RULES: Final[tuple[Rule, ...]] = (
    name_is_free,
    schedule_faults,
    forbidden_webhook,
    forbidden_uris,
    columns_exist,
    columns_differ_by_more_than_case,
    columns_have_sources_of_their_own,
    derived_features_differ_by_more_than_case,
    feature_tables_fit,
    windows_fit,
    partitions_fit,
    generated_columns_fit,
    stored_columns_fit,
    text_columns_fit,
    split_keys_fit,
    split_columns_fit,
    strata_exist,
    derived_columns_fit,
    local_times_fit,
    windows_can_be_computed,
    rows_of_windows_are_read,
    windows_are_known_in_time,
    label_type_fits,
    row_filters_fit,
    versions_fit,
    row_filters_are_known,
    label_delays_fit,
    drift_columns_fit,
    prepared_columns_fit,
    late_columns,
    slices_exist,
    label_has_a_mean,
    canary_schedule_fits,
    canary_can_see_new_rows,
    resources_fit,
    family_fits,
    optimizer_fits,
    compression_fits,
    placement_fits,
    elastic_fits,
    layout_fits,
    pipeline_fits,
    parameters_fit,
    conditions_fit,
    grid_is_finite,
    study_fits_its_gpus,
    objective_exists,
    metrics_exist,
    slice_keys_have_slices,
    fairness_can_be_computed,
    threshold_has_a_task,
    gates_are_known,
    severity_has_a_gate,
    baseline_fits,
    season_fits_the_window,
    baseline_is_known_in_time,
    task_fits,
    weight_is_a_number,
    weights_are_counted,
    class_weights_name_classes,
)
