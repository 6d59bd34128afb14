"""Check an installation, and say how to repair what is wrong with it.

    nightshift doctor [CHECK …] [--server URL] [--json]

Without CHECK: all. `store` writes a few small objects to the store and deletes them; the other checks write nothing, and none
migrates the database. Settings and files are those of this process; run it where the tasks run to see what they see.

Exit codes: 0 nothing is wrong; 1 something is; 2 the command line is wrong; 64 the settings are wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from nightshift.client.login import SERVER
from nightshift.client.query_command import add_options, print_json
from nightshift.doctor import cluster, machine, services, storage
from nightshift.doctor.findings import Check, Finding, Installation, bad
from nightshift.settings import Settings
from training.command_line import describe
from training.errors import NightshiftError
from training.sanitizing import for_terminal

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


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    describe(parser, _examine, "nightshift doctor store database", __doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}")
    add_options(parser, f"address of the api-server; default: {SERVER.name}")


def _examine(options: argparse.Namespace) -> int:
    place = Installation(settings=Settings.from_environment(), server=options.server)
    unknown = [name for name in options.checks if name not in CHECKS]
    if unknown:
        options.error(f"there is no check {', '.join(unknown)}")
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
        print_json(found)
    return 0 if is_good else 1


def findings_of(name: str, place: Installation) -> Iterator[Finding]:
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
