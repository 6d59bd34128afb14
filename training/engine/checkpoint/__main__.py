"""`python -m training.engine.checkpoint`: see `training.engine.checkpoint.cli`."""

import sys

from training.engine.checkpoint.cli import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
