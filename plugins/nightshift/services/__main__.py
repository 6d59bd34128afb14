"""Alias of an earlier release: `python -m devstack`. A supervisor that was started before an update is stopped by it."""

import sys

from devstack.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
