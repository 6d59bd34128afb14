"""A registered model scores rows as callers have them: to the bit as the dataset's own, or not at all."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from training.data.dataset.frames import pandas_column
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.derived import DerivedColumn, raw_types
from training.errors import DataError
from training.models.caller_rows import typed_rows
from training.models.predictor import NamedPredictor, Predictor
from training.sql.arrow_types import ARROW_TYPES

LARGE: Final = 2**53
"""float64 lacks the next integer."""
INPUTS: Final = {
    "tiny": "int8",
    "count": "int32, nullable",
    "number": "int64",
    "large": "int64",
    "ratio": "float",
    "value": "double, nullable",
    "is_new": "boolean",
    "was_late": "boolean, nullable",
    "country": "string",
    "note": "string, nullable",
    "born": "date",
    "paid": "date, nullable",
    "placed": "timestamp",
    "seen": "timestamp, nullable",
}
ROWS: Final = pa.table(
    {
        "tiny": [1, -7, 100, 0],
        "count": [5, None, 7, 2**31 - 1],
        "number": [1, 2, 3, 4],
        "large": [LARGE + 1, LARGE + 2, 5, -LARGE - 1],
        "ratio": [0.5, 0.25, -3.0, 7.0],
        "value": [0.1, None, 1e30, 1234567.891],
        "is_new": [True, False, False, True],
        "was_late": [True, None, False, None],
        "country": ["DE", "Österreich", "FR", "NL"],
        "note": ["late again", None, "7", "ok"],
        "born": [dt.date(1999, 12, 31), dt.date(2026, 3, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
        "paid": [None, dt.date(2026, 3, 1), dt.date(2026, 2, 3), None],
        "placed": [
            dt.datetime(2026, 3, 29, 0, 59, 59, 999999, dt.UTC),
            *(dt.datetime(2026, 10, 25, hour, tzinfo=dt.UTC) for hour in (0, 1, 2)),
        ],
        "seen": [None, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.UTC), None],
    },
    schema=pa.schema([(name, ARROW_TYPES[declared.partition(",")[0]]) for name, declared in INPUTS.items()]),
)
FRAME: Final = ROWS.to_pandas().assign(count=[5, np.nan, 7, 2**31 - 1])
DERIVED: Final = [
    DerivedColumn(name="micros", type="int64", sql="epoch_us(placed)"),
    DerivedColumn(name="days", type="int64", sql="date_diff('day', born, paid)"),
    DerivedColumn(name="half", type="double", sql="ratio / 3 + count // 2"),
    DerivedColumn(name="either", type="boolean", sql="is_new OR was_late"),
]
KINDS: Final = {
    "large": "category",
    "count": "category",
    "country": "hash",
    "note": "category",
    "born": "datetime",
    "paid": "datetime",
    "placed": "datetime",
    "seen": "datetime",
    "micros": "hash",
}


def cells(matrix: Any) -> NDArray[np.float64]:
    """Return a model's input as scores: nothing of a row is lost on the way."""
    return matrix.cells.view(np.uint32).astype(np.float64)  # type: ignore[no-any-return]


def predictor() -> Predictor:
    plans = []
    for name in (*INPUTS, *(column.name for column in DERIVED)):
        kind = KINDS.get(name, "number")
        parts = ("day_of_year", *(("minute_of_day",) if name in ("placed", "seen") else ())) if kind == "datetime" else ()
        settings = EncoderSettings(kind=kind, parts=parts, zone="Europe/Berlin")
        plans.append(FeaturePlan(name=name, settings=settings))
    plan = FittedTransforms.planned(list(INPUTS), derived=DERIVED, features=plans, types=raw_types(ROWS.schema))
    made = plan.derive(FRAME)
    derived = {name: pandas_column(name, made[name]) for name in made.column_names}
    fitted = plan.fitted(plans, [{**{name: FRAME[name] for name in INPUTS}, **derived}])
    transforms = FittedTransforms.from_json(fitted.to_json())
    return Predictor(transforms, cells, {"inputs": INPUTS})  # type: ignore[typeddict-item]


MODEL: Final = predictor()
SCORES: Final = MODEL.score(FRAME)


def with_column(name: str, values: Any, dtype: Any = None) -> Callable[[], pd.DataFrame]:
    return lambda: FRAME.assign(**{name: pd.Series(values, index=FRAME.index, dtype=dtype)})


def texts(name: str, form: Callable[[Any], str | None]) -> list[str | None]:
    return [None if value is None else form(value) for value in ROWS[name].to_pylist()]


def in_zone(name: str, zone: str) -> Any:
    return FRAME[name].dt.tz_convert(zone)


def read_csv(**named: Any) -> Any:
    return pd.read_csv(io.StringIO(FRAME.to_csv(index=False)), **named)


def as_json() -> list[dict[str, Any]]:
    """The rows as a service sends them."""
    found: list[dict[str, Any]] = json.loads(json.dumps(ROWS.to_pylist(), default=lambda value: value.isoformat()))
    return found


def by_mlflow(body: Any) -> Any:
    """What `mlflow models serve` hands to the model."""
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    return infer_and_parse_data(json.loads(json.dumps(body)))


def csv_by_mlflow() -> Any:
    from mlflow.pyfunc.scoring_server import parse_csv_input

    return parse_csv_input(io.StringIO(FRAME.to_csv(index=False)))


def split_body() -> dict[str, Any]:
    records = as_json()
    return {"columns": list(records[0]), "data": [list(record.values()) for record in records], "index": [7, 7, 8, 9]}


BERLIN: Final = ZoneInfo("Europe/Berlin")
SCORED: Final[dict[str, Callable[[], Any]]] = {
    "the frame of the dataset": lambda: FRAME,
    "columns in another order": lambda: FRAME[FRAME.columns[::-1]],
    "more columns, one of them twice": lambda: pd.concat([FRAME, FRAME[["note", "note"]].rename(columns={"note": "label"})], axis=1),
    "index of texts": lambda: FRAME.set_axis(list("bbaa"), axis="index"),
    "index of two levels": lambda: FRAME.set_axis(pd.MultiIndex.from_tuples([(1, 2), (1, 2), (0, 0), (5, 5)]), axis="index"),
    "index of instants, descending": lambda: FRAME.set_axis(FRAME["placed"][::-1], axis="index"),
    "objects": lambda: FRAME.astype(object),
    "objects, None for what is missing": lambda: FRAME.astype(object).where(FRAME.notna(), None),
    "nullable types": lambda: FRAME.convert_dtypes(),
    "types of Arrow": lambda: ROWS.to_pandas(types_mapper=pd.ArrowDtype),
    "a table of Arrow": lambda: ROWS,
    "read_csv as it is": lambda: read_csv(),
    "read_csv with Arrow": lambda: read_csv(dtype_backend="pyarrow"),
    "read_csv with nullable types": lambda: read_csv(dtype_backend="numpy_nullable"),
    "Parquet": lambda: pd.read_parquet(io.BytesIO(FRAME.to_parquet())),
    "JSON of pandas": lambda: pd.DataFrame(
        json.loads(FRAME.to_json(orient="records", date_format="iso", date_unit="us", double_precision=15))
    ),
    "records": as_json,
    "columns by name": lambda: {name: [record[name] for record in as_json()] for name in INPUTS},
    "columns by name and place": lambda: {name: {str(n): record[name] for n, record in enumerate(as_json())} for name in INPUTS},
    "records by their id": lambda: {f"order-{n}": record for n, record in enumerate(as_json())},
    "arrays by name": lambda: {name: FRAME[name].to_numpy() for name in INPUTS},
    "an array with names": lambda: FRAME.to_records(index=False),
    "dataframe_records": lambda: by_mlflow({"dataframe_records": as_json()}),
    "dataframe_split": lambda: by_mlflow({"dataframe_split": split_body()}),
    "inputs by name": lambda: by_mlflow({"inputs": {name: [record[name] for record in as_json()] for name in INPUTS}}),
    "text/csv": csv_by_mlflow,
    "int64 for int8": with_column("tiny", [1, -7, 100, 0], "int64"),
    "whole floats for integers": with_column("number", [1.0, 2.0, 3.0, 4.0]),
    "float32 for integers": with_column("number", [1, 2, 3, 4], "float32"),
    "uint64 for int64": with_column("number", [1, 2, 3, 4], "uint64"),
    "int32 for int64": with_column("number", [1, 2, 3, 4], "int32"),
    "Int64 for int32": with_column("count", [5, None, 7, 2**31 - 1], "Int64"),
    "objects with None for int32": with_column("count", [5, None, 7, 2**31 - 1], object),
    "objects with NA for int32": with_column("count", [5, pd.NA, 7, 2**31 - 1], object),
    "integers and floats for int32": with_column("count", [5, float("nan"), 7.0, 2**31 - 1], object),
    "Decimal for int32": with_column("count", [Decimal(5), None, Decimal("7.00"), Decimal(2**31 - 1)], object),
    "Decimal for large integers": with_column("large", [Decimal(value) for value in ROWS["large"].to_pylist()], object),
    "decimals of Arrow for int64": with_column("number", [Decimal(n) for n in (1, 2, 3, 4)], pd.ArrowDtype(pa.decimal128(9, 2))),
    "numpy's integers as objects": with_column("number", [np.int64(1), np.int8(2), 3, np.uint16(4)], object),
    "categories of integers": with_column("number", [1, 2, 3, 4], "category"),
    "large integers as objects": with_column("large", ROWS["large"].to_pylist(), object),
    "float64 for float": with_column("ratio", [0.5, 0.25, -3.0, 7.0], "float64"),
    "int64 for float": lambda: FRAME.assign(ratio=[0.5, 0.25, -3, 7]),
    "Decimal for float": with_column("ratio", [Decimal("0.5"), Decimal("0.25"), Decimal(-3), Decimal("7.0")], object),
    "Decimal for double": with_column("value", [Decimal("0.1"), None, Decimal("1e30"), Decimal("1234567.891")], object),
    "Decimal with NaN for double": with_column("value", [Decimal("0.1"), Decimal("NaN"), Decimal("1e30"), Decimal("1234567.891")], object),
    "Float64": with_column("value", [0.1, None, 1e30, 1234567.891], "Float64"),
    "double of Arrow with NaN": with_column("value", [0.1, np.nan, 1e30, 1234567.891], pd.ArrowDtype(pa.float64())),
    "floats as objects": with_column("value", [0.1, None, 1e30, 1234567.891], object),
    "booleans as objects": with_column("is_new", [True, False, False, True], object),
    "booleans of numpy as objects": with_column("is_new", [np.bool_(value) for value in (1, 0, 0, 1)], object),
    "0 and 1": with_column("is_new", [1, 0, 0, 1]),
    "0.0 and 1.0": with_column("is_new", [1.0, 0.0, 0.0, 1.0]),
    "uint8 for booleans": with_column("is_new", [1, 0, 0, 1], "uint8"),
    "nullable booleans": with_column("was_late", [True, None, False, None], "boolean"),
    "booleans of Arrow": with_column("was_late", [True, None, False, None], pd.ArrowDtype(pa.bool_())),
    "0 and 1 with NaN": with_column("was_late", [1, np.nan, 0, np.nan]),
    "0 and 1 with NA": with_column("was_late", [1, None, 0, None], "Int8"),
    "0 and 1 as objects": with_column("was_late", [1, None, 0, None], object),
    "texts as objects": with_column("country", ["DE", "Österreich", "FR", "NL"], object),
    "texts of pandas": with_column("note", ["late again", None, "7", "ok"], "string"),
    "texts of Arrow": with_column("note", ["late again", None, "7", "ok"], pd.ArrowDtype(pa.string())),
    "large texts of Arrow": with_column("note", ["late again", None, "7", "ok"], pd.ArrowDtype(pa.large_string())),
    "dictionary of Arrow": with_column("note", ["late again", None, "7", "ok"], pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
    "categories": lambda: FRAME.assign(country=FRAME["country"].astype("category"), note=FRAME["note"].astype("category")),
    "days as text": lambda: FRAME.assign(born=texts("born", str), paid=texts("paid", str)),
    "days as text, the ones without first": with_column("paid", texts("paid", str), object),
    "days as text of midnight": lambda: FRAME.assign(born=[f"{day}T00:00:00.000" for day in texts("born", str)]),
    "days as text of midnight in UTC": lambda: FRAME.assign(born=[f"{day} 00:00:00+00:00" for day in texts("born", str)]),
    "days as timestamps": lambda: FRAME.assign(born=pd.to_datetime(FRAME["born"]), paid=pd.to_datetime(FRAME["paid"])),
    "days as timestamps in seconds": lambda: FRAME.assign(born=pd.to_datetime(FRAME["born"]).dt.as_unit("s")),
    "days as timestamps of a zone": lambda: FRAME.assign(born=pd.to_datetime(FRAME["born"]).dt.tz_localize(BERLIN)),
    "days as datetimes": with_column("born", [dt.datetime.combine(day, dt.time()) for day in ROWS["born"].to_pylist()], object),
    "days of Arrow": with_column("paid", ROWS["paid"].to_pylist(), pd.ArrowDtype(pa.date32())),
    "milliseconds of days of Arrow": with_column("paid", ROWS["paid"].to_pylist(), pd.ArrowDtype(pa.date64())),
    "instants in nanoseconds": lambda: FRAME.assign(placed=FRAME["placed"].dt.as_unit("ns")),
    "instants in milliseconds": lambda: FRAME.assign(seen=FRAME["seen"].dt.as_unit("ms")),
    "instants in seconds": lambda: FRAME.assign(seen=FRAME["seen"].dt.as_unit("s")),
    "instants in Berlin": lambda: FRAME.assign(placed=in_zone("placed", "Europe/Berlin"), seen=in_zone("seen", "Europe/Berlin")),
    "instants with an offset": lambda: FRAME.assign(placed=FRAME["placed"].dt.tz_convert(dt.timezone(dt.timedelta(hours=-3, minutes=-30)))),
    "instants of several zones": with_column(
        "placed", [at.astimezone(zone) for at, zone in zip(ROWS["placed"].to_pylist(), (BERLIN, dt.UTC) * 2, strict=True)], object
    ),
    "instants of Arrow": with_column("placed", ROWS["placed"].to_pylist(), pd.ArrowDtype(pa.timestamp("ns", tz="America/New_York"))),
    "timestamps as objects": lambda: FRAME.assign(placed=FRAME["placed"].astype(object)),
    "ISO text in UTC": lambda: FRAME.assign(placed=texts("placed", lambda at: at.isoformat().replace("+00:00", "Z"))),
    "ISO text with offsets": lambda: FRAME.assign(placed=texts("placed", lambda at: at.astimezone(BERLIN).isoformat())),
    "ISO text with a blank": lambda: FRAME.assign(placed=texts("placed", str)),
    "ISO text of nine digits": lambda: FRAME.assign(
        placed=[f"{at.isoformat()[:-1]}000Z" if len(at.isoformat()) == 33 else at.isoformat() for at in ROWS["placed"].to_pylist()]
    ),
    "ISO text after None": lambda: FRAME.assign(seen=texts("seen", lambda at: at.isoformat())),
    "ISO text in categories": lambda: FRAME.assign(placed=pd.Categorical(texts("placed", lambda at: at.isoformat()))),
    "ISO text of Arrow": with_column("placed", texts("placed", lambda at: at.isoformat()), pd.ArrowDtype(pa.string())),
}


@pytest.mark.parametrize("case", SCORED)
def test_rows_with_one_reading_score_to_the_bit_as_the_datasets_own(case: str) -> None:
    assert np.array_equal(MODEL.predict(SCORED[case]()), SCORES)


@pytest.mark.parametrize("number", range(len(FRAME)))
@pytest.mark.parametrize("form", ["a record", "a row of a frame", "columns of one"])
def test_one_row_scores_as_among_others(number: int, form: str) -> None:
    record = as_json()[number]
    rows = {
        "a record": record,
        "a row of a frame": FRAME.iloc[[number]],
        "columns of one": {name: [value] for name, value in record.items()},
    }
    assert np.array_equal(MODEL.predict(rows[form]), SCORES[[number]])


@pytest.mark.parametrize("rows", [[], FRAME.iloc[:0], FRAME.iloc[:0].astype(object), {name: [] for name in INPUTS}, ROWS.slice(0, 0)])
def test_no_rows_have_no_scores(rows: Any) -> None:
    assert MODEL.predict(rows).shape == SCORES[:0].shape


def test_nullable_column_that_is_not_there_is_missing_in_every_row() -> None:
    nullable = [name for name, declared in INPUTS.items() if declared.endswith("nullable")]
    missing = FRAME.assign(**{name: pd.Series([None] * 4, dtype=object) for name in nullable})
    assert np.array_equal(MODEL.predict(FRAME.drop(columns=nullable)), MODEL.predict(missing))
    assert not np.array_equal(MODEL.predict(missing), SCORES)


def test_answer_of_named_classes_keeps_the_index_of_a_frame() -> None:
    facts: Any = {"inputs": INPUTS, "classes": ["no", "yes"]}
    named = NamedPredictor(Predictor(MODEL._transforms, lambda matrix: matrix.cells[:, 0].astype(np.float64), facts))
    assert named.predict(FRAME.set_axis(list("bbaa"), axis="index")).index.tolist() == list("bbaa")
    assert named.predict(as_json()).columns.tolist() == ["no", "yes"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[3.0]], r"no names of columns.*'value' \(double, nullable\)"),
        (np.ones((2, 2)), "no names of columns"),
        ({"instances": [[3.0, 4.0]]}, r"lack 'value' \(double, nullable\), 'ratio'"),
        ({"columns": ["value"], "data": [[3.0]]}, "lack 'value'"),
        ({"other": 1}, "lack 'value'"),
        ([{}], "no names of columns"),
        ([{"Value": 3.0, "Ratio": 1.0}], r"have 'Value', and no 'value' \(double, nullable\) \(did you mean 'value'\?"),
    ],
)
def test_rows_without_a_known_column_are_refused_even_if_each_may_be_absent(rows: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        typed_rows(rows, {"value": "double, nullable", "ratio": "float, nullable"})
    assert caught.value.code == "schema.missing"


@pytest.mark.parametrize("number", [2**53, 2**60, -(2**63), 2**63])
def test_an_integer_that_a_float_has_is_read(number: int) -> None:
    for kind in ("double", "float"):
        assert typed_rows([{"value": number}], {"value": kind})["value"].tolist() == [number]


REFUSED: Final[dict[str, tuple[Callable[[], Any], str, str]]] = {
    "an array": (lambda: FRAME.to_numpy(), "schema.missing", r"no names of columns.*'tiny' \(int8\), .*give a pandas frame"),
    "a list of lists": (lambda: FRAME.to_numpy().tolist(), "schema.missing", "no names of columns"),
    "instances": (lambda: by_mlflow({"instances": [[1, 2], [3, 4]]}), "schema.missing", "no names of columns"),
    "a split without names": (lambda: by_mlflow({"dataframe_split": {"data": [[1, 2]]}}), "schema.missing", "no names of columns"),
    "a column that is needed": (
        lambda: FRAME.drop(columns=["tiny", "placed"]),
        "schema.missing",
        r"lack 'tiny' \(int8\), 'placed' \(timestamp\)",
    ),
    "a column twice": (lambda: pd.concat([FRAME, FRAME[["tiny"]]], axis=1), "schema.names", "2 columns 'tiny'"),
    "ISO text without an offset": (
        lambda: FRAME.assign(placed=["2026-03-01T10:00:00Z", "2026-03-01T10:00:00", "", ""]),
        "schema.type",
        r"'placed' takes timestamp; row 2 has '2026-03-01T10:00:00': .*an offset.*\(give instants with their offset",
    ),
    "timestamps without a zone": (lambda: FRAME.assign(placed=FRAME["placed"].dt.tz_localize(None)), "schema.type", "no offset from UTC"),
    "one datetime without a zone": (
        with_column("placed", [*ROWS["placed"].to_pylist()[:3], dt.datetime(2026, 1, 1)], object),
        "schema.type",
        "no offset",
    ),
    "a day as text for an instant": (lambda: FRAME.assign(placed="2026-03-01"), "schema.type", "row 1 has '2026-03-01': it is no instant"),
    "a day for an instant": (lambda: FRAME.assign(placed=FRAME["born"]), "schema.type", "it is no instant"),
    "epoch seconds": (with_column("placed", [1772359200] * 4), "schema.type", r"row 1 has 1772359200: a number has no unit.*unit='s'"),
    "epoch milliseconds for a nullable instant": (with_column("seen", [None, 1.7723592e12, None, None]), "schema.type", r"row 2 has 177"),
    "epoch days": (with_column("born", [20000] * 4), "schema.type", "row 1 has 20000: it is no day"),
    "nanoseconds": (
        lambda: FRAME.assign(placed=FRAME["placed"].dt.as_unit("ns") + pd.Timedelta(1, "ns")),
        "schema.type",
        r"no whole microsecond; dt\.floor",
    ),
    "nine digits that are not zeros": (lambda: FRAME.assign(placed="2026-03-01T10:00:00.123456789Z"), "schema.type", "to the microsecond"),
    "the month first, after a null": (with_column("seen", [None, "03/01/2026 10:00:00Z", None, None], object), "schema.type", "row 2"),
    "the month first of a day, after a null": (with_column("paid", [None, "03/01/2026", None, None], object), "schema.type", "no day"),
    "a time of day for a day": (lambda: FRAME.assign(born=FRAME["placed"]), "schema.type", "row 1 has .*: it has a time of day"),
    "a time of day as text for a day": (lambda: FRAME.assign(born="2026-03-01T10:00:00"), "schema.type", "no day of ISO 8601"),
    "numbers as text": (
        with_column("value", ["0.1", None, "2", "3"], object),
        "schema.type",
        r"row 1 has '0\.1': it is no number.*to_numeric",
    ),
    "integers as text": (lambda: FRAME.assign(number=["1", "2", "3", "4"]), "schema.type", "'number' takes int64; row 1 has '1'"),
    "texts among numbers": (with_column("number", [1, "2", 3, 4], object), "schema.type", "values of int, str"),
    "a fraction for an integer": (lambda: FRAME.assign(number=[1, 2, 2.5, 3]), "schema.type", r"'number' is declared as int64.*2\.5"),
    "a fraction as Decimal": (
        with_column("number", [Decimal("2.5")] * 4, object),
        "schema.type",
        r"Decimal\('2\.5'\): it is no whole number",
    ),
    "too large for its type": (lambda: FRAME.assign(tiny=300), "schema.type", "'tiny' is declared as int8.*300"),
    "large integers as float64": (lambda: FRAME.assign(large=FRAME["large"].astype(float)), "transform.precision", r"from 2\*\*53"),
    "booleans for integers": (lambda: FRAME.assign(number=FRAME["is_new"]), "schema.type", "row 1 has True: it is no number"),
    "an integer that double lacks": (
        lambda: FRAME.assign(value=[1, 2, LARGE + 1, 3]),
        "schema.type",
        "'value' takes double; row 3 has 9007199254740993: double lacks this integer; give 9007199254740992",
    ),
    "an integer that float lacks": (
        with_column("ratio", [1, None, 2**24 + 1, 3], "Int64"),
        "schema.type",
        "row 3 has 16777217: float lacks",
    ),
    "a number that float has as infinite": (
        lambda: FRAME.assign(ratio=[1.0, np.inf, 1e300, 3]),
        "schema.type",
        r"row 3 has 1e\+300: .*large",
    ),
    "a Decimal that float has as infinite": (with_column("ratio", [Decimal("1e39")] * 4, object), "schema.type", "row 1 has .*too large"),
    "2 for a boolean": (with_column("is_new", [1, 0, 2, 0]), "schema.type", "row 3 has 2: a number that is neither 0 nor 1"),
    "texts for a boolean": (lambda: FRAME.assign(is_new="true"), "schema.type", "'true': it is no truth value.*give true and false"),
    "numbers for texts": (
        lambda: FRAME.assign(country=[7, 8, 9, 10]),
        "schema.type",
        r"row 1 has 7: it is no text.*dtype=\{'country': 'str'\}",
    ),
    "bytes for texts": (with_column("country", [b"DE"] * 4, object), "schema.type", "it is no text"),
    "lists for texts": (with_column("country", [["DE"]] * 4, object), "schema.type", "it is no text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_with_two_readings_are_refused_in_words_for_the_caller(case: str) -> None:
    make, code, words = REFUSED[case]
    with pytest.raises(DataError, match=words) as caught:
        MODEL.predict(make())
    assert caught.value.code == code


def test_mlflow_answers_a_refused_request_with_400_and_the_words() -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc.scoring_server import invocations

    served = SimpleNamespace(predict=MODEL.predict, metadata=None)
    rows = [{**as_json()[0], "value": "0,1"}]
    with pytest.raises(MlflowException) as caught:
        invocations(json.dumps({"dataframe_records": rows}), "application/json", served, None)
    assert caught.value.get_http_status_code() == 400
    assert "column 'value' takes double; row 1 has '0,1': it is no number" in json.loads(caught.value.serialize_as_json())["stack_trace"]


def test_model_of_an_earlier_version_takes_rows_as_they_are() -> None:
    earlier = Predictor(MODEL._transforms, cells, {})  # type: ignore[typeddict-item]
    assert np.array_equal(earlier.predict(FRAME), SCORES)


@pytest.mark.parametrize(
    "rows",
    [
        [{"Unit Price": 2.5, "is-new": True, "Name": 3}],
        [{"price": 2.5, "is_new": True, "name": 3}],
        {"Unit Price": {"a": 2.5}, "is-new": {"a": True}, "Name": {"a": 3}},
        pd.DataFrame({"Name": [3], "price": [2.5], "is-new": [True], "Unit Price": [9.0]}),
    ],
    ids=["as in the source", "as in the YAML", "by name and index", "both"],
)
def test_columns_may_have_their_names_of_the_source(rows: Any) -> None:
    names = {"price": "Unit Price", "is_new": "is-new", "name": "Name"}
    found = typed_rows(rows, {"price": "double", "is_new": "boolean", "name": "int64"}, names)
    assert found.to_dict("list") == {"price": [2.5], "is_new": [True], "name": [3]}


def test_a_name_of_the_source_that_another_column_has_is_that_column() -> None:
    found = typed_rows([{"a": 1, "b": 2}], {"a": "int64", "b": "int64"}, {"a": "b", "b": "a"})
    assert found.to_dict("list") == {"a": [1], "b": [2]}
