"""`python -m training.starter`: see `training.starter.command`."""

import sys

from training.starter.command import main, parser

__all__ = ["main", "parser"]

if __name__ == "__main__":
    sys.exit(main())
