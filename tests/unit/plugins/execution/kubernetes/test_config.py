"""The file that says what a cluster is like: read strictly, all problems at once."""

from pathlib import Path

import pytest

from nightshift.execution.backend import backend_of
from nightshift.execution.kubernetes.config import Cluster, check_placement, load_cluster
from nightshift.settings import Settings
from training.errors import SpecError
from training.runtime.provenance import CHECKOUT
from training.spec import load_spec
from training.spec.reader.loader import check_values

SMALL = "namespace: nightshift\nimage: registry/stage:1\n"


def load(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "placement.yaml"
    path.write_text(text, encoding="utf-8")
    return load_cluster(path)


def test_a_namespace_and_an_image_are_enough(tmp_path: Path) -> None:
    cluster = load(tmp_path, SMALL)
    assert cluster.amount_of("train").cpus == 1.0
    assert cluster.queue_of("anybody") is None
    assert cluster.image_of(gpus=8) == "registry/stage:1"
    assert cluster.code_version(gpus=0) is None


def test_stages_outside_of_the_chain_are_sized_as_one_of_it_until_the_file_sizes_them(tmp_path: Path) -> None:
    sizes = "train: {cpus: 3}, evaluate: {cpus: 2}, promote: {cpus: 1}, default: {cpus: 0.5}"
    cluster = load(tmp_path, f"{SMALL}resources: {{{sizes}}}\nsecrets: {{canary: [shadow]}}\n")
    assert [cluster.amount_of(stage).cpus for stage in ("trial", "canary", "repair", "prepare")] == [3, 2, 1, 0.5]
    assert cluster.secrets_of("canary") == ("shadow",)
    own = load(tmp_path, f"{SMALL}resources: {{{sizes}, trial: {{cpus: 7}}, canary: {{cpus: 8}}}}\n")
    assert [own.amount_of(stage).cpus for stage in ("trial", "canary")] == [7, 8]


def test_a_pinned_image_stands_for_the_code(tmp_path: Path) -> None:
    digest = "sha256:" + "ab" * 32
    cluster = load(tmp_path, f"namespace: n\nimage: registry/stage@{digest}\ngpu_image: registry/stage:cuda\n")
    assert cluster.code_version(gpus=0) == digest
    assert cluster.code_version(gpus=1) is None


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("image: i\n", "", "[field.missing]"),
        (SMALL + "imagee: x\n", ":3", "did you mean image"),
        (SMALL + "secrets: {trian: [s]}\n", ":3", "[stage.unknown] there is no stage 'trian'"),
        (SMALL + "resources:\n  everything: {cpus: 1}\n", ":4", "[stage.unknown]"),
        (SMALL + "environment:\n  DB_PASSWORD: hunter2\n", ":4", "[environment.secret] DB_PASSWORD looks like a secret"),
        (SMALL + "grace: 5\n", ":3", "[duration.invalid]"),
        (SMALL + "pull_policy: Sometimes\n", ":3", "[field.choice]"),
        (SMALL + "spot: {fallback_after: 0}\n", ":3", "spot.fallback_after"),
        ("namespace: Not_A_Name\nimage: i\n", ":1", "is not a name in Kubernetes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, line: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    assert f"placement.yaml{line}" in str(caught.value)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_backend_wants_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"\[settings.kubernetes\] names no file"):
        backend_of(Settings.from_environment({"NIGHTSHIFT_BACKEND": "kubernetes"})).check()
    absent = {"NIGHTSHIFT_BACKEND": "kubernetes", "NIGHTSHIFT_KUBERNETES": str(tmp_path / "absent.yaml")}
    with pytest.raises(SpecError, match=r"\[cluster.unreadable\] cannot be read"):
        backend_of(Settings.from_environment(absent)).check()


def test_a_pipeline_that_asks_for_what_the_cluster_does_not_have_is_refused_before_anything_starts(tmp_path: Path) -> None:
    values = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").model_dump(mode="json", by_alias=True)
    gang = {"nodes": 2, "processes_per_node": 1, "gpus": 1}
    values["train"]["placement"] |= {**gang, "accelerator": "h100", "topology": "rack", "priority": "highest"}
    cluster = load(tmp_path, SMALL + "accelerators: {a100: {}}\npriorities: {highest: p}\n")
    with pytest.raises(SpecError) as caught:
        check_placement(check_values(values, "test"), cluster)
    assert [problem.field for problem in caught.value.problems] == ["train.placement.accelerator", "train.placement.topology"]
    assert "[placement.unknown] this cluster has no accelerator 'h100' (known here: a100" in str(caught.value)


def test_owner_without_a_queue_is_refused_where_owners_have_queues(tmp_path: Path) -> None:
    spec = load_spec(CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml")
    priorities = "priorities: {production: p}\n"
    with pytest.raises(SpecError, match=r"owner: \[placement.unknown\] no queue for the owner '.*known there: serach"):
        check_placement(spec, load(tmp_path, f"{SMALL}{priorities}queues: {{serach: team-search}}\n"))
    for queues in ("", "queues: {serach: team-search, default: shared}\n", f"queues: {{{spec.owner}: team-search}}\n"):
        check_placement(spec, load(tmp_path, SMALL + priorities + queues))
