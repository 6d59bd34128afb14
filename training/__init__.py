"""What happens inside a stage. Knows nothing of Airflow or Kubernetes."""

import importlib.util
import sys

# Python sets argv[0] to "-m" while it looks for the module of `python -m training.…`, and so only for a command, never for an import. What
# follows would end in a traceback where the interpreter is not the installation's.
# Many a Python has some of the packages: pydantic and PyYAML are in most. All of these are in every image of a stage.
if sys.argv[:1] == ["-m"]:
    _PACKAGES = ("pydantic", "yaml", "croniter", "duckdb", "obstore", "pyarrow", "sqlalchemy")
    if _missing := [name for name in _PACKAGES if importlib.util.find_spec(name) is None]:
        sys.exit(
            f"error: [python.packages] {sys.executable} has no {', '.join(_missing)}, so it is not this installation's Python "
            '(run `eval "$(make env)"` first, or .venv/bin/python -m …; `make install` makes .venv)'
        )
