"""Quantiles of values on disk are numpy's of all values, to the last bit."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from training.data.exact.quantiles import Quantiles

SHARES = np.linspace(0, 1, 11)[1:-1]
RNG = np.random.default_rng(7)
CASES = {
    "normal": RNG.normal(size=10_001) * 1e3,
    "many equal": RNG.integers(-3, 3, 5_000).astype(np.float64),
    "all magnitudes": np.ldexp(RNG.normal(size=4_000), RNG.integers(-1070, 1000, 4_000)),
    "two": np.array([-1.5, 2.25]),
    "one": np.array([5e-324]),
    "signs of zero": np.array([0.0, 0.0, -1e-300, 1e-300]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batches", [1, 7, 50])
@pytest.mark.parametrize("memory_bytes", [0, 900])
def test_quantiles_on_disk_are_those_of_numpy(name: str, batches: int, memory_bytes: int, tmp_path: Path) -> None:
    values = CASES[name]
    found = Quantiles(tmp_path, memory_bytes=memory_bytes)
    for part in np.array_split(values, batches):
        found.add(part)

    assert found.at(SHARES).tobytes() == np.quantile(values, SHARES).tobytes()
    assert list(tmp_path.iterdir()) == []


def test_values_stay_in_memory_up_to_the_limit(tmp_path: Path) -> None:
    found = Quantiles(tmp_path / "missing", memory_bytes=80)
    found.add(np.arange(10.0))
    with pytest.raises(FileNotFoundError):
        found.add(np.arange(1.0))


def test_a_zero_has_no_sign_whatever_the_order_of_the_rows_and_wherever_they_are(tmp_path: Path) -> None:
    values = np.array([-0.0] * 50 + [0.0] * 50)
    for folder in (None, tmp_path):
        for order in (values, values[::-1]):
            found = Quantiles(folder, memory_bytes=0)
            found.add(order)
            assert not np.signbit(found.at(SHARES)).any()


def test_memory_does_not_grow_with_the_number_of_quantiles(tmp_path: Path) -> None:
    values = RNG.normal(size=100_000)
    found = Quantiles(tmp_path, memory_bytes=0)
    for part in np.array_split(values, 5):
        found.add(part)
    shares = np.linspace(0, 1, 5_001)[1:-1]
    tracemalloc.start()
    try:
        quantiles = found.at(shares)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert quantiles.tobytes() == np.quantile(values, shares).tobytes()
    # A count for each value of 16 bits and each quantile was 5 GB.
    assert peak_bytes < 20 * 2**20
