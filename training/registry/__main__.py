"""What MLflow says otherwise than the ledger.

    python -m training.registry check [MODEL] [--repair]

Exit codes: 0 done; 1 there are differences that it did not set right; 2 the command line is wrong; 74 database or MLflow do not answer;
77 there is no such model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from training.command_line import exit_code_of
from training.errors import DeniedError, shown
from training.registry.ledger.ledger import Ledger
from training.store import installed_store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.registry", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["check"], help="compare MLflow with the ledger")
    parser.add_argument("model", nargs="?", help="name of a model; absent: all")
    parser.add_argument("--repair", action="store_true", help="set MLflow right")
    options = parser.parse_args(arguments)
    return exit_code_of(lambda: _check(Ledger(), options))


def _check(ledger: Ledger, options: argparse.Namespace) -> int:
    names = _names(ledger, options.model)
    from training.registry.mlflow.mirror import differences, mirror
    from training.registry.mlflow.repair import check_answers

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


if __name__ == "__main__":
    sys.exit(main())
