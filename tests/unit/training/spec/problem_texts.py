# ruff: noqa: E501 - the table shows whole messages
"""Changes that make a pipeline's YAML wrong, each with the problem in the exact words that the author reads."""

from training.spec.descriptors.families import trained_families

R, F = "search_ranking", "flight_delay"
CRON = '(minute, hour, day of month, month, day of week: "0 2 * * *" is every night at two)'
NAME = "(at most 63 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit: [a-z0-9][a-z0-9._-]{0,62})"
NUMBER = "(text is not read as anything else; numbers are written 0.1, 1e-3 or 1000, without quotes)"

LR, EPOCHS, PLACEMENT = "learning_rate: 2e-2", "epochs: 3", "nodes: 1, processes_per_node: 2"
NAMED = "name: search_ranking"
SCHEDULE = '"0 2 * * *"'

CASES: list[tuple[str, str, str, str]] = [
    # pipeline, text, its replacement, the problem as shown
    (R, "owner: search-relevance", "owner: x\nownr: x", "ownr: [spec.unknown_key] unknown key 'ownr' (did you mean owner?)"),
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
    (
        R,
        '"${ALERTS_URI}"',
        "https://hooks.example.com/secret",
        "alerts.webhook: [uri.forbidden] the address of a webhook is often a secret, and the file is none (put it in an environment variable and write ${ALERTS_URI})",
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
]
