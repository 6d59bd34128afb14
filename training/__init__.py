"""What happens inside a stage. Knows nothing of Airflow or Kubernetes."""

import importlib.util
import sys

# Python sets argv[0] to "-m" while it looks for the module of `python -m training.…`, and so only for a command, never for an import. What
# follows would end in a traceback where the interpreter is not the installation's.
if sys.argv[:1] == ["-m"] and importlib.util.find_spec("pydantic") is None:
    sys.exit(
        f"error: [python.packages] {sys.executable} has no pydantic, so it is not this installation's Python "
        '(run `eval "$(make env)"` first, or .venv/bin/python -m …; `make install` makes .venv)'
    )
