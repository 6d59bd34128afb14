"""Checks pipelines' files before Airflow sees them.

    python -m training.spec.check FILE...

Exit code 0, or 64 with every problem of every file, and with every name that two files share. A key without effect is a warning: it is
printed and changes no exit code.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from training.code.carried import own_class_problems
from training.contracts import ExitCode
from training.errors import SpecError, spec_error
from training.spec.descriptors.families import library_violations, own_packages
from training.spec.reader.loader import CheckedSpec, check_file
from training.spec.reader.problems import problem_at
from training.spec.reader.yaml import read_document
from training.spec.rules.rule_problems import Violation
from training.spec.sql_check import sql_violations

logger = logging.getLogger("training.spec.check")


def check_files(paths: Iterable[str]) -> tuple[dict[str, CheckedSpec], list[SpecError]]:
    """Return the specs of the valid files by path, and what is wrong with the others; of two files with one name, both are wrong."""
    specs: dict[str, CheckedSpec] = {}
    errors: list[SpecError] = []
    owners: dict[str, list[str]] = {}
    for path in sorted(set(paths)):
        # The same file name in two folders is one pipeline twice: the name is the DAG's id.
        owners.setdefault(Path(path).stem, []).append(path)
        try:
            specs[path] = _checked(path)
        except SpecError as err:
            errors.append(err)
    for name, files in owners.items():
        for path in files if len(files) > 1 else []:
            others = ", ".join(other for other in files if other != path)
            errors.append(
                spec_error(path, "name.clash", f"{others} is the pipeline {name!r} too", hint="give one another name", field="name")
            )
            specs.pop(path, None)
    return specs, errors


def _checked(path: str) -> CheckedSpec:
    """Return a valid file's spec.

    A user's class must be one that registered models can carry, the family's library must take its settings, and DuckDB its SQL.
    Not rules of the spec: DAG files are parsed every few seconds, and this reads the text of all that the class imports.
    """
    found = check_file(path)
    of_class = own_class_problems(found.spec.train.model)
    wrong = [Violation(("train", "model"), problem.code, problem.message, problem.hint) for problem in of_class]
    wrong += [*library_violations(found.spec), *sql_violations(found.spec)]
    if wrong:
        document = read_document(Path(path).read_bytes(), path)
        raise SpecError(path, [problem_at(document, each.path, each.code, each.message, hint=each.hint) for each in wrong])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the files; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.spec.check", description="Checks pipelines' YAML files.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    return report(*check_files(parser.parse_args(arguments).files))


def report(specs: Mapping[str, CheckedSpec], errors: Sequence[SpecError]) -> int:
    """Write down which files are sound, with their warnings, and what is wrong with the others; return the exit code."""
    # A look-up of all names logs the entry points that cannot be used: a spec that names a built-in one instead is sound.
    own_packages()
    for path, (spec, warnings) in specs.items():
        logger.info("%s: %s is sound", path, spec.name)
        for warning in warnings:
            logger.warning("warning: %s", warning.render(path))
    for error in errors:
        logger.error("%s", error)
    return int(ExitCode.BAD_SPEC if errors else ExitCode.DONE)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
