"""The section `resources`: which stages it sizes, what it refuses, and that it makes no new work."""

import pytest

from nightshift.execution.kubernetes.config import Cluster
from nightshift.execution.kubernetes.launch_request import launch_of
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import PipelineSpec, freeze, load_spec, parse_spec, spec_part
from training.spec.scalar_types import parse_size
from training.stage_table import STAGES

PATH = CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml"
CLUSTER = Cluster.model_validate(
    {"namespace": "n", "image": "i", "resources": {"prepare": {"cpus": 4, "memory": "16GiB"}, "train": {"cpus": 3, "memory": "8GiB"}}}
)


def with_resources(text: str) -> PipelineSpec:
    return parse_spec(PATH.read_bytes() + f"\nresources: {text}\n".encode())


def asked(spec: PipelineSpec, stage: str) -> tuple[float, int]:
    launch = launch_of(spec, CLUSTER, stage=stage, name="n", attempt_id="a", request_uri="u", nodes=1, spot=False)
    return launch.cpus, launch.memory_bytes


def test_a_pipelines_amounts_go_before_the_installations_key_by_key() -> None:
    spec = with_resources("{prepare: {memory: 8Gi}, evaluate: {cpus: 2.5, memory: 3GiB}}")
    assert asked(spec, "prepare") == (4, parse_size("8GiB"))
    assert asked(spec, "evaluate") == (2.5, parse_size("3GiB"))
    assert asked(spec, "train") == (3, parse_size("8GiB")), "train.placement alone sizes it"
    assert asked(load_spec(PATH), "prepare") == (4, parse_size("16GiB"))


def test_amounts_make_no_new_work_and_are_in_the_frozen_spec() -> None:
    spec, plain = with_resources("{prepare: {cpus: 2}}"), load_spec(PATH)
    assert all(spec_part(spec, stage) == spec_part(plain, stage) for stage in STAGES)
    assert PipelineSpec.thaw(freeze(spec)).resources == spec.resources


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{train: {cpus: 2}}", "resources.train: [resources.twice] train is sized by train.placement (write cpus and memory under"),
        ("{trial: {cpus: 2}}", "resources.trial: [resources.twice] trial is sized by train.placement"),
        ("{prepar: {cpus: 2}}", "resources.prepar: [stage.unknown] there is no stage 'prepar' (one of ingest, validate, prepare,"),
        ("{tune: {cpus: 2}}", "resources.tune: [stage.unknown] this pipeline has no stage tune (add the section tune"),
        ("{canary: {cpus: 2}}", "resources.canary: [stage.unknown] this pipeline has no stage canary (add the section promote.canary"),
        ("{repair: {cpus: 2}}", "resources.repair: [stage.unknown] there is no stage 'repair' (one of ingest, validate, prepare,"),
        ("{prepare: {}}", "resources.prepare: [field.missing] prepare has neither cpus nor memory"),
        ("{prepare: {cpus: 0}}", "resources.prepare.cpus: [resources.cpus] must be greater than 0, got 0"),
        ("{prepare: {memory: 1B}}", "resources.prepare.memory: [resources.memory] memory must be from 16MiB to 32TiB, got '1B'"),
        ("{prepare: {gpus: 1}}", "resources.prepare.gpus: [spec.unknown_key] unknown key 'gpus'"),
    ],
)
def test_what_would_size_nothing_or_something_twice_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_resources(text)
    assert said in str(caught.value)


def test_a_canary_and_a_study_are_sized_where_the_pipeline_has_them() -> None:
    text = PATH.read_text(encoding="utf-8")
    promote = "promote: {model: search_ranking, approval: automatic}"
    assert promote in text
    text = text.replace(promote, "promote: {model: search_ranking, canary: {}}")
    text += "\ntune: {trials: 2, space: {learning_rate: {float: [1e-3, 1e-1]}}}\nresources: {canary: {cpus: 2}, tune: {cpus: 3}}\n"
    spec = parse_spec(text.encode())
    assert [asked(spec, stage)[0] for stage in ("canary", "tune")] == [2, 3]
