"""Run a pipeline for the slots of past days, one after the other: each run is compared with the champion that the one before it left.

    nightshift backfill PIPELINE --from 2026-02-01 --to 2026-02-03 [--set train.epochs=5] [--force] [--keep-going] [--json]

Slots are those of the pipeline's schedule, days those of its time zone. The runs are started from here: after Ctrl-C, the run in
progress continues, and the same command on the same day (UTC) goes on where it was. It starts failed runs again.

Airflow's own backfill is refused where its database is SQLite, as on a laptop; this command works with every database.

The server is that of --server or NIGHTSHIFT_SERVER, with the token in NIGHTSHIFT_TOKEN; without them, the laptop installation.

Exit codes: 0 every run succeeded; 1 a run failed; 2 the command line is wrong; 64 the request is wrong; 74 the server does not answer;
77 refused (the pipeline is paused, the range has no slot).
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from nightshift.client.client import Client
from nightshift.client.query_command import describe_server_command, print_json
from nightshift.client.runs_command import add_set_option, overrides_of
from nightshift.queries.schemas import Run
from training.contracts import canonical_json, sha256_hex
from training.errors import DeniedError
from training.sanitizing import for_terminal

MAX_RUNS: Final = 366
FAILED: Final = "failed"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe_server_command(parser, _backfill, "nightshift backfill search_ranking --from 2026-02-10 --to 2026-02-12", __doc__)
    parser.add_argument("pipeline", help="name of a pipeline")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, required=True, metavar="DAY", help="first day, 2026-02-01")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, required=True, metavar="DAY", help="last day")
    add_set_option(parser)
    parser.add_argument("--force", action="store_true", help="do the work of every stage again")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failed run")


def _backfill(client: Client, options: argparse.Namespace) -> int:
    runs: list[Run] = []
    slots = slots_of(client, options.pipeline, options.first, options.last)
    sys.stderr.write(f"{len(slots)} runs of {options.pipeline}, {slots[0].isoformat()} to {slots[-1].isoformat()}\n")
    for run in _runs(client, slots, options):
        runs.append(run)
        if not options.json:
            line = f"{run.as_of.isoformat() if run.as_of else run.id}  {run.state:<8}  {run.note or ''}"
            sys.stdout.write(for_terminal(line.rstrip()) + "\n")
            sys.stdout.flush()
        if run.state == FAILED and not options.keep_going:
            break
    if options.json:
        print_json(runs)
    return 0 if all(run.state != FAILED for run in runs) else 1


def slots_of(client: Client, pipeline: str, first: date, last: date) -> list[datetime]:
    """Return the slots of a range of days that have come, oldest first.

    Raises:
        DeniedError: `pipeline.unknown`; `pipeline.paused`, runs would wait; `backfill.range`, `backfill.empty`, `backfill.too_many`.
    """
    if last < first:
        raise DeniedError("backfill.range", f"--from {first} is later than --to {last}", hint="exchange them")
    found_pipeline = client.require_on(pipeline)
    if found_pipeline.schedule is None:
        hint = f"start its runs one by one: nightshift runs start {pipeline} --as-of {first}"
        raise DeniedError("backfill.empty", f"{pipeline} has no schedule, so there are no slots", hint=hint)
    zone = ZoneInfo(str(client.airflow("GET", f"/dags/{quote(pipeline, safe='')}/details").json()["timezone"] or "UTC"))
    begin, end = datetime.combine(first, time.min, zone), min(datetime.combine(last, time.max, zone), datetime.now(UTC))
    found: list[datetime] = []
    if begin < end:
        body = {"dag_id": pipeline, "from_date": begin.isoformat(), "to_date": end.isoformat()}
        planned = client.airflow("POST", "/backfills/dry_run", json=body).json()["backfills"]
        found = sorted(datetime.fromisoformat(str(each["logical_date"])) for each in planned)
    if not found:
        message = f"no slot of {pipeline} has come from {first} to {last}"
        raise DeniedError("backfill.empty", message, hint="choose other days")
    if len(found) > MAX_RUNS:
        raise DeniedError(
            "backfill.too_many", f"{len(found)} slots, limit {MAX_RUNS}", hint=f"the first {MAX_RUNS} end with {found[MAX_RUNS - 1]}"
        )
    return found


def _runs(client: Client, slots: Sequence[datetime], options: argparse.Namespace) -> Iterator[Run]:
    overrides, today = overrides_of(options.set), datetime.now(UTC).date().isoformat()
    for slot in slots:
        as_of = slot.isoformat()
        request: dict[str, Any] = {"as_of": as_of, "force": options.force, "overrides": overrides}
        # The same command finds the run that it started before. With the day: a run says nothing of the YAML, code and data of a later one.
        key = sha256_hex(canonical_json(["backfill", today, options.pipeline, request]))
        run = client.run(client.start_run(options.pipeline, key=key, **request).id)
        if run.state == FAILED:
            run = client.start_run(options.pipeline, key=uuid.uuid4().hex, **request)
        yield client.wait(run.id)
