# ruff: noqa: E501 - the table shows whole messages
"""Changes that make a pipeline's YAML wrong, each with the problem in the exact words that the author reads."""

from training.spec.descriptors.families import trained_families
from training.spec.descriptors.sources import SOURCES

R, F = "search_ranking", "flight_delay"
CRON = '(minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two)'
NAME = "(at most 63 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit: [a-z0-9][a-z0-9._-]{0,62})"
NUMBER = "(text is not read as anything else; numbers are written 0.1, 1e-3 or 1000, without quotes)"
PLACE = "(name the place by an environment variable, ${SHOP_URI}/clicks, or write s3://bucket/…, gs://… or az://…)"
DURATION = "(write a number and a unit: 30d, 36h, 10m or 90s)"

LR, EPOCHS, PLACEMENT = "learning_rate: 2e-2", "epochs: 3", "nodes: 1, processes_per_node: 2"
KINDS = " or ".join(str(list(SOURCES.built_in))[1:-1].rsplit(", ", 1))
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
        "train.zzz: [spec.unknown_key] unknown key 'zzz' (known: activation_checkpointing, batch_size, checkpoint, class_weight, early_stopping, epochs, from_checkpoint, gradient_compression, learning_rate, micro_batch_size, model, momentum, optimizer, parallel, placement, powersgd_rank, precision, refit, replica_check_steps, schedule, seed, settings, straggler_ratio, warmup_share, warmup_steps, weight_decay)",
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
    (R, LR, "learning_rate: 0", "train.learning_rate: [field.range] must be greater than 0, got 0"),
    (R, LR, "learning_rate: -1", "train.learning_rate: [field.range] must be greater than 0, got -1"),
    (R, LR, "learning_rate: .nan", "train.learning_rate: [field.range] must be finite, got nan"),
    (R, LR, "learning_rate: 1e999", "train.learning_rate: [field.range] must be finite, got inf"),
    (R, LR, 'learning_rate: "0.1"', f"train.learning_rate: [field.type] expected a number, got '0.1' {NUMBER}"),
    (R, LR, "learning_rate: true", "train.learning_rate: [field.type] expected a number, got true"),
    (R, f"  {LR}\n", "", "train.learning_rate: [field.missing] the key learning_rate is missing: ranker needs it"),
    (R, LR, "learning_rate: 1_000", f"train.learning_rate: [field.type] expected a number, got '1_000' {NUMBER}"),
    (R, LR, "learning_rate: 12:30:00", f"train.learning_rate: [field.type] expected a number, got '12:30:00' {NUMBER}"),
    (R, EPOCHS, "epochs: 0", "train.epochs: [field.range] must be at least 1, got 0"),
    (R, EPOCHS, "epochs: 1.5", "train.epochs: [field.range] must be a whole number, got 1.5"),
    (R, EPOCHS, f"epochs: 1{'0' * 30}", f"train.epochs: [field.range] must be at most 100000, got 1{'0' * 30}"),
    (R, EPOCHS, f"epochs: {'9' * 5000}", "train.epochs: [field.range] must be a whole number, got inf"),
    (R, "  epochs: 3\n", "", "train.epochs: [field.missing] the key epochs is missing: ranker needs it"),
    (R, "  batch_size: 4096\n", "", "train.batch_size: [field.missing] the key batch_size is missing: ranker needs it"),
    (R, "tags: [ranking, torch, demo]", "tags: no", "tags: [field.type] expected a list, got 'no'"),
    (R, "owner: search-relevance", "owner: 010", "owner: [field.type] expected text, got 10 (quote it)"),
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
    (R, "window: 30d", "window: 9999d", "data.source.window: [field.range] must be at most 3650d, got '9999d'"),
    (R, "every: 10m", "every: 0s", "train.checkpoint.every: [field.range] must be longer than 0s"),
    (
        R,
        "every: 10m",
        "every: {}",
        "train.checkpoint.every: [field.choice] must have time or steps (write a duration such as 10m, or {steps: 1000})",
    ),
    (R, "every: 10m", "every: {steps: 0}", "train.checkpoint.every.steps: [field.range] must be at least 1, got 0"),
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
        f"train.model: [model.unknown] there is no model 'rnker' (known: {', '.join(trained_families())}; a class of your own: name its package in NIGHTSHIFT_MODEL_PACKAGES, docs/extending.md)",
    ),
    (
        R,
        "model: ranker",
        "model: os:system",
        f"train.model: [model.unknown] there is no model 'os:system' (known: {', '.join(trained_families())}; a class of your own: name its package in NIGHTSHIFT_MODEL_PACKAGES, docs/extending.md)",
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
    (R, SCHEDULE, '"H 2 * * *"', f"schedule: [schedule.invalid] 'H 2 * * *' is not a cron line: h is not a month or day {CRON}"),
    (R, SCHEDULE, '"0 0 30 2 *"', "schedule: [schedule.never] '0 0 30 2 *' never occurs (no month has that day)"),
    (
        R,
        SCHEDULE,
        '"0 0 29 2 *"',
        "schedule: [schedule.never] '0 0 29 2 *' does not occur within 400 days (leave `schedule` out and start it by hand)",
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
        "data.source.columns.=cmd(): [column.name] '=cmd()' is not a column's name (letters, digits and '_', not beginning with a digit; "
        "a column with another name in the file has that name as its source_name)",
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
        "batch_size: 20",
        "train.batch_size: [field.conflict] batch_size has no effect on boosted_trees (leave it out)",
    ),
    (R, URI, "file:///etc/passwd", f"data.source.uri: [uri.forbidden] 'file:///etc/passwd' is not a place that a YAML may name {PLACE}"),
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
        R,
        "category_id]",
        "categry]",
        "evaluate.slices[0]: [column.unknown] categry is not a column of the joined frame (did you mean category_id?)",
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
        "primary: ndcg@10",
        "primary: auc",
        "evaluate.primary: [metric.unknown] the task ranking has no metric 'auc' (known: ndcg@10, mrr, recall@10)",
    ),
    (
        F,
        "minimum: {auc: 0.55}",
        "minimum: {log_loss: 0.5}",
        "evaluate.minimum.log_loss: [metric.direction] lower is better for log_loss: a minimum would pass bad models (write it under evaluate.maximum)",
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
        "prepare.features.price.buckets: [field.conflict] the transform log has no buckets (hash, bucket and text have)",
    ),
]
