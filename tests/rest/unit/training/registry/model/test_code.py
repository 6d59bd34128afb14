"""A registered model carries what scores it: it loads where there is no installation, beside models with other code."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save as save_arrays
from safetensors.torch import save

from tests.unit.training.evaluation.model_files import FRAME, model_folder
from tests.unit.training.registry.registered import Registry, scores_elsewhere
from training.contracts import canonical_json
from training.data.features.encoders import EncoderSettings
from training.data.features.transforms import FeaturePlan, FittedTransforms
from training.data.join.derived import DerivedColumn
from training.errors import SpecError
from training.models.base import load_family
from training.models.predictor import load_predictor
from training.registry.model.code import PREFIX, model_code, write_code
from training.registry.model.files import LIST_NAME
from training.registry.serving import load_verified
from training.runtime.provenance import CHECKOUT
from training.spec import check
from training.spec.descriptors.families import trained_families
from training.stages.train import work as train
from training.stages.trial import work as trial
from training.store.objects import file_digest

pytestmark = pytest.mark.slow

ROWS = {"value": [float(value) for value in FRAME["value"][:6]]}
FEATURES = ("value", "twice")
FAMILY = """
from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from training.models.base import Family
{imports}

class Scaled(Family):
    def fit(self, context):
        raise NotImplementedError

    def load(self, folder: Path, architecture):
        factor = json.loads((folder / "weights.json").read_bytes())["factor"]
        {body}
        return lambda matrix: matrix.floats[:, 0].astype(np.float64) * factor * {factor}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with pytest.MonkeyPatch.context() as patch:
        yield Registry(tmp_path_factory.mktemp("registry") / "registry", patch)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages, of which `acme` is allowed."""
    folder = tmp_path / "own"
    (folder / "acme").mkdir(parents=True)
    (folder / "acme" / "__init__.py").touch()
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "acme")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


def write(path: Path, *, imports: str = "", body: str = "", factor: str = "1.0") -> None:
    path.write_text(FAMILY.format(imports=imports, body=body, factor=factor), encoding="utf-8")


def transforms() -> bytes:
    plans = [FeaturePlan(name=name, settings=EncoderSettings(kind="number")) for name in FEATURES]
    return FittedTransforms.fit(FRAME, derived=[DerivedColumn(name="twice", type="double", sql="value * 2")], features=plans).to_json()


def files_of(family: str, factor: float = 1.0) -> dict[str, bytes]:
    """Return the files of a model whose class is `Scaled`."""
    facts = {"format_version": 1, "family": family, "architecture": {}}
    weights = canonical_json({"factor": factor})
    return {"model.json": canonical_json(facts), "transforms.json": transforms(), "weights.json": weights}


def test_model_of_trees_loads_without_the_installation_and_without_torch(registry: Registry, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    registered, fetched = registry.register({path.name: path.read_bytes() for path in folder.iterdir()})
    (scores,), modules = scores_elsewhere(ROWS, fetched)
    assert scores == load_predictor(folder).predict(pd.DataFrame(ROWS)).tolist()
    assert np.array_equal(load_verified(str(fetched), digest=registered.artifact_digest).predict(pd.DataFrame(ROWS)), scores)
    tops = {name.partition(".")[0] for name in modules}
    assert tops.isdisjoint({"training", "torch", "obstore"})
    (package,) = (top for top in tops if top.startswith(PREFIX))
    with zipfile.ZipFile(fetched / f"{package}.zip") as archive:
        carried = [name for name in archive.namelist() if name.endswith(".py")]
    assert len(carried) == len([name for name in modules if name.partition(".")[0] == package]), "it carries what it imports"


def linear_weights() -> tuple[str, bytes, dict[str, Any]]:
    entries = [{"name": name, "dtype": "float32", "cardinality": 0} for name in FEATURES]
    arrays = {"intercept": np.array([-1.0]), "floats": np.arange(1.0, 1 + len(FEATURES))[:, None], "ids": np.zeros((0, 1))}
    return "weights.safetensors", save_arrays(arrays), {"features": entries, "link": "sigmoid"}


def lightgbm_weights() -> tuple[str, bytes, dict[str, Any]]:
    lightgbm = pytest.importorskip("lightgbm")
    values = np.random.default_rng(1).normal(size=(200, len(FEATURES)))
    data = lightgbm.Dataset(values, label=values[:, 0] > 0, params={"verbosity": -1})
    booster = lightgbm.train({"objective": "binary", "verbosity": -1, "num_threads": 1}, data, num_boost_round=3)
    return "weights.txt", booster.model_to_string().encode(), {"objective": "binary", "log_labels": False}


@pytest.mark.parametrize(("family", "make"), [("linear", linear_weights), ("lightgbm", lightgbm_weights)])
def test_model_of_a_family_without_torch_loads_without_the_installation(
    registry: Registry, tmp_path: Path, family: str, make: Callable[[], tuple[str, bytes, dict[str, Any]]]
) -> None:
    name, weights, architecture = make()
    facts = {"format_version": 1, "family": family, "architecture": architecture}
    files = {"model.json": canonical_json(facts), "transforms.json": transforms(), name: weights}
    _registered, fetched = registry.register(files, f"orders_{family}")
    (scores,), modules = scores_elsewhere(ROWS, fetched)
    folder = tmp_path / "model"
    folder.mkdir()
    for file, data in files.items():
        (folder / file).write_bytes(data)
    assert scores == load_predictor(folder).predict(pd.DataFrame(ROWS)).tolist()
    assert len(set(scores)) > 1
    assert {module.partition(".")[0] for module in modules}.isdisjoint({"training", "torch", "obstore"})


def test_class_of_a_users_package_loads_without_the_installation(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PACKAGES", "shop_models")
    monkeypatch.syspath_prepend(CHECKOUT / "docs" / "examples" / "cancelled_orders")
    family = "shop_models.logistic:Logistic"
    architecture = {
        "features": [{"name": name, "dtype": "float32", "cardinality": 0} for name in FEATURES],
        "bias_features": [],
        "settings": {},
    }
    module = load_family(family).build(architecture)  # type: ignore[attr-defined]
    facts = {"format_version": 1, "family": family, "architecture": architecture}
    files = {
        "model.json": canonical_json(facts),
        "transforms.json": transforms(),
        "weights.safetensors": save({name: tensor.contiguous() for name, tensor in module.state_dict().items()}),
    }
    _registered, fetched = registry.register(files)
    (scores,), modules = scores_elsewhere(ROWS, fetched)
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert scores == load_predictor(folder).predict(pd.DataFrame(ROWS)).tolist()
    tops = {name.partition(".")[0] for name in modules}
    assert tops.isdisjoint({"training", "shop_models", "obstore"})


def test_two_versions_with_different_code_score_differently_in_one_process(registry: Registry, own: Path) -> None:
    fetched = []
    for number, factor in enumerate(("1.0", "-2.0")):
        write(own / "acme" / "scaled.py", factor=factor)
        fetched.append(registry.register(files_of("acme.scaled:Scaled", factor=1.0 + number))[1])
    scores, modules = scores_elsewhere(ROWS, *fetched)
    assert scores == [ROWS["value"], [-4 * value for value in ROWS["value"]]]
    assert len({name.partition(".")[0] for name in modules if name.startswith(PREFIX)}) == 2
    here = [load_verified(str(path), digest=_digest(path)).predict(pd.DataFrame(ROWS)).tolist() for path in fetched]
    assert here == scores


def _digest(path: Path) -> str:
    return file_digest(path / LIST_NAME)


IMPORTS = {
    "from": ("from acme.parts import two", "two()"),
    "from a package": ("from acme import parts", "parts.two()"),
    "relative": ("from .parts import two as second", "second()"),
    "relative package": ("from . import parts", "parts.two()"),
    "name": ("import acme.parts", "acme.parts.two()"),
    "several names": ("import json as j, acme.parts, acme", "acme.parts.two()"),
    "as": ("import acme.parts as p", "p.two()"),
    "star": ("from acme.parts import *", "two()"),
    "in several lines": ("from acme.parts import (  # both\n    one,\n    two,\n)", "two() * one()"),
    "two in a line": ("from acme.parts import two; import acme.parts", "two() * acme.parts.one()"),
    "nested": ("from acme.inner.deep import two", "two()"),
    "optional": ("try:\n    import fast_acme\nexcept ImportError:\n    from acme import parts as fast_acme", "fast_acme.two()"),
    "type checking": (
        "from typing import TYPE_CHECKING\nfrom acme.parts import two\nif TYPE_CHECKING:\n    import not_there\n",
        "two()",
    ),
}


LOADS_ALL = """
import importlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
import pandas
rows = pandas.DataFrame(json.loads(sys.argv[2]))
found = {name: importlib.import_module(name)._load_pyfunc(sys.argv[3]).predict(rows).tolist() for name in sys.argv[4:]}
print(json.dumps([found, sorted(sys.modules)]))
"""


def test_every_form_of_import_of_ones_own_modules_is_carried(own: Path, tmp_path: Path) -> None:
    (own / "acme" / "parts.py").write_text("def one():\n    return 1.0\n\n\ndef two():\n    return 2.0\n", encoding="utf-8")
    (own / "acme" / "inner").mkdir()
    (own / "acme" / "inner" / "__init__.py").touch()
    (own / "acme" / "inner" / "deep.py").write_text("from ..parts import two\n", encoding="utf-8")
    codes = {}
    for number, (form, (imports, value)) in enumerate(IMPORTS.items()):
        write(own / "acme" / f"top{number}.py", imports=imports, factor=value)
        codes[form] = model_code(f"acme.top{number}:Scaled")
        if "*" not in imports:
            write(own / "acme" / f"lazy{number}.py", body=textwrap.indent(imports, " " * 8).lstrip(), factor=value)
            codes[f"{form} in a function"] = model_code(f"acme.lazy{number}:Scaled")
    archives = [str(write_code(code, tmp_path)) for code in codes.values()]
    (tmp_path / "data").mkdir()
    for name, data in files_of("acme.top0:Scaled").items():
        (tmp_path / "data" / name).write_bytes(data)
    names = {form: code.name for form, code in codes.items()}
    command = [sys.executable, "-B", "-c", LOADS_ALL, json.dumps(archives), json.dumps(ROWS), str(tmp_path / "data"), *names.values()]
    done = subprocess.run(command, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    scores, modules = json.loads(done.stdout.splitlines()[-1])
    assert {form: scores[name] for form, name in names.items()} == {form: [2 * value for value in ROWS["value"]] for form in names}
    assert {name.partition(".")[0] for name in modules}.isdisjoint({"acme", "training", "mlflow"})


@pytest.mark.parametrize(("cookie", "encoding"), [("", "utf-8-sig"), ("# -*- coding: latin-1 -*-\n", "latin-1")])
def test_source_in_another_encoding_is_carried_as_python_reads_it(own: Path, cookie: str, encoding: str) -> None:
    (own / "acme" / "parts.py").touch()
    text = f"{cookie}from acme import parts; NAME = '\u00fc'; from acme import parts as again\nclass Scaled: pass\n"
    (own / "acme" / "scaled.py").write_bytes(text.encode(encoding))
    carried = model_code("acme.scaled:Scaled").files["acme/scaled.py"].encode()
    names = [node.names[0].asname for node in ast.parse(carried).body if isinstance(node, ast.ImportFrom) and node.level == 2]
    assert names == [None, "again"]
    assert "NAME = '\u00fc'" in ast.unparse(ast.parse(carried))


def test_equal_code_is_the_same_archive_byte_for_byte_and_a_package_without_an_init_file_is_found_in_it(own: Path, tmp_path: Path) -> None:
    (own / "acme" / "plain").mkdir()
    (own / "acme" / "plain" / "parts.py").write_text("def two():\n    return 2.0\n", encoding="utf-8")
    write(own / "acme" / "scaled.py", imports="from acme.plain.parts import two", factor="two()")
    archives = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        archives.append(write_code(model_code("acme.scaled:Scaled"), folder))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    assert archives[0].name == archives[1].name
    program = f"import sys; sys.path.insert(0, sys.argv[1]); import {archives[0].stem}.acme.scaled as found; print(found.two())"
    done = subprocess.run([sys.executable, "-c", program, str(archives[0])], cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr[-2000:]


def test_a_package_of_the_users_folder_is_carried_too(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sibling(own)
    monkeypatch.setenv("NIGHTSHIFT_MODEL_PATH", str(own))
    code = model_code("acme.scaled:Scaled")
    assert code.files["acme/parts.py"] == "import os\nfrom .. import sibling\n"
    assert "sibling.py" in code.files


def sibling(own: Path) -> str:
    (own / "sibling.py").touch()
    write(own / "acme" / "scaled.py", imports="from acme.parts import two")
    (own / "acme" / "parts.py").write_text("import os\nimport sibling\n", encoding="utf-8")
    return r"acme/parts\.py:2 imports sibling, .*add sibling to NIGHTSHIFT_MODEL_PACKAGES"


def missing(own: Path) -> str:
    write(own / "acme" / "scaled.py", body="import no_such_module.inner")
    return r"acme/scaled\.py:\d+ imports no_such_module\.inner"


def computed(own: Path) -> str:
    write(own / "acme" / "scaled.py", imports="import importlib", body="importlib.import_module('acme' + '.parts')")
    return "imports a module by a name that is computed.*write an import statement"


def beside(own: Path) -> str:
    write(own / "acme" / "scaled.py", body="Path(__file__).with_name('factors.json')")
    return r"acme/scaled\.py:\d+ reads files next to its code"


def resources(own: Path) -> str:
    write(own / "acme" / "scaled.py", imports="from importlib import resources")
    return "reads files next to its code"


def compiled(own: Path) -> str:
    write(own / "acme" / "scaled.py", imports="from acme import fast")
    (own / "acme" / "fast.cpython-311-x86_64-linux-gnu.so").touch()
    return r"fast\.cpython.*is compiled code"


def broken(own: Path) -> str:
    write(own / "acme" / "scaled.py", imports="from acme import parts")
    (own / "acme" / "parts.py").write_text("def one(:\n", encoding="utf-8")
    return r"acme/parts\.py:1 is not valid Python"


def editable(own: Path) -> str:
    info = own / "acme_helpers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-helpers\nVersion: 1.0\n", encoding="utf-8")
    (info / "RECORD").write_text("acme_helpers.py,,\n", encoding="utf-8")
    (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}', encoding="utf-8")
    (own / "acme_helpers.py").touch()
    write(own / "acme" / "scaled.py", imports="import acme_helpers")
    return "imports acme_helpers"


NOT_ISOLATED = (sibling, missing, computed, beside, resources, compiled, broken, editable)


@pytest.mark.parametrize("make", NOT_ISOLATED, ids=lambda make: make.__name__)
def test_class_with_code_that_is_not_carried_is_refused_when_it_is_registered(
    registry: Registry, own: Path, make: Callable[[Path], str]
) -> None:
    words, name = make(own), f"orders_{make.__name__}"
    with pytest.raises(SpecError, match=words) as caught:
        registry.register(files_of("acme.scaled:Scaled"), name)
    assert caught.value.code == "model.not_isolated"
    assert mlflow.MlflowClient().search_model_versions(f"name = '{name}'") == []


SPEC = (CHECKOUT / "dags" / "pipelines" / "flight_delay.yaml").read_text(encoding="utf-8")


def test_the_check_of_pipelines_names_every_import_with_the_models_line(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sibling(own)
    write(own / "acme" / "scaled.py", imports="from acme.parts import two", body="Path(__file__)")
    head, _, tail = SPEC.partition("\ntrain:")
    tail = tail[tail.index("\nevaluate:") :]
    path = tmp_path / "flight_delay.yaml"
    path.write_text(f'{head}\ntrain: {{model: "acme.scaled:Scaled", seed: 1, epochs: 2, learning_rate: 0.1}}{tail}', encoding="utf-8")
    line = (
        path.read_text(encoding="utf-8").splitlines().index(next(row for row in path.read_text().splitlines() if "acme.scaled" in row)) + 1
    )
    _specs, (error,) = check.check_files([str(path)])
    assert {(problem.code, problem.line, problem.field) for problem in error.problems} == {("model.not_isolated", line, "train.model")}
    assert len(error.problems) == 2
    (own / "acme" / "parts.py").write_text("two = 2\n", encoding="utf-8")
    write(own / "acme" / "scaled.py", imports="from acme.parts import two")
    assert check.check_files([str(path)])[1] == []


@pytest.mark.parametrize("work", [train, trial])
def test_training_of_a_class_that_cannot_be_registered_is_refused_before_it_begins(own: Path, work: Callable[[Any], object]) -> None:
    sibling(own)
    context: Any = SimpleNamespace(spec=SimpleNamespace(train=SimpleNamespace(model="acme.scaled:Scaled")))
    with pytest.raises(SpecError, match="sibling"):
        work(context)


@pytest.mark.parametrize("family", trained_families())
def test_code_of_a_family_has_no_engine_store_or_spec(family: str) -> None:
    code = model_code(family)
    rooms = {name.split("/")[1] for name in code.files if name.startswith("training/")}
    assert rooms.isdisjoint({"engine", "store", "spec", "stages", "evaluation", "tables"})
    assert code == model_code(family), "equal code, equal name"
    names = {requirement.partition("==")[0] for requirement in code.requirements}
    assert ("torch" in names) == (family == "ranker")
