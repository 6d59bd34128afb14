"""What was decided about models, and why; and the way back.

    nightshift show                                              all models, their champions and canaries
    nightshift show MODEL [--json]                               every decision about one
    nightshift rollback MODEL [--to VERSION] --reason "..." [--yes]
    python -m training.registry check [MODEL] [--repair]         what MLflow says otherwise than the ledger

`python -m training.registry show` and `rollback` are the same commands, `python -m training.registry MODEL` is short for `show MODEL`.

Exit codes: 0 done, or no was answered; 1 `check` found differences that it did not set right; 2 the command line is wrong;
74 database or MLflow do not answer; 77 refused (unknown version, nothing to go back to, another decision was faster).
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

from training.command_line import example, exit_code_of
from training.errors import DeniedError, UnavailableError, shown
from training.installation import STORE, home_folder
from training.registry.decisions import VERSION_NAMES, champions, find_version, holder_of, roll_back, with_evidence
from training.registry.findings import Findings
from training.registry.history_table import history_lines
from training.registry.ledger import AliasHolder, Ledger, ModelAliases, name_of
from training.registry.retraining import retraining_lines
from training.runtime.lazy_imports import MLFLOW_DEFERRED, MLFLOW_OPTIONAL, lean_imports
from training.spec.types import free_text_fault
from training.store import Store

COMMANDS: Final = ("show", "rollback", "check")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0] not in COMMANDS and given[0] not in ("-h", "--help")):
        given.insert(0, "show")
    options = parser().parse_args(given)
    return exit_code_of(lambda: _COMMANDS[options.command](Ledger(), options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="nightshift", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True, metavar="{show,rollback,check}")
    show = commands.add_parser(
        "show",
        help="decisions, champion and canary",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example("nightshift show search_ranking"),
    )
    show.add_argument("model", nargs="?", help="name of a model; absent: a line for each")
    show.add_argument("--json", action="store_true", help="as JSON, with all evidence, nothing cut")
    back = commands.add_parser(
        "rollback",
        help="make an earlier version champion again",
        formatter_class=argparse.RawTextHelpFormatter,
        epilog=example('nightshift rollback search_ranking --reason "complaints since Monday"'),
    )
    back.add_argument("model", help="name of a model")
    back.add_argument("--to", metavar="VERSION", help=f"{VERSION_NAMES}; absent: the champion before this one")
    back.add_argument("--reason", required=True, help="for those who read the ledger a year later")
    back.add_argument("--by", default=None, help="the user who orders it (default: the user of this process)")
    back.add_argument("--yes", action="store_true", help="do not ask for confirmation; required where standard input is not a terminal")
    # For `nightshift rollback`, which has it with a server: the same line works on both sides.
    back.add_argument("--wait", action="store_true", help="with --server: end when it is done; without a server it always is")
    # `nightshift check` is another command.
    check = commands.add_parser("check", prog="python -m training.registry check", help="compare MLflow with the ledger")
    check.add_argument("model", nargs="?", help="name of a model; absent: all")
    check.add_argument("--repair", action="store_true", help="set MLflow right")
    return found


def _show(ledger: Ledger, options: argparse.Namespace) -> int:
    names = _names(ledger, options.model)
    if options.json:
        found = {name: {"standing": ledger.standing(name), "decisions": ledger.history(name)} for name in names}
        sys.stdout.write(json.dumps(found, default=_plain, indent=1, ensure_ascii=False) + "\n")
        return 0
    if not names:
        sys.stdout.write("nothing was decided yet\n")
    for name in names:
        standing = ledger.standing(name)
        sys.stdout.write(f"{name}\n")
        for alias, holder in (("champion", standing.champion), ("canary", standing.canary)):
            sys.stdout.write(f"  {alias + ':':<10}{_holder(holder)}\n")
            if holder is not None and holder.artifact_digest:
                sys.stdout.write(f"  {'':<10}load_verified digest {holder.artifact_digest}\n")
        waiting = [_named(entry.version, entry.semantic_version) for entry in ledger.open_requests(name)]
        if waiting:
            sys.stdout.write(f"  waits for an approval: version {', '.join(waiting)}\n")
        if options.model:
            lines = history_lines(ledger.outline(name), retraining=retraining_lines(ledger, name))
            sys.stdout.write("".join(f"{line}\n" for line in ["", *lines]))
    return 0


def _rollback(ledger: Ledger, options: argparse.Namespace) -> int:
    if not options.reason.strip():
        raise DeniedError("rollback.reason", "--reason is empty", hint="say why, for those who read the ledger a year later")
    if fault := free_text_fault(options.reason):
        raise DeniedError("rollback.reason", f"--reason {fault}", hint="write it without the character")
    standing = ledger.standing(options.model)
    to, expected = options.to, None
    if not options.yes:
        target = _target(ledger, options, standing)
        if target is not None:
            if not _is_agreed(f"{options.model}: champion {_holder(standing.champion)}\n  -> {_holder(target)}\nGo on? [y/N] "):
                sys.stdout.write("nothing was changed\n")
                return 0
            # What was agreed to, and nothing that came between.
            to, expected = target.weights_digest, standing.revision
    kept = roll_back(ledger, options.model, by=options.by or _user(), reason=options.reason, to=to, expected_revision=expected)
    sys.stdout.write(f"{options.model}: champion is version {name_of(kept)}; the ledger has it\n")
    with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_OPTIONAL):
        # MLflow: a second that the ledger need not wait for.
        from training.registry.mlflow_mirror import mirror
        from training.registry.repair import check_answers

    try:
        # Its client would try for four minutes.
        check_answers()
        mirror(ledger, installed_store(), options.model)
    except UnavailableError as err:
        # Not again: a second rollback would go further back.
        again = f"the rollback is recorded; to update MLflow: python -m training.registry check {options.model} --repair"
        raise UnavailableError(err.code, err.message, hint=again) from err
    lost = [finding for finding in Findings(ledger.database_url).open(options.model) if finding.kind == "missing"]
    if lost:
        raise DeniedError(
            "registry.version_missing", f"the rollback is recorded, but {lost[0].words}", hint="name another version with --to"
        )
    # Its number of now: one that MLflow had lost is registered again under another.
    place = ledger.registrations(options.model).get(kept.weights_digest)
    sys.stdout.write(f"MLflow's aliases and tags say so too: version {kept.version if place is None else place.number}\n")
    return 0


def _target(ledger: Ledger, options: argparse.Namespace, standing: ModelAliases) -> AliasHolder | None:
    """Return the version to go back to; None where `roll_back` will say why there is none."""
    if standing.champion is None:
        return None
    history = ledger.outline(options.model)
    line = champions(history)
    if options.to:
        target = find_version(ledger, history, options.to, options.model)
    elif len(line) > 1:
        target = holder_of(with_evidence(ledger, line[-2]))
    else:
        return None
    return None if target.weights_digest == standing.champion.weights_digest else target


def _is_agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise DeniedError("rollback.unconfirmed", "confirmation is impossible: standard input is not a terminal", hint="add --yes")
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")
        return False


def _check(ledger: Ledger, options: argparse.Namespace) -> int:
    names = _names(ledger, options.model)
    with lean_imports(deferred=MLFLOW_DEFERRED, absent=MLFLOW_OPTIONAL):
        from training.registry.mlflow_mirror import differences, mirror
        from training.registry.repair import check_answers

    check_answers()
    store, found, left = installed_store(), 0, 0
    for name in names:
        listed = differences(ledger, store, name)
        found += len(listed)
        sys.stdout.write("".join(f"{difference}\n" for difference in listed))
        if options.repair:
            mirror(ledger, store, name, is_ordered=True)
            # A version that cannot be registered again.
            remaining = differences(ledger, store, name)
            left += len(remaining)
            sys.stderr.write("".join(f"error: {difference}\n" for difference in remaining))
    number = f"{found} difference{'' if found == 1 else 's'}"
    if not found:
        sys.stdout.write("MLflow and the ledger agree\n")
    elif options.repair:
        sys.stdout.write(f"{number}, set right but for {left}\n" if left else f"{number}, set right\n")
    else:
        sys.stdout.write(f"{number}; --repair sets MLflow right\n")
    return 1 if left or (found and not options.repair) else 0


_COMMANDS: Final[Mapping[str, Callable[[Ledger, argparse.Namespace], int]]] = {"show": _show, "rollback": _rollback, "check": _check}


def _names(ledger: Ledger, model: str | None) -> list[str]:
    """Return the models to look at.

    Raises:
        DeniedError: `model.unknown`, nothing was ever decided about `model`.
    """
    known = ledger.models()
    if model is None:
        return known
    if model not in known:
        raise DeniedError("model.unknown", f"nothing was decided about {shown(model)}", hint=f"models: {', '.join(known) or 'none'}")
    return [model]


def installed_store() -> Store:
    """Return the installation's store."""
    return Store(STORE.text() or str(home_folder() / "store"))


def _holder(holder: AliasHolder | None) -> str:
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
