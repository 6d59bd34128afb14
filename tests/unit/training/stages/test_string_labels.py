"""Labels that are texts or booleans, from ingest to the registered model's answer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.unit.training.stages.evaluate_bench import SPEC, EvaluateBench, nobody_else, orders
from training.contracts import ExitCode, StageResult
from training.data.dataset.reader import DatasetReader
from training.registry.serving import _load_pyfunc

SIZES = np.array(["small", "medium <b>", "large"])
NUMBERS = {"binary": "cancelled: {type: int64", "multiclass": "size: {type: int64"}
POSITIVE = {"label: {column: LABEL}": 'label: {column: LABEL, positive: "yes"}'}


def text_of(task: str, kind: str) -> str:
    """Return the spec with labels of this type; as strings, both of them."""
    text = SPEC
    for number in NUMBERS.values() if kind == "string" else (NUMBERS[task],):
        text = text.replace(number, number.replace("int64", kind))
    for old, new in POSITIVE.items() if (task, kind) == ("binary", "string") else ():
        text = text.replace(old, new)
    return text


def named() -> pd.DataFrame:
    """Return the orders with names for their classes."""
    frame = orders()
    return frame.assign(cancelled=np.where(frame["cancelled"] == 1, "yes", "no"), size=SIZES[frame["size"]])


@pytest.fixture(scope="module", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No tracking server, no registry, no further process: what those do has tests of its own."""
    with nobody_else(tmp_path_factory.mktemp("database")):
        yield


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> EvaluateBench:
    return EvaluateBench(tmp_path_factory.mktemp("binary"), "binary", text=text_of("binary", "string"), frame=named())


@pytest.fixture(scope="module")
def multiclass(tmp_path_factory: pytest.TempPathFactory) -> EvaluateBench:
    return EvaluateBench(tmp_path_factory.mktemp("multiclass"), "multiclass", text=text_of("multiclass", "string"), frame=named())


def meta_of(bench: EvaluateBench, uri: str) -> dict[str, Any]:
    return dict(bench.store.manifests.get(uri).meta)


def page_of(bench: EvaluateBench, result: StageResult) -> str:
    return bench.store.reports.get(result.reports["evaluation"]).decode()


def rows_of(bench: EvaluateBench) -> pd.DataFrame:
    manifest = bench.store.manifests.get(bench.dataset_uri)
    with tempfile.TemporaryDirectory() as folder:
        reader = DatasetReader(bench.store, manifest, Path(folder))
        return reader.columns(reader.schema.names)


def served(bench: EvaluateBench, model: StageResult, folder: Path) -> Any:
    return _load_pyfunc(str(bench.store.manifests.fetch(bench.store.manifests.get(model.artifact_uri), folder)))


def test_binary_names_reach_dataset_model_report_and_served_answer(binary: EvaluateBench, tmp_path: Path) -> None:
    model = binary.train(work="names")
    result, record = binary.evaluate(model, {"primary: auc": "primary: auc, sensitive: [channel]"}, work="names")
    assert meta_of(binary, binary.dataset_uri)["classes"] == meta_of(binary, model.artifact_uri)["classes"] == ["no", "yes"]
    rows = rows_of(binary)
    assert (rows["label"] == (rows["cancelled"] == "yes")).all()
    assert record["classes"] == ["no", "yes"]
    page = page_of(binary, result)
    assert "The probability is that of <strong>yes</strong>" in page
    assert "Positive class: yes" in page
    answer = served(binary, model, tmp_path).predict(rows.tail(50))
    assert (list(answer.columns), list(answer.index)) == (["no", "yes"], list(rows.tail(50).index))
    assert answer.sum(axis=1).to_numpy() == pytest.approx(1.0)
    assert answer["yes"][rows["value"] > 1].mean() > 0.7


def test_the_same_trees_under_other_names_or_behind_other_transforms_are_another_model(binary: EvaluateBench, tmp_path: Path) -> None:
    numbers = EvaluateBench(tmp_path / "numbers", "binary")
    # The same cells in training, another one in service.
    served = {"noise: {transform: number}": "noise: {transform: number, serve_as: 0}"}
    models = [numbers.train(), numbers.train(work="again"), numbers.train(served, work="served"), binary.train(work="names")]
    weights = {numbers.store.manifests.get(model.artifact_uri).files["weights.ubj"].digest for model in models[:3]}
    assert weights == {binary.store.manifests.get(models[3].artifact_uri).files["weights.ubj"].digest}
    first, again, behind_others, under_names = (model.scalars["weights_digest"] for model in models)
    assert again == first
    assert len({first, behind_others, under_names}) == 3


@pytest.mark.slow
def test_names_change_no_metric(binary: EvaluateBench, multiclass: EvaluateBench, tmp_path: Path) -> None:
    for task, bench in (("binary", binary), ("multiclass", multiclass)):
        frame = orders()
        # Numbers in the order of the names, which is that of the classes.
        frame["size"] = np.array([2, 1, 0])[frame["size"]]
        plain = EvaluateBench(tmp_path / task, task, frame=frame)
        _, numbers = plain.evaluate(plain.train())
        _, names = bench.evaluate(bench.train(work="names"), work="metrics")
        assert names["metrics"] == numbers["metrics"]
        assert numbers["classes"] is None


def test_several_classes_reach_dataset_model_report_and_served_answer(multiclass: EvaluateBench, tmp_path: Path) -> None:
    model = multiclass.train(work="names")
    result, record = multiclass.evaluate(model, work="names")
    names = ["large", "medium <b>", "small"]
    assert meta_of(multiclass, multiclass.dataset_uri)["classes"] == meta_of(multiclass, model.artifact_uri)["classes"] == names
    assert record["classes"] == names
    page = page_of(multiclass, result)
    section = page[page.index('id="classes"') : page.index('id="fairness"')]
    assert all(f'<th scope="row">{name}</th>' in section for name in ("large", "medium &lt;b&gt;", "small"))
    assert "medium <b>" not in page
    confusion = page[page.index('aria-label="Confusion') :]
    assert ">large<" in confusion[: confusion.index("</svg>")]
    rows = rows_of(multiclass)
    answer = served(multiclass, model, tmp_path).predict(rows)
    assert list(answer.columns) == names
    assert (answer.idxmax(axis=1) == rows["size"]).mean() > 0.7


def reordered(bench: EvaluateBench, model: StageResult) -> StageResult:
    """Return the same model whose output columns are in another order, with the names in that order."""
    manifest = bench.store.manifests.get(model.artifact_uri, kind="model")
    files = {name: bench.store.manifests.read(manifest, name) for name in manifest.files}
    facts = json.loads(files["model.json"])
    names = facts["classes"]
    files["model.json"] = json.dumps(facts | {"classes": [*names[1:], names[0]]}).encode()
    uri, other = bench.store.manifests.put_files("model", files, {**manifest.meta, "classes": [*names[1:], names[0]]})
    return replace(model, artifact_uri=uri, digest=other.digest)


def test_champion_that_knows_other_classes_is_compared_by_name(multiclass: EvaluateBench) -> None:
    older = multiclass.train(work="names")
    result, record = multiclass.evaluate(older, work="champion", champion=multiclass.seat(older, "1"))
    # The same model under its own names: no difference, class by class.
    assert record["metrics"] == record["champion_metrics"]
    assert "champion&#39;s recall" in page_of(multiclass, result) or "champion's recall" in page_of(multiclass, result)
    # Under names in another order its probabilities belong to other classes.
    renamed = multiclass.seat(reordered(multiclass, older), "1")
    _, record = multiclass.evaluate(older, work="renamed", champion=renamed, canary=renamed)
    assert record["champion_metrics"]["accuracy"] < 0.5 < record["metrics"]["accuracy"]
    assert record["canary_metrics"] == record["champion_metrics"]


def test_class_that_only_the_test_rows_have_is_named_and_has_no_probability(tmp_path: Path) -> None:
    frame = named()
    frame.loc[frame.index[-40:], "size"] = "giant"
    bench = EvaluateBench(tmp_path, "multiclass", text=text_of("multiclass", "string"), frame=frame)
    assert meta_of(bench, bench.dataset_uri)["unseen_classes"] == {"test": ["giant"]}
    model = bench.train()
    assert meta_of(bench, model.artifact_uri)["classes"] == ["large", "medium <b>", "small"]
    result, record = bench.evaluate(model)
    assert record["classes"][-1] == "giant"
    section = page_of(bench, result)
    assert '<th scope="row">giant</th><td class="n">40</td><td class="n">0</td><td class="n">–</td><td class="n">0.00000</td>' in section
    assert record["metrics"]["log_loss"] > 40 / 1000 * 10


def test_binary_label_with_a_third_class_fails_in_prepare_with_its_names(binary: EvaluateBench, tmp_path: Path) -> None:
    frame = named()
    frame.loc[frame.index[-1], "cancelled"] = "maybe"
    with pytest.raises(AssertionError, match=r"label\.classes.*'maybe', 'no', 'yes'"):
        EvaluateBench(tmp_path, "binary", text=text_of("binary", "string"), frame=frame)


@pytest.mark.slow
def test_boolean_label_is_a_binary_one_without_names(tmp_path: Path) -> None:
    frame = orders()
    plain = EvaluateBench(tmp_path / "plain", "binary", frame=frame)
    frame = frame.assign(cancelled=np.where(frame["cancelled"] == 1, "true", "False"))
    bench = EvaluateBench(tmp_path / "boolean", "binary", text=text_of("binary", "boolean"), frame=frame)
    validated = bench.attempt("validate", {"snapshot": bench.snapshot_uri}, {}, "boolean")[0]
    assert validated is ExitCode.DONE
    model = bench.train()
    _, record = bench.evaluate(model)
    assert record["metrics"] == plain.evaluate(plain.train())[1]["metrics"]
    assert "classes" not in meta_of(bench, bench.dataset_uri)
    answer = served(bench, model, tmp_path / "model").predict(rows_of(bench))
    assert isinstance(answer, np.ndarray)
    assert answer.shape == (len(rows_of(bench)),)


def test_validation_takes_a_label_of_names(multiclass: EvaluateBench) -> None:
    result = multiclass.stage("validate", {"snapshot": multiclass.snapshot_uri}, {}, work="names")
    assert result.scalars["warnings"] == 0
