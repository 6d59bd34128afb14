"""Stages with users' classes and metrics, of studies and of canaries, each in its own process: the closure has all that they use.

The nightly stages of both families are held to theirs in `tests/rest/unit/training/stages/test_heavy_imports.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests import training_bench
from tests.unit.training.code.named_work import run_process
from tests.unit.training.code.test_closure import write
from tests.unit.training.stages import evaluate_bench
from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench
from tests.unit.training.tuning import study_bench
from tests.unit.training.tuning.study_bench import StudyBench
from training.contracts import ExitCode
from training.runtime import runner
from training.runtime.provenance import CHECKOUT

pytestmark = pytest.mark.slow

METRICS = "import numpy as np\ndef margin(labels, scores, groups):\n    return float(np.mean(np.where(labels > 0, scores, -scores)))\n"
OWN = {"model: boosted_trees": "model: shop_models.logistic:Logistic", ", settings: {max_depth: 3}": ", batch_size: 500"}
METRIC = {"primary: auc}": "primary: auc, metrics: {margin: shop_models.metrics:margin}}"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("own")
    example = CHECKOUT / "docs/examples/cancelled_orders/shop_models"
    write(
        folder / "packages/shop_models",
        {"__init__.py": "", "metrics.py": METRICS, "logistic.py": (example / "logistic.py").read_text("utf-8")},
    )
    environment = {
        "NIGHTSHIFT_MODEL_PACKAGES": "shop_models",
        "NIGHTSHIFT_MODEL_PATH": str(folder / "packages"),
        "PYTHONPATH": str(folder / "packages"),
        "NIGHTSHIFT_DATABASE": f"sqlite:///{folder}/nightshift.db",
        "NIGHTSHIFT_HOME": str(folder),
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder / "packages"))
        made = EvaluateBench(folder / "orders", "binary", text=SPEC)
        trees = made.train(work="trees")

        def run(work: Any, uri: str, **_options: Any) -> ExitCode:
            return run_process(work, uri, environment, folder)

        for module in (evaluate_bench, training_bench, study_bench):
            patch.setattr(module, "run", run)
        yield made, trees, folder


def test_a_users_class_and_metric_and_models_of_two_families_stay_within_their_code(bench: Any) -> None:
    made, trees, _ = bench
    own = made.train(OWN, work="own")
    _, record = made.evaluate(own, {**OWN, **METRIC}, work="own", champion=made.seat(trees, "1"), canary=None)
    assert record["baseline"] == "champion", "both models were loaded"
    assert "margin" in record["metrics"]
    seats = {"canary": made.seat(own, "2"), "champion": made.seat(trees, "1")}
    made.spec = made.spec_of(METRIC)
    assert made.stage("canary", {"dataset": made.dataset_uri}, seats, work="canary").scalars["rows"] > 0


def test_a_study_stays_within_its_code(bench: Any) -> None:
    _, _, folder = bench
    with pytest.MonkeyPatch.context() as patch:
        # The dataset is made in this process: its stages are not under test.
        patch.setattr(training_bench, "run", runner.run)
        study = StudyBench(folder / "study")
    spec = study.spec(trials=1, objective="ndcg@10")
    assert study.search(spec, "one") == [0]
    assert study.tune(spec, "one").reports["tuning"]
