"""Shows what retention would delete from the store, and deletes it with --delete; docs/retention.md.

    nightshift gc [--delete] [--json]

The same as `python -m training.retention`, which deletes unless it is given `--dry-run`. Airflow's DAG `housekeeping` does it on its own.

Exit codes: 0 done; 2 the command line is wrong; 64 the settings are wrong; 65 the store is damaged; 74 store or database do not answer;
75 another collection is under way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from training.command_line import example
from training.installation import STORE
from training.retention import __main__ as collection


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    given = parser().parse_args(arguments)
    options = [
        *([] if given.delete else ["--dry-run"]),
        *(["--json"] if given.json else []),
        *(["--store", given.store] if given.store else []),
    ]
    return collection.main(options)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="nightshift gc", description=__doc__, formatter_class=argparse.RawTextHelpFormatter, epilog=example("nightshift gc")
    )
    found.add_argument("--delete", action="store_true", help="delete; without it, nothing is deleted or written")
    found.add_argument("--store", default=STORE.text(), metavar="URI", help="root of the store; default: NIGHTSHIFT_STORE")
    found.add_argument("--json", action="store_true", help="bytes by kind, as JSON")
    return found


if __name__ == "__main__":
    sys.exit(main())
