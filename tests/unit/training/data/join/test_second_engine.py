"""The seam `Engine`: another engine is one class, and makes the same dataset, byte for byte."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.golden.synthetic_flights import write_flights
from tests.unit.training.stages.test_prepare import load, run
from tests.unit.training.stages.test_windows import CHANGES as WINDOWS
from training.data.dataset.frames import pandas_rows
from training.data.features.encoders import EncoderSettings
from training.data.features.target_encoding import TargetRows
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.contract import LABEL, JoinedTable, MainTable, RowChecks
from training.data.join.derived import DerivedColumn
from training.data.join.engines.interface import Frame, Progress
from training.data.join.engines.scratch_frame import ScratchFrame, fit_by_batch, write_rows
from training.data.join.windows import (
    AT,
    DECIDED,
    MICROSECOND,
    ROW,
    Block,
    WindowColumn,
    known_name,
    value_name,
    where_name,
    window_values,
)
from training.errors import DataError
from training.stages import prepare


class PandasEngine:
    """Joins in memory: finds the row of each feature table that belongs to a row, and takes it."""

    joins = 0

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder

    def join(self, main: MainTable, features: Sequence[JoinedTable], windows: Sequence[WindowColumn] = (), *, as_of: datetime) -> Frame:
        type(self).joins += 1
        rows = pa.concat_tables(pq.ParquetFile(path).read() for path in main.paths).select(list(main.columns))
        frame = rows.to_pandas()
        if main.label_known_at is not None:
            known = (frame[main.label_known_at] <= as_of).to_numpy()
            rows, frame = rows.filter(pa.array(known)), frame[known].reset_index(drop=True)
        order = frame.sort_values([main.event_time, *main.key], kind="stable").index.to_numpy()
        rows, frame = rows.take(pa.array(order)), frame.iloc[order].reset_index(drop=True)
        for table in features:
            facts = pa.concat_tables(pq.ParquetFile(path).read() for path in table.paths)
            found = pa.array(self._fact_of_each_row(frame, main, table, facts.to_pandas()), from_pandas=True).cast(pa.int64())
            for name, new in table.columns.items():
                rows = rows.append_column(new, facts[name].take(found))
            if table.event_time is not None:
                rows = rows.append_column(table.fact_time, facts[table.event_time].take(found))
        for window in windows:
            rows = rows.append_column(window.name, self._window(frame, main, window, features))
        label = frame.eval(f"{main.label_column} {main.label_rule}").to_numpy().astype(np.float64)
        rows = rows.append_column(LABEL, pa.array(label))
        checks = RowChecks(main, features)
        checked = checks.checked(rows)
        checks.finish()
        path = self._folder / "pandas.arrow"
        return ScratchFrame(path=path, schema=checked.schema, num_rows=write_rows(path, checked.schema, iter([checked])))

    def fit(
        self, frame: Frame, training: NDArray[np.bool_], *, derived: Sequence[DerivedColumn], features: Sequence[FeaturePlan]
    ) -> FittedTransforms:
        return fit_by_batch(frame, training, self._folder, derived=derived, features=features)

    @staticmethod
    def _window(frame: pd.DataFrame, main: MainTable, window: WindowColumn, features: Sequence[JoinedTable]) -> pa.ChunkedArray:
        """Sort rows by key and time, as any engine can; the values are `window_values`'s."""
        table = next((table for table in features if table.name == window.table), None)
        decisions = pd.DataFrame({ROW: np.arange(len(frame)), DECIDED: _us(frame[main.event_time]) - main.decision_lead // MICROSECOND})
        ours, theirs = list(window.by), list(window.by.values())
        if table is None:
            both = decisions.assign(**{AT: _us(frame[main.event_time])}, **frame[ours])
            source = frame
        else:
            source = pa.concat_tables(pq.ParquetFile(path).read() for path in table.paths).to_pandas()
            facts = pd.DataFrame({AT: _us(source[table.event_time])}).assign(**source[theirs].set_axis(ours, axis=1))
            both = pd.concat([facts, decisions.assign(**frame[ours])], ignore_index=True)
        columns = {value_name(window.column): source[window.column]} if window.column else {}
        columns |= {known_name(name): _us(source[name]) for name in window.known_at}
        columns |= {where_name(window.where): source.eval(window.where)} if window.where else {}
        both = both.assign(**{name: pd.Series(values).reindex(both.index) for name, values in columns.items()})
        both = both.dropna(subset=ours).assign(time=lambda rows: rows[AT].fillna(rows[DECIDED]) if table else rows[AT])
        both = both.sort_values([*ours, "time"], kind="stable")
        integers = {name: pd.array(both[name], dtype="Int64") for name in (ROW, AT, DECIDED) if name in both}
        cells = pa.Table.from_pandas(both.drop(columns=[*ours, "time"]).assign(**integers), preserve_index=False)
        code = both.groupby(ours, sort=True).ngroup().to_numpy().astype(np.int64)
        found = window_values(Block(rows=cells, code=code, lead=main.decision_lead, is_own=table is None), [window])
        values = dict(zip(found[ROW].to_pylist(), found[window.name].to_pylist(), strict=True))
        kind = found.schema.field(window.name).type
        return pa.chunked_array([pa.array([values.get(row, 0 if window.is_count else None) for row in range(len(frame))], kind)])

    @staticmethod
    def _fact_of_each_row(frame: pd.DataFrame, main: MainTable, table: JoinedTable, facts: pd.DataFrame) -> NDArray[np.float64]:
        """Return the number of the fact, NaN without one."""
        facts = facts.assign(fact=np.arange(len(facts), dtype=np.float64))
        if table.event_time is None:
            keys = facts[[*table.on.values(), "fact"]].dropna()
            found = frame.merge(keys, how="left", left_on=list(table.on), right_on=list(table.on.values()), suffixes=("", " of fact"))
            return found["fact"].to_numpy()
        decided = frame.assign(decided=frame[main.event_time] - main.decision_lead - table.available_after, row=np.arange(len(frame)))
        found = pd.merge_asof(
            decided.sort_values("decided"),
            facts[[*table.on.values(), table.event_time, "fact"]].sort_values(table.event_time),
            left_on="decided",
            right_on=table.event_time,
            left_by=list(table.on),
            right_by=list(table.on.values()),
            suffixes=("", " of fact"),
        ).sort_values("row")
        if table.max_age is not None:
            oldest = found[main.event_time] - main.decision_lead - table.max_age
            found.loc[~(found[table.event_time] >= oldest), "fact"] = np.nan
        return found["fact"].to_numpy()


def _us(times: pd.Series) -> NDArray[np.int64]:
    return times.dt.tz_convert(None).to_numpy().astype("datetime64[us]").astype(np.int64)


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights") / "source"
    write_flights(folder, date(2013, 3, 11), 52)
    return folder


@pytest.mark.parametrize("changes", [{}, WINDOWS], ids=["joins", "joins and windows"])
def test_another_engine_makes_the_same_dataset(
    flights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    spec, as_of = load("flight_delay", {"FLIGHTS_URI": flights.as_uri()}, changes), datetime(2013, 5, 1, 6, tzinfo=UTC)
    monkeypatch.setattr(PandasEngine, "joins", 0)
    (tmp_path / "a").mkdir()
    expected = run(tmp_path / "a", spec, as_of)

    monkeypatch.setattr(prepare, "DuckDBEngine", PandasEngine)
    (tmp_path / "b").mkdir()
    found = run(tmp_path / "b", spec, as_of)

    assert PandasEngine.joins == 1
    assert found.outcome.scalars == expected.outcome.scalars
    assert {name: entry.digest for name, entry in found.manifest.files.items()} == {
        name: entry.digest for name, entry in expected.manifest.files.items()
    }
    assert found.outcome.digest == expected.outcome.digest


def main_table() -> MainTable:
    return MainTable(
        name="rows", paths=[], columns={}, event_time="at", key=["id"], decision_lead=timedelta(), label_column="label", label_is_text=False
    )


def batch(ids: Sequence[int], at: Sequence[int], label: Sequence[float | None]) -> pa.Table:
    times = pa.array(at, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"at": times, "id": pa.array(ids, pa.int64()), LABEL: pa.array(label, pa.float64())})


def test_a_key_that_two_batches_have_is_refused() -> None:
    checks = RowChecks(main_table(), [])
    checks.checked(batch([1, 2], [5, 6], [0, 1]))
    checks.checked(batch([], [], []))
    checks.checked(batch([2, 3], [6, 7], [0, 1]))
    with pytest.raises(DataError, match="1 of 4 rows repeat the key of another: id=2") as caught:
        checks.finish()
    assert caught.value.code == "data.duplicate_key"


def test_rows_without_a_label_are_counted_over_all_batches_and_the_first_five_named() -> None:
    checks = RowChecks(main_table(), [])
    checks.checked(batch([1, 2, 3], [1, 2, 3], [None, 0, None]))
    checks.checked(batch([4, 5, 6, 7, 8], [4, 5, 6, 7, 8], [None] * 5))
    with pytest.raises(DataError) as caught:
        checks.finish()
    assert caught.value.message == "label 'label': 7 of 8 rows have none, limit 0: id=1; id=3; id=4; id=5; id=6"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.join.engines.scratch_frame.BATCH_ROWS", 3)


def scratch(folder: Path, **columns: Any) -> ScratchFrame:
    table = pa.table({**columns, LABEL: pa.array(np.arange(len(next(iter(columns.values()))), dtype=np.float64))})
    path = folder / "rows.arrow"
    return ScratchFrame(path=path, schema=table.schema, num_rows=write_rows(path, table.schema, iter([table])))


@pytest.mark.usefixtures("small_batches")
def test_batches_of_a_filtered_frame_with_other_labels_are_full_and_in_order(tmp_path: Path) -> None:
    frame = scratch(tmp_path, x=list(range(10)))
    kept = np.arange(10) % 4 != 0
    once = frame.filtered(kept)
    again = once.with_label(np.arange(100, 107, dtype=np.float64)).filtered(np.arange(7) != 2)

    batches = list(again.batches())

    assert [rows.num_rows for rows in batches] == [3, 3]
    table = pa.concat_tables(batches)
    assert table["x"].to_pylist() == again.column("x").to_pylist() == [1, 2, 5, 6, 7, 9]
    assert table[LABEL].to_pylist() == again.column(LABEL).to_pylist() == [100, 101, 103, 104, 105, 106]
    assert (once.num_rows, again.num_rows) == (7, 6)


def derived_of(frame: ScratchFrame) -> Iterator[pd.DataFrame]:
    return (pandas_rows(rows, frame.nullable) for rows in frame.batches())


@pytest.mark.usefixtures("small_batches")
def test_batches_have_the_types_of_the_whole_frame(tmp_path: Path) -> None:
    frame = scratch(
        tmp_path,
        whole=pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        gaps=pa.array([1, 2, 3, 4, None, 6], pa.int8()),
        flags=pa.array([True, False, True, None, None, True]),
        text=pa.array([None, None, None, "a", "b", "c"]),
    )
    whole = pd.read_feather(frame.path)

    for rows in derived_of(frame):
        assert rows.dtypes.to_dict() == whole.dtypes.to_dict()
    pd.testing.assert_frame_equal(pd.concat(derived_of(frame), ignore_index=True), whole)


@pytest.mark.usefixtures("small_batches")
def test_fitting_by_batch_is_fitting_on_the_training_rows(tmp_path: Path) -> None:
    frame = scratch(
        tmp_path,
        number=pa.array([4, None, 1, 9, 25, 7, 8, None], pa.int32()),
        text=pa.array(["b", "a", None, "b", "c", "c", "c", "d"]),
    )
    training = np.array([1, 1, 1, 0, 1, 0, 0, 0], dtype=bool)
    derived = [DerivedColumn(name="half", type="double", sql="number // 2")]
    features = [
        FeaturePlan(name="number", settings=EncoderSettings(kind="standard")),
        FeaturePlan(name="half", settings=EncoderSettings(kind="number")),
        FeaturePlan(name="text", settings=EncoderSettings(kind="category")),
    ]

    found = fit_by_batch(frame, training, tmp_path, derived=derived, features=features)

    rows = pd.read_feather(frame.path).drop(columns=LABEL)[training]
    plan = FittedTransforms.planned(["number", "text"], derived=derived, features=features, types={"number": "int32"})
    halves = plan.derive(rows).to_pandas()
    assert halves["half"].dropna().tolist() == [2.0, 0.0, 12.0]
    assert found.to_json() == plan.fitted(features, [{**rows, **halves}]).to_json()


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("limit_bytes", [2**20, 100, 0])
def test_a_frame_has_the_same_rows_in_memory_and_on_disk(limit_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.data.join.engines.scratch_frame.MEMORY_BYTES", limit_bytes)
    table = pa.table({"x": list(range(10)), LABEL: pa.array(np.arange(10, dtype=np.float64))})
    path = tmp_path / "rows.arrow"

    frame = ScratchFrame.of_batches(path, table.schema, iter([table.slice(0, 4), table.slice(4, 4), table.slice(8)]))

    assert path.exists() == (table.nbytes > limit_bytes)
    assert frame.num_rows == 10
    assert frame.column("x").to_pylist() == list(range(10))
    assert [rows.num_rows for rows in frame.batches()] == [3, 3, 3, 1]
    assert pa.concat_tables(frame.batches()).equals(table)
    odd = frame.filtered(np.arange(10) % 2 == 1)
    assert pa.concat_tables(odd.batches())["x"].to_pylist() == odd.column("x").to_pylist() == [1, 3, 5, 7, 9]


def test_a_frame_on_disk_is_read_in_the_memory_of_a_few_batches(tmp_path: Path) -> None:
    rows = 1 << 14
    table = pa.table({f"x{number}": np.arange(rows) * 1.5 for number in range(16)})
    path, num_batches = tmp_path / "rows.arrow", 24
    num_rows = write_rows(path, table.schema, itertools.repeat(table, num_batches))
    frame = ScratchFrame(path=path, schema=table.schema, num_rows=num_rows)
    before = pa.total_allocated_bytes()

    most = max(pa.total_allocated_bytes() - before for _batch in frame.batches())

    assert most < num_batches * table.nbytes / 2


LARGE = 2**53


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["category", "hash", "target_encode"])
def test_integers_from_2_53_beside_a_missing_one_are_told_apart_in_training_and_in_serving(kind: str, tmp_path: Path) -> None:
    ids = [LARGE, LARGE + 1, LARGE, LARGE + 1, None, LARGE + 2, 7]
    frame = scratch(tmp_path, id=pa.array(ids, pa.int64()))
    training = np.array([1, 1, 1, 1, 0, 0, 1], dtype=bool)
    target = TargetRows(label=np.array([0, 1, 0, 1, 1], dtype=np.float64), numbers=np.arange(5, dtype=np.int32))
    plans = [FeaturePlan(name="id", settings=EncoderSettings(kind=kind), target=target if kind == "target_encode" else None)]

    found = fit_by_batch(frame, training, tmp_path, derived=[], features=plans)

    def cells(rows: pd.DataFrame) -> list[float]:
        matrix = found.apply(rows, serving=True)
        return (matrix.floats if matrix.num_floats else matrix.ints)[:, 0].tolist()

    of_frame = [cell for rows in frame.batches() for cell in cells(pandas_rows(rows, frame.nullable))]
    assert of_frame[:2] == of_frame[2:4]
    assert len(set(of_frame[:2])) == 2
    if kind == "hash":
        assert len({*of_frame[:2], of_frame[5], of_frame[6]}) == 4
    else:
        assert of_frame[4] == of_frame[5] == cells(pd.DataFrame({"id": [5]}))[0]
    assert cells(pd.DataFrame({"id": pd.Series(ids, dtype="Int64")})) == of_frame
    assert cells(pd.DataFrame({"id": [LARGE + 1, LARGE]})) == [of_frame[1], of_frame[0]]
    assert cells(pd.DataFrame({"id": [7.0, None]})) == [of_frame[6], of_frame[4]]
    with pytest.raises(DataError, match=r"'id': 1 values from 2\*\*53, such as 9007199254740992") as caught:
        cells(pd.DataFrame({"id": [LARGE + 1, None]}))
    assert caught.value.code == "transform.precision"


@pytest.mark.usefixtures("small_batches")
def test_an_expression_sees_integers_from_2_53_beside_a_missing_one_in_full(tmp_path: Path) -> None:
    ids = [LARGE + 1, 4, None, LARGE + 3, 5, 6]
    frame = scratch(tmp_path, id=pa.array(ids, pa.int64()))
    derived = [DerivedColumn(name="next", type="int64", sql="id + 1"), DerivedColumn(name="digit", type="int64", sql="next % 10")]
    plans = [FeaturePlan(name=name, settings=EncoderSettings(kind="category")) for name in ("next", "digit")]

    found = fit_by_batch(frame, np.ones(6, dtype=bool), tmp_path, derived=derived, features=plans)

    made = pa.concat_tables(found.derive(pandas_rows(rows, frame.nullable)) for rows in frame.batches())
    assert made["next"].to_pylist() == [LARGE + 2, 5, None, LARGE + 4, 6, 7]
    assert [feature["parameters"]["values"] for feature in json.loads(found.to_json())["features"]] == [
        [5, 6, 7, LARGE + 2, LARGE + 4],
        [6, 4, 5, 7],
    ]
    with pytest.raises(DataError, match=r"column 'id': 2 values from 2\*\*53") as caught:
        found.derive(pd.DataFrame({"id": pd.Series(ids, dtype="float64")}))
    assert caught.value.code == "transform.precision"


def test_flags_with_a_missing_one_are_categories(tmp_path: Path) -> None:
    frame = scratch(tmp_path, flag=pa.array([True, False, True, None]))
    flags = [FeaturePlan(name="flag", settings=EncoderSettings(kind="category"))]
    found = fit_by_batch(frame, np.array([1, 1, 1, 0], dtype=bool), tmp_path, derived=[], features=flags)
    rows = pd.read_feather(frame.path).drop(columns=LABEL)
    assert found.apply(rows, serving=True).ints[:, 0].tolist() == [1, 2, 1, 0]


def test_a_frame_without_rows_is_empty(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64())])
    frame = ScratchFrame.of_batches(tmp_path / "rows.arrow", schema, iter([]))
    assert (frame.num_rows, list(frame.batches()), frame.column("x").to_pylist()) == (0, [], [])
