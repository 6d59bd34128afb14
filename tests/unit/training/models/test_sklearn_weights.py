"""Weights of scikit-learn's estimators: the same bytes from every process, and nothing but allowed types in them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from functools import partial

import numpy as np
import pytest
import skops.io
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer

from training.errors import DataError
from training.models.sklearn.weights import loaded, saved
from training.runtime.provenance import CHECKOUT

TWELVE = """
import hashlib, json, sys, warnings
import numpy as np
from sklearn import calibration, ensemble, gaussian_process, linear_model, neighbors, neural_network, svm, tree
from training.models.sklearn.weights import loaded, saved
warnings.simplefilter("ignore")
rows = np.random.default_rng(0).normal(size=(60, 3))
estimators = [
    ensemble.HistGradientBoostingRegressor(max_iter=3, random_state=1),
    ensemble.HistGradientBoostingClassifier(max_iter=3, random_state=1),
    ensemble.RandomForestClassifier(3, random_state=1),
    ensemble.ExtraTreesRegressor(3, random_state=1),
    ensemble.GradientBoostingClassifier(n_estimators=3, random_state=1),
    ensemble.AdaBoostRegressor(n_estimators=3, random_state=1),
    tree.DecisionTreeClassifier(random_state=1),
    linear_model.LogisticRegression(random_state=1),
    linear_model.PoissonRegressor(),
    neighbors.KNeighborsRegressor(),
    neural_network.MLPRegressor(hidden_layer_sizes=[4], max_iter=3, random_state=1),
    calibration.CalibratedClassifierCV(svm.LinearSVC(random_state=1)),
]
digests = {}
for estimator in estimators:
    labels = np.digitize(rows[:, 0], [-0.5, 0.5]) if hasattr(estimator, "predict_proba") else np.abs(rows[:, 0])
    weights = saved(estimator.fit(rows, labels))
    assert np.array_equal(loaded(weights, ()).predict(rows), estimator.predict(rows)), estimator
    digests[type(estimator).__name__] = hashlib.sha256(weights).hexdigest()
assert "torch" not in sys.modules
print(json.dumps(digests))
"""


def test_two_processes_write_the_same_bytes_of_twelve_estimators() -> None:
    # Addresses in memory and the seed of hashes are those of a process.
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWELVE],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    first, second = (json.loads(process.communicate(timeout=300)[0]) for process in started)
    assert first == second
    assert len(first) == 12


def test_the_archive_has_no_time_and_its_members_have_numbers() -> None:
    weights = saved(LinearRegression().fit(np.eye(3), np.arange(3.0)))
    with zipfile.ZipFile(io.BytesIO(weights)) as archive:
        assert {(each.date_time, each.compress_type) for each in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)}
        assert archive.namelist() == ["schema.json", *(f"{number}.npy" for number in range(len(archive.namelist()) - 1))]


@pytest.mark.parametrize("function", [os.system, np.save, partial(np.add, 1)], ids=["os", "numpy", "partial"])
def test_a_function_in_the_weights_is_refused(function: object) -> None:
    weights = skops.io.dumps(FunctionTransformer(func=function))
    with pytest.raises(DataError, match="types that are not allowed: ") as caught:
        loaded(weights, ())
    assert caught.value.code == "estimator.untrusted"


def with_class(estimator: object, module: str, name: str) -> bytes:
    """Return weights that name another class for the estimator's own."""
    buffer, own = io.BytesIO(), type(estimator)
    with zipfile.ZipFile(io.BytesIO(saved(estimator))) as archive, zipfile.ZipFile(buffer, "w") as changed:
        for member in archive.namelist():
            data = archive.read(member).replace(f'"{own.__name__}"'.encode(), f'"{name}"'.encode())
            changed.writestr(member, data.replace(own.__module__.encode(), module.encode()))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "place", ["scipy.stats._qmc.partial", "sklearn.metrics._scorer.partial", "numpy.memmap", "sklearn.linear_model.Nothing"]
)
def test_a_class_that_a_module_imports_and_one_that_opens_files_are_refused(place: str) -> None:
    with pytest.raises(DataError, match=place) as caught:
        loaded(with_class(LinearRegression(), *place.rsplit(".", 1)), ())
    assert caught.value.code == "estimator.untrusted"


def test_the_one_class_of_scipy_that_an_estimator_has_is_loaded() -> None:
    estimator = IsotonicRegression().fit(np.arange(5.0), np.arange(5.0) ** 2)
    assert np.array_equal(loaded(saved(estimator), ()).predict([1.5, 3.0]), estimator.predict([1.5, 3.0]))


def test_an_estimator_that_has_what_no_file_holds_is_refused_by_name() -> None:
    estimator = LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
    estimator.rows_ = (row for row in [1, 2])
    with pytest.raises(DataError, match="skops cannot save LinearRegression: cannot pickle 'generator' object") as caught:
        saved(estimator)
    assert (caught.value.code, caught.value.hint) == ("estimator.unsaved", "use another estimator")
