"""The stages: each is `python -m training.stages.<name> REQUEST_URI`."""

from __future__ import annotations

import gc
import sys

if sys.argv[:1] == ["-m"] and len(sys.argv) == 2:
    # Imports make no garbage: `training.runtime.runner.main` begins to collect, after them.
    gc.disable()
    # This is the first code of such a process: the imports that follow can hang too.
    from training.errors import SpecError
    from training.process import liveness

    try:
        liveness.watch()
    except SpecError:
        # `main` calls it again, and reports the error.
        pass
