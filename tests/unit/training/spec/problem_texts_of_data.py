# ruff: noqa: E501 - the table shows whole messages
"""Changes that make the sections data, prepare and validate of a pipeline's YAML wrong, as `problem_texts`."""

from tests.unit.training.spec.problem_texts import F, R
from training.spec.descriptors.sources import SOURCES

PLACE = "(name the place by an environment variable, ${SHOP_URI}/clicks, or write s3://bucket/…, gs://… or az://…)"
DURATION = "(write a number and a unit: 30d, 36h, 10m or 90s)"
KINDS = " or ".join(str(list(SOURCES.built_in))[1:-1].rsplit(", ", 1))
URI = '"${SHOP_URI}/clicks"'

DATA_CASES: list[tuple[str, str, str, str]] = [
    (
        R,
        "position: {type: int32}",
        "position: {typ: int32, type: int32}",
        "data.source.columns.position.typ: [spec.unknown_key] unknown key 'typ' (did you mean type?)",
    ),
    (
        R,
        "price: {type: float}",
        "price: {type: float}\n      file_row_number: {type: int64}",
        "data.source.columns.file_row_number: [column.clash] file_row_number is reserved: the engine calls the place of a row in its file so (give the column another name where the data is made)",
    ),
    (
        R,
        "    window: 30d",
        "    ignore: [File_Row_Number]\n    window: 30d",
        "data.source.ignore: [column.clash] File_Row_Number is reserved: the engine calls the place of a row in its file so (give the column another name where the data is made)",
    ),
    (
        R,
        "kind: parquet",
        "kind: parqet",
        f"data.source.kind: [field.choice] must be {KINDS}, got 'parqet' (did you mean parquet?)",
    ),
    *(
        (
            R,
            "rating: {type: float}",
            f"rating: {{type: {given}}}",
            "data.source.columns.rating.type: [field.choice] must be 'boolean', 'int8', 'int16', 'int32', 'int64', 'float', 'double', "
            f"'string', 'date' or 'timestamp', got '{given}' (did you mean {meant}?)",
        )
        for given, meant in (("float64", "double"), ("varchar", "string"), ("floot", "float"))
    ),
    (R, "window: 30d", "window: 30 days", f"data.source.window: [duration.invalid] expected a duration, got '30 days' {DURATION}"),
    (R, "window: 30d", "window: 30", f"data.source.window: [duration.invalid] expected a duration, got 30 {DURATION}"),
    (R, "window: 30d", "window: 36501d", "data.source.window: [field.range] must be at most 36500d, got '36501d'"),
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
        "data.source.columns.=cmd(): [column.name] '=cmd()' is not a column's name (letters, digits and '_', not beginning with a digit; "
        "a column with another name in the file has that name as its source_name)",
    ),
    (R, URI, "file:///etc/passwd", f"data.source.uri: [uri.forbidden] 'file:///etc/passwd' is not a place that a YAML may name {PLACE}"),
    (
        R,
        "event_time: shown_at",
        "event_time: shownat",
        "data.source.event_time: [column.unknown] shownat is not a column of table clicks (did you mean shown_at?)",
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
        "data.label.column: [column.unknown] click is not a column of table clicks (did you mean clicked?)",
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
        "data.group: [column.unknown] search is not a column of table clicks (did you mean search_id?)",
    ),
    (
        R,
        "  group: search_id\n",
        "",
        "data.group: [field.missing] the key group is missing: the task ranking needs it (the column whose rows are ranked together)",
    ),
    (
        F,
        "    dewp: {transform",
        "    dew: {transform",
        "prepare.features.dew: [column.unknown] dew is not a column of the joined frame, nor of prepare.derive (did you mean dewp?)",
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
        "data.features[1].table: [table.clash] there is a table weather already (give each table a different name)",
    ),
    (
        F,
        "on: {tailnum: tailnum}",
        "on: {tailnum: tailnum, origin: tail}",
        "data.features[1].on.origin: [column.unknown] tail is not a column of table planes (did you mean tailnum?)",
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
        "    window: 30d",
        "    newest_by: shown_at\n    deleted_by: clickd\n    window: 30d",
        "data.source.deleted_by: [column.unknown] clickd is not a column of clicks (did you mean clicked?)",
    ),
    (
        R,
        "    window: 30d",
        "    newest_by: price\n    window: 30d",
        "data.source.newest_by: [column.type] price is of type float, and newest_by needs a timestamp (derive one: data.source.derive: {…: {type: timestamp, sql: …}})",
    ),
    (
        R,
        '"dt={date}"',
        '"day={day}/dt={date}"',
        "data.source.partition: [partition.invalid] 'day={day}/dt={date}' has {day}, which is neither a column nor a time ({date}, {month}, {hour}, %Y, %m, %d, %H, %-m, %-d, %-H) (correct it, or declare day under columns with generated: partition_value)",
    ),
    (
        R,
        '"dt={date}"',
        '"../{date}"',
        "data.source.partition: [partition.invalid] '../{date}' is not a folder below uri (one folder a day: \"dt={date}\")",
    ),
    (
        R,
        "window: 30d",
        "window: 100h",
        "data.source.window: [partition.window] 100h is not a whole number of days, and the partitions are days",
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
        "freshness: 36h\n  drift: {columns: {prices: {action: fail}}}",
        "validate.drift.columns.prices: [column.unknown] prices is not a column of any table (did you mean price?)",
    ),
    (
        R,
        "freshness: 36h",
        "freshness: 36h\n  drift: {columns: {shown_at: {psi: 0.5}}}",
        "validate.drift.columns.shown_at: [field.conflict] shown_at is a key, a date or a time, which are not compared (remove it)",
    ),
    (
        F,
        "volume_change: 0.5",
        "drift: {columns: {dest: {kolmogorov_smirnov: 0.5}}}",
        "validate.drift.columns.dest.kolmogorov_smirnov: [field.conflict] kolmogorov_smirnov is of numbers, and dest is of type string (set psi, jensen_shannon or new_categories)",
    ),
    (
        R,
        "freshness: 36h",
        "freshness: 36h\n  drift: {columns: {price: {new_categories: 0.5}}}",
        "validate.drift.columns.price.new_categories: [field.conflict] new_categories is of texts and truth values, and price is of type float (set psi, jensen_shannon or kolmogorov_smirnov)",
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
        "price: {transform: log}",
        "price: {transform: log, buckets: 3}",
        "prepare.features.price.buckets: [field.conflict] the transform log has no buckets (hash, bucket and text have)",
    ),
]
