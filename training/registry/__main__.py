"""What was decided about models, and why; and the way back.

    python -m training.registry                                  all models, their champions and canaries
    python -m training.registry show MODEL [--json]              every decision about one
    python -m training.registry rollback MODEL [--to VERSION] --reason "..." [--yes]
    python -m training.registry check [--repair]                 what MLflow says otherwise than the ledger

`python -m training.registry MODEL` is short for `show MODEL`.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from training.errors import NightshiftError
from training.registry.decisions import champions, find_version, roll_back
from training.registry.ledger import Entry, Holder, Ledger, Standing

COMMANDS: Final = ("show", "rollback", "check")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 1 where a check found differences, or the error's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0] not in COMMANDS and given[0] not in ("-h", "--help")):
        given.insert(0, "show")
    options = _parser().parse_args(given)
    try:
        return int(_COMMANDS[options.command](Ledger(), options))
    except NightshiftError as err:
        sys.stderr.write(f"error: {err}\n")
        return int(err.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.registry", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="decisions, champion and canary")
    show.add_argument("model", nargs="?", help="name of a model; absent: a line for each")
    show.add_argument("--json", action="store_true", help="as JSON, with all evidence")
    back = commands.add_parser("rollback", help="make an earlier version champion again")
    back.add_argument("model")
    back.add_argument("--to", help="number or semantic version; absent: the champion before this one")
    back.add_argument("--reason", required=True, help="for those who read the ledger a year later")
    back.add_argument("--by", default=None, help="who; absent: the user of this process")
    back.add_argument("--yes", action="store_true", help="do not ask")
    check = commands.add_parser("check", help="compare MLflow with the ledger")
    check.add_argument("model", nargs="?")
    check.add_argument("--repair", action="store_true", help="set MLflow right")
    return parser


def _show(ledger: Ledger, options: argparse.Namespace) -> int:
    names = [options.model] if options.model else ledger.models()
    if options.json:
        shown = {name: {"standing": ledger.standing(name), "decisions": ledger.history(name)} for name in names}
        sys.stdout.write(json.dumps(shown, default=_plain, indent=1) + "\n")
        return 0
    if not names:
        sys.stdout.write("nothing was decided yet\n")
    for name in names:
        standing = ledger.standing(name)
        sys.stdout.write(f"{name}: champion {_holder(standing.champion)}; canary {_holder(standing.canary)}\n")
        if options.model:
            sys.stdout.write("".join(f"{line}\n" for line in _table(ledger.history(name))))
    return 0


def _rollback(ledger: Ledger, options: argparse.Namespace) -> int:
    from training.registry.follow import follow  # MLflow: two seconds that showing needs not

    history, standing = ledger.history(options.model), ledger.standing(options.model)
    if not options.yes and sys.stdin.isatty():
        line = champions(history)
        target = find_version(history, options.to, options.model) if options.to else line[-2] if len(line) > 1 else None
        answer = input(f"{options.model}: champion {_holder(standing.champion)} -> {_holder(target)}. Go on? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            sys.stdout.write("nothing was changed\n")
            return 0
    kept = roll_back(ledger, options.model, by=options.by or _user(), reason=options.reason, to=options.to)
    sys.stdout.write(f"{options.model}: champion is version {_named(kept.version, kept.semantic_version)}; the ledger has it\n")
    follow(ledger, options.model)
    sys.stdout.write("MLflow's aliases and tags say so too\n")
    return 0


def _check(ledger: Ledger, options: argparse.Namespace) -> int:
    from training.registry.follow import differences, follow

    found = 0
    for name in [options.model] if options.model else ledger.models():
        for difference in differences(ledger, name):
            found += 1
            sys.stdout.write(f"{difference}\n")
        if options.repair:
            follow(ledger, name)
    if not found:
        sys.stdout.write("MLflow and the ledger agree\n")
    elif options.repair:
        sys.stdout.write(f"{found} differences, set right\n")
    return 1 if found and not options.repair else 0


_COMMANDS: Final[Mapping[str, Callable[[Ledger, argparse.Namespace], int]]] = {"show": _show, "rollback": _rollback, "check": _check}


def _table(history: Sequence[Entry]) -> list[str]:
    rows = [("decided", "version", "outcome", "what moved", "by", "why")]
    for entry in history:
        words = "; ".join(f"{'' if reason['passed'] else 'NOT '}{reason['words']}" for reason in entry.reasons)
        named = _named(entry.version, entry.semantic_version)
        rows.append((f"{entry.decided_at:%Y-%m-%d %H:%M}", named, entry.outcome, entry.action, entry.decided_by, words))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]) for row in rows]


def _holder(holder: Holder | None) -> str:
    if holder is None:
        return "none"
    since = f", since {holder.since}" if holder.since else ""
    return f"version {_named(holder.version, holder.semantic_version)}, as of {holder.as_of}, weights {holder.weights_digest[:12]}{since}"


def _named(version: str, semantic: str) -> str:
    return f"{version} ({semantic})" if semantic else version


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def _plain(value: object) -> Any:
    if isinstance(value, Standing | Entry | Holder) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return dataclasses.asdict(value)
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
