"""`python -m devstack COMMAND`: the services of a laptop installation and its simulated nights."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable

from devstack import lifecycle, shutdown, status
from devstack.dag_pausing import end_signals_raise
from devstack.environment import shell_lines
from devstack.next_night import parse_conf, parse_day
from nightshift.settings import Settings
from training.errors import NightshiftError

BACKFILL_HELP = (
    "run a range of nights one after the other, by the pipeline's schedule and time zone (days without a slot are left out, of several "
    "slots a day the first counts), and show a table of their decisions; nights that succeeded before are not run again"
)


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # `| head` has seen enough. As after Ctrl-C, the next `make run` continues a run that is not finished.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code, 0 for success."""
    # Inherited by all that is started here: databases, store, artifacts and logs are readable by their user alone.
    os.umask(0o077)
    try:
        parser = argparse.ArgumentParser(prog="python -m devstack", description=__doc__)
        declare(parser)
        options = parser.parse_args(arguments)
        logging.basicConfig(
            level=logging.INFO if options.command == "supervise" else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
        )
        run: Callable[[Settings, argparse.Namespace], int] = options.run
        # The supervisor installs its own handlers.
        with contextlib.nullcontext() if options.command == "supervise" else end_signals_raise():
            return run(Settings.from_environment(), options)
    except NightshiftError as err:
        print(f"error: {err}", file=sys.stderr)
        return int(err.exit_code)
    except KeyboardInterrupt:
        print("\ninterrupted; the services keep running (make status, make stop)", file=sys.stderr)
        return 130


def _run(settings: Settings, options: argparse.Namespace) -> int:
    from devstack.run_command import run_night

    return run_night(settings, options.pipeline, night=options.night, force=options.force, say=say, overrides=options.conf)


def _backfill(settings: Settings, options: argparse.Namespace) -> int:
    from devstack.backfill import BackfillRange, run_backfill

    wanted = BackfillRange(first=options.first, last=options.last, force=options.force, keep_going=options.keep_going)
    return run_backfill(settings, options.pipeline, wanted, say=say)


def _start(settings: Settings, _options: argparse.Namespace) -> int:
    lifecycle.start(settings, say)
    say(status.addresses(settings))
    return 0


def _stop(settings: Settings, _options: argparse.Namespace) -> int:
    shutdown.stop(settings.home, say)
    say("stopped")
    return 0


def _status(settings: Settings, _options: argparse.Namespace) -> int:
    say(status.report(settings))
    return 0 if shutdown.running(settings.home) else 3


def _follow(settings: Settings, options: argparse.Namespace) -> int:
    from devstack.run_command import follow_run

    return follow_run(settings, options.pipeline, options.run_id, say=say)


def _env(settings: Settings, _options: argparse.Namespace) -> int:
    say(shell_lines(settings))
    return 0


def _supervise(settings: Settings, _options: argparse.Namespace) -> int:
    lifecycle.supervise(settings)
    return 0


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[Settings, argparse.Namespace], int], text: str, *, prog: str | None = None
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, prog=prog)
        made.set_defaults(run=run)
        return made

    text = "start the services, run the next simulated night of a pipeline, show it and its outcome"
    night = command("run", _run, text, prog="nightshift run")
    night.add_argument("pipeline", nargs="?", default="search_ranking")
    night.add_argument("--night", type=parse_day, help="this night (YYYY-MM-DD) instead of the next one")
    night.add_argument("--conf", type=parse_conf, default={}, help='overrides of this run as JSON: {"train": {"epochs": 5}}')
    night.add_argument("--force", action="store_true", help="do all of its work again, finished or not")
    backfill = command("backfill", _backfill, BACKFILL_HELP)
    backfill.add_argument("pipeline")
    backfill.add_argument("--from", dest="first", type=parse_day, required=True, metavar="DAY", help="the first night, YYYY-MM-DD")
    backfill.add_argument(
        "--to", dest="last", type=parse_day, required=True, metavar="DAY", help="the last night; its slot must have passed"
    )
    backfill.add_argument("--force", action="store_true", help="run finished nights again too, and do all of their work again")
    backfill.add_argument("--keep-going", action="store_true", help="continue after a night that failed; the exit code is still 1")
    command("start", _start, "start the services and wait until they are ready")
    command("stop", _stop, "end every process of this installation, and no other")
    command("status", _status, "say what runs; exit code 3 if nothing does", prog="nightshift services")
    follow = command("follow", _follow, "show a run's progress and outcome")
    follow.add_argument("pipeline")
    follow.add_argument("run_id", nargs="?", help="default: the newest run")
    command("env", _env, 'print the settings for a shell: eval "$(python -m devstack env)"')
    command("supervise", _supervise, "be the supervisor, in the foreground (for service managers)")


if __name__ == "__main__":
    sys.exit(main())
