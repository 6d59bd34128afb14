"""A fitted estimator as bytes by skops, which holds no code: the same bytes from every process, and read with a list of allowed types."""

from __future__ import annotations

import importlib
import io
import json
import zipfile
from collections.abc import Collection
from pathlib import PurePath
from typing import Any, Final

from training.errors import DataError, shown
from training.models.sklearn.skops_import import UnsupportedTypeException, skops_io

NAME: Final = "weights.skops"
SCHEMA: Final = "schema.json"
ALLOWED: Final = ("sklearn.", "scipy.interpolate._interpolate.interp1d")
"""How the classes begin that may be in the weights beside those that skops itself allows. numpy and scipy have some that open files."""
VALUES: Final = ("JsonNode", "TypeNode", "FunctionNode")
"""Nodes of which it makes no difference whether two are one object: that depends on what a process has interned."""


def saved(estimator: object) -> bytes:
    """Return the estimator's bytes, a zip archive.

    Raises:
        DataError: `estimator.unsaved`, skops has no format for a part of it.
    """
    try:
        return _canonical(skops_io.dumps(estimator))
    except (UnsupportedTypeException, TypeError) as err:
        message = f"skops cannot save {type(estimator).__name__}: {err}"
        raise DataError("estimator.unsaved", message, hint="use another estimator") from err


def loaded(data: bytes, trusted: Collection[str]) -> Any:
    """Return the estimator.

    Args:
        trusted: classes of other packages than `ALLOWED`, by module and name.

    Raises:
        DataError: `estimator.untrusted`, the bytes have another type.
    """
    found = skops_io.get_untrusted_types(data=data)
    allowed = [name for name in found if name in trusted or _is_allowed(name)]
    if refused := [name for name in found if name not in allowed]:
        message = f"the weights have types that are not allowed: {', '.join(shown(name) for name in refused)}"
        raise DataError("estimator.untrusted", message, hint="list them in train.settings.trusted, if you trust their distribution")
    return skops_io.loads(data, trusted=allowed)


def _is_allowed(name: str) -> bool:
    if not name.startswith(ALLOWED):
        return False
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return False
    # No function, which a fitted estimator could call, and nothing that the module imports: functools.partial, subprocess.Popen.
    return isinstance(found, type) and f"{found.__module__}.{found.__qualname__}" == name


def _canonical(data: bytes) -> bytes:
    """Return the archive with members and ids named in the order of their visit, in place of addresses in memory; without times."""
    numbers: dict[int, int] = {}
    names: dict[str, str] = {}

    def visited(node: Any) -> Any:
        if isinstance(node, list):
            return [visited(part) for part in node]
        if not isinstance(node, dict):
            return node
        found: dict[str, Any] = {}
        for key, value in node.items():
            if key == "__id__" and isinstance(value, int):
                if node["__loader__"] not in VALUES:
                    # skops takes 0 for no id.
                    found[key] = numbers.setdefault(value, len(numbers) + 1)
            elif key == "file" and isinstance(value, str):
                found[key] = names.setdefault(value, f"{len(names)}{PurePath(value).suffix}")
            else:
                found[key] = visited(value)
        return found

    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as canonical:
        schema = visited(json.loads(archive.read(SCHEMA)))
        canonical.writestr(zipfile.ZipInfo(SCHEMA), json.dumps(schema, separators=(",", ":")))
        for old, new in names.items():
            canonical.writestr(zipfile.ZipInfo(new), archive.read(old))
    return buffer.getvalue()
