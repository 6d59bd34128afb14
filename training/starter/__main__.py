"""`python -m training.starter`."""

import sys

from training.starter.command import main

if __name__ == "__main__":
    sys.exit(main())
