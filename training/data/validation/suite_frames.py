"""Rows as Great Expectations' pandas gets them: with the types that the frame of all rows would have, whatever rows they are.

Numbers are widened to 64 bits: Great Expectations compares narrower ones value by value in Python.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

    from training.data.validation.suites import Expectation

INTEGERS = ("int8", "int16", "int32", "int64")


def frame_of(rows: pa.Table, types: Mapping[str, str], with_nulls: Collection[str]) -> pd.DataFrame:
    """Return some rows of a table.

    Args:
        types: column to the type that the YAML names.
        with_nulls: columns with a null in some row of the table: their integers are floats, their truth values objects.
    """
    frame: pd.DataFrame = rows.to_pandas()
    wanted: dict[str, str] = {}
    for name in frame.columns:
        kind = types[name]
        if kind in INTEGERS:
            wanted[name] = "float64" if name in with_nulls else "int64"
        elif kind in ("float", "double"):
            wanted[name] = "float64"
        elif kind == "boolean" and name in with_nulls:
            wanted[name] = "object"
    return frame.astype(wanted)


def widened(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of all rows with 64-bit numbers."""
    kinds = {"float32": "float64", "int8": "int64", "int16": "int64", "int32": "int64"}
    return frame.astype({name: kinds[str(dtype)] for name, dtype in frame.dtypes.items() if str(dtype) in kinds})


def judged_as(expectations: Sequence[Expectation], narrow: Collection[str]) -> list[Expectation]:
    """Return expectations that judge widened numbers as they would have judged the narrow ones.

    A bound of a 32-bit column is compared as the 32-bit number that it is nearest to: 0.01 is met by a stored 0.01.

    Args:
        narrow: the columns of type `float`.
    """
    judged: list[Expectation] = []
    for expectation in expectations:
        arguments: dict[str, Any] = dict(expectation.get("kwargs", {}))
        if arguments.get("column") in narrow:
            bounds = {name: arguments.get(name) for name in ("min_value", "max_value")}
            arguments |= {name: float(np.float32(bound)) for name, bound in bounds.items() if isinstance(bound, int | float)}
        judged.append({**expectation, "kwargs": arguments})
    return judged
