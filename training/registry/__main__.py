"""`python -m training.registry`: see `training.registry.cli`."""

import sys

from training.registry.cli import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
