"""Check an installation, and say how to repair what is wrong with it.

    nightshift doctor [CHECK …] [--server URL] [--json]

Without CHECK: all. `store` writes a few small objects to the store and deletes them; the other checks write nothing, and none
migrates the database. Settings and files are those of this process; run it where the tasks run to see what they see.

Exit codes: 0 nothing is wrong; 1 something is; 2 the command line is wrong; 64 the settings are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nightshift.client.login import add_options
from nightshift.doctor import cluster, machine, services, storage
from nightshift.doctor.findings import Check, Finding, Place, bad
from nightshift.settings import Settings
from training.command_line import example, exit_code_of
from training.errors import NightshiftError
from training.escapes import for_terminal

CHECKS: Final[Mapping[str, Check]] = {
    "disk": machine.disk,
    "files": machine.files,
    "gpu": machine.gpu,
    "store": storage.store,
    "database": storage.database,
    "pipelines": storage.pipelines,
    "backend": cluster.backend,
    "mlflow": services.mlflow,
    "airflow": services.airflow,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(lambda: _examine(options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="nightshift doctor",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift doctor store database"),
    )
    found.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    add_options(found)
    return found


def _examine(options: argparse.Namespace) -> int:
    place = Place(settings=Settings.from_environment(), server=options.server)
    unknown = [name for name in options.checks if name not in CHECKS]
    if unknown:
        parser().error(f"there is no check {', '.join(unknown)}")
    is_good, found = True, list[Finding]()
    for name in options.checks or CHECKS:
        for finding in findings_of(name, place):
            is_good = is_good and finding.is_ok
            if options.json:
                found.append(finding)
            else:
                # At once: a service that does not answer takes its time.
                sys.stdout.write(_line(finding))
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps([each.as_json() for each in found], indent=1, ensure_ascii=False) + "\n")
    return 0 if is_good else 1


def findings_of(name: str, place: Place) -> Iterator[Finding]:
    """Yield what a check finds; that it cannot look is a finding too."""
    try:
        yield from CHECKS[name](place)
    except NightshiftError as err:
        yield bad(name, f"[{err.code}] {err.message}", hint=err.hint or "docs/reference/errors.md explains the code")
    except Exception as err:  # A doctor names what he cannot examine, and goes on.
        yield bad(name, f"{type(err).__name__}: {err}", hint="this is unexpected: report it")


def _line(finding: Finding) -> str:
    head = f"{'ok' if finding.is_ok else 'WRONG':<7}{finding.check:<11}"
    return f"{head}{for_terminal(finding.message)}\n" + (f"{'':<18}-> {for_terminal(finding.hint)}\n" if finding.hint else "")


if __name__ == "__main__":
    sys.exit(main())
