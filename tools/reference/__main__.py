"""Writes docs/reference/ from the source.

python -m tools.reference            writes the pages
python -m tools.reference --check    exit code 1 if a page is not current
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.reference import commands, environment, errors, spec

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[Path], str]]] = {
    "spec.md": spec.page,
    "placement.md": spec.placement_page,
    "environment.md": environment.page,
    "errors.md": errors.page,
    "commands.md": commands.page,
}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description="Writes docs/reference/ from the source.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is not current")
    options = parser.parse_args(arguments)
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page(ROOT)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if options.check and stale:
        print(f"docs/reference is not current ({', '.join(stale)}): run `make reference`", file=sys.stderr)
        return 1
    print(f"docs/reference: {'wrote ' + ', '.join(stale) if stale else 'current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
