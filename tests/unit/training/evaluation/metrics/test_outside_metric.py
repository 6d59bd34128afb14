"""A metric that a distribution outside of this repository adds: two files, and an entry point."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scored import compare, metric_value, score_metrics
from tests.unit.training.code.named_work import run_process
from tests.unit.training.installed_distribution import installed
from tests.unit.training.stages import evaluate_bench
from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.errors import SpecError
from training.evaluation.metrics.metric import Metric
from training.evaluation.metrics.registry import metric_of
from training.spec.descriptors.metrics import DESCRIPTORS, MetricDescriptor, descriptor_of_metric, is_lower_better, is_metric, metrics_of
from training.spec.registry import installed as installed_names

METRIC = """
from training.spec.descriptors.metrics import MetricDescriptor

DESCRIPTOR = MetricDescriptor(tasks=("binary",), lower_is_better=True)
"""
MODULE = """
import numpy as np

from training.evaluation.metrics.metric import Metric


class Hinge(Metric):
    def unit_values(self, rows):
        return np.maximum(0.0, 1.0 - (2 * rows.labels - 1) * (2 * rows.scores - 1))

    def value(self, rows):
        return float(self.unit_values(rows).mean())


METRIC = Hinge()
"""
FILES = {"acme_hinge/metric.py": METRIC, "acme_hinge/module.py": MODULE}
HINGE = {"primary: auc}": "primary: hinge, maximum: {hinge: 0.95}, slices: [country]}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    caches: list[Any] = [installed_names, metric_of]
    folder, points = tmp_path_factory.mktemp("site"), {"hinge": "acme_hinge"}
    with installed(folder, "acme_hinge", group="nightshift.metrics", points=points, files=FILES, caches=caches):
        yield folder


@pytest.mark.usefixtures("site")
def test_a_metric_of_two_files_has_value_direction_and_interval() -> None:
    assert len(FILES) == 2, "what docs/extending.md says that a metric takes"
    assert is_metric("binary", "hinge")
    assert not is_metric("regression", "hinge")
    assert is_lower_better("hinge")
    rng = np.random.default_rng(0)
    labels = (rng.random(400) < 0.5).astype(float)
    good, bad = (np.clip(share * labels + (1 - share) * rng.random(400), 0, 1) for share in (0.8, 0.2))
    found = compare("hinge", labels, good, bad, None, confidence=0.95, seed=1)
    assert found.gain == pytest.approx(metric_value("hinge", labels, bad, None) - metric_value("hinge", labels, good, None))
    assert 0 < found.low < found.gain < found.high
    assert "hinge" not in score_metrics("binary", "auc", labels, good, None), "it is computed where a spec names it"
    assert math.isnan(metric_value("hinge", labels, np.full(400, math.nan), None))


@pytest.mark.slow
def test_an_evaluation_by_it_runs_in_a_process_that_covers_its_code(site: Path, tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(site),
        "NIGHTSHIFT_HOME": str(tmp_path),
        "NIGHTSHIFT_DATABASE": f"sqlite:///{tmp_path}/nightshift.db",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    bench = EvaluateBench(tmp_path / "orders", "binary")
    trained = bench.train()
    with pytest.raises(SpecError, match=r"lower is better for hinge"):
        bench.spec_of({"primary: auc}": "primary: auc, minimum: {hinge: 0.5}}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate_bench, "run", lambda work, uri, **_more: run_process(work, uri, environment, tmp_path))
        _, record = bench.evaluate(trained, HINGE, work="hinge", champion=bench.seat(trained, "1"), canary=None)
    assert 0 < record["metrics"]["hinge"] == record["champion_metrics"]["hinge"] < 1
    assert set(record["metrics"]) == {*metrics_of("binary"), "hinge"}


def test_module_whose_metric_is_of_another_class_is_refused(tmp_path: Path) -> None:
    caches: list[Any] = [installed_names, metric_of]
    files = {"acme_wrong/metric.py": METRIC.replace("hinge", "wrong"), "acme_wrong/module.py": "METRIC = 3"}
    with (
        installed(tmp_path, "acme_wrong", group="nightshift.metrics", points={"wrong": "acme_wrong"}, files=files, caches=caches),
        pytest.raises(SpecError, match=r"metric\.not_a_metric.*wrong has no METRIC in acme_wrong\.module: its METRIC is a int"),
    ):
        metric_of("wrong")


@pytest.mark.parametrize(("name", "descriptor"), DESCRIPTORS.items())
def test_each_metric_of_the_table_has_an_implementation(name: str, descriptor: MetricDescriptor) -> None:
    reported = name if descriptor.cut is None else f"{name}@{descriptor.cut}"
    assert descriptor_of_metric(reported) is descriptor
    assert isinstance(metric_of(reported), Metric)
    assert (descriptor_of_metric(f"{name}@7") is descriptor) == (descriptor.cut is not None)
    assert (descriptor_of_metric(name) is None) == (descriptor.cut is not None)


@pytest.mark.parametrize("name", ["ndcg@0", "ndcg@1001", "ndcg@", "ndcg@x", "auc@3", "", "@3"])
def test_a_name_with_a_wrong_cut_is_no_metric(name: str) -> None:
    assert descriptor_of_metric(name) is None
    with pytest.raises(SpecError, match="there is no metric"):
        metric_of(name)
