"""What was decided about a model, and why: `python -m training.registry [MODEL] [--json]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from training.errors import NightshiftError
from training.registry.ledger import Entry, Ledger


def main() -> int:
    """Write a model's history, or all models' champions, to standard output; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.registry", description=__doc__)
    parser.add_argument("model", nargs="?", help="name of a model; absent: all champions")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments = parser.parse_args()
    try:
        ledger = Ledger()
        names = [arguments.model] if arguments.model else ledger.models()
        found = [(name, ledger.standing(name), ledger.history(name)) for name in names]
    except NightshiftError as err:
        sys.stderr.write(f"error: {err}\n")
        return int(err.exit_code)
    if arguments.json:
        shown = {name: {"champion": standing, "decisions": entries} for name, standing, entries in found}
        sys.stdout.write(json.dumps(shown, default=_plain, indent=1) + "\n")
        return 0
    for name, standing, entries in found:
        champion = (
            "none" if standing is None else f"version {standing.version}, as of {standing.as_of}, weights {standing.weights_digest[:12]}"
        )
        sys.stdout.write(f"{name}: champion {champion}\n")
        for entry in entries:
            sys.stdout.write(_line(entry) + "\n")
    return 0


def _line(entry: Entry) -> str:
    words = "; ".join(f"{'' if reason['passed'] else 'NOT '}{reason['words']}" for reason in entry.reasons)
    return f"  {entry.decided_at:%Y-%m-%d %H:%M} version {entry.version:>3} {entry.outcome:14} by {entry.decided_by}: {words}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
