"""What `nightshift doctor` says of disks, files, store, database and pipelines."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.doctor import cluster, machine, storage
from nightshift.doctor.command import findings_of
from nightshift.doctor.findings import Finding, Installation
from nightshift.settings import Settings
from tests.unit.plugins.execution.kubernetes.conftest import api
from tests.unit.plugins.execution.kubernetes.kubernetes_api import KubernetesApi
from tests.unit.training.registry.scenes import decide_on
from tests.unit.training.spec.descriptors.test_families import install, site
from training.database import connect
from training.database.connect import head_revision
from training.registry.ledger.ledger import Ledger
from training.runtime.provenance import CHECKOUT
from training.spec.registry import installed
from training.store.bucket import Bucket

__all__ = ["api", "site"]


@pytest.fixture
def place(settings: Settings) -> Installation:
    return Installation(settings=settings)


def only(found: list[Finding]) -> Finding:
    (each,) = found
    return each


def test_a_disk_with_little_free_space_is_found(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each.is_ok for each in machine.disk(place))
    monkeypatch.setattr(machine, "MIN_FREE_BYTES", 2**60)
    found = list(machine.disk(place))
    assert not any(each.is_ok for each in found)
    assert "nightshift gc" in found[0].hint


def test_passwords_that_other_users_can_read_are_found(place: Installation) -> None:
    assert list(machine.files(place)) == []
    path = place.settings.home / "credentials.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    path.chmod(0o644)
    assert only(list(machine.files(place))).hint == f"chmod 600 {path}"
    path.chmod(0o600)
    assert only(list(machine.files(place))).is_ok


class IgnoresTheCondition(Bucket):
    def create(self, key: str, data: Any) -> bool:
        self.put(key, bytes(data))
        return True


def test_a_store_that_ignores_the_condition_of_a_create_is_found(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(each.is_ok for each in storage.store(place))
    monkeypatch.setattr(storage, "Bucket", IgnoresTheCondition)
    wrong = [each for each in storage.store(place) if not each.is_ok]
    assert any("the condition is ignored" in each.message for each in wrong)


def revise(place: Installation, revision: str) -> None:
    with sqlite3.connect(place.settings.database_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])


def test_a_database_of_another_version_is_found_and_not_migrated(place: Installation) -> None:
    path = Path(place.settings.database_url.removeprefix("sqlite:///"))
    path.unlink(missing_ok=True)
    assert only(list(storage.database(place))).message.endswith("has no tables yet: the first run makes them")
    assert not path.exists()

    connect(place.settings.database_url)
    assert only(list(storage.database(place))).is_ok
    revise(place, "0000")
    found = only(list(storage.database(place)))
    assert (found.is_ok, "earlier version (0000, this one:" in found.message, found.hint.startswith("make a backup")) == (False, True, True)
    revise(place, "9999")
    assert "newer version (9999" in only(list(storage.database(place))).message
    revise(place, head_revision())


def test_decisions_that_mlflow_does_not_show_yet_are_found_with_their_model(place: Installation) -> None:
    ledger = Ledger(place.settings.database_url)
    decide_on(ledger, 1, model="behind")
    decide_on(ledger, 2, "rejected", model="behind")
    (found,) = [each for each in storage.database(place) if not each.is_ok]
    assert (found.check, found.message) == ("mirror", "MLflow does not show the newest decisions about behind: 2")
    assert "within the hour" in found.hint
    ledger.end_mirror("behind", ledger.begin_mirror("behind", 1), revision=1, decisions=2)
    assert only(list(storage.database(place))).is_ok


def test_a_damaged_database_is_found(place: Installation) -> None:
    path = Path(place.settings.database_url.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not a database at all" * 100)
    found = only(list(findings_of("database", place)))
    assert not found.is_ok
    assert "[database.damaged]" in found.message
    assert found.hint


def test_a_yaml_that_is_not_sound_is_found_by_name(place: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pipelines"
    monkeypatch.setenv("NIGHTSHIFT_PIPELINES", str(folder))
    place = Installation(settings=Settings.from_environment())
    assert not only(list(storage.pipelines(place))).is_ok

    folder.mkdir()
    text = (CHECKOUT / "dags" / "pipelines" / "search_ranking.yaml").read_text(encoding="utf-8")
    (folder / "search_ranking.yaml").write_text(text, encoding="utf-8")
    (folder / "broken.yaml").write_text(text.replace("name: search_ranking", "nane: search_ranking"), encoding="utf-8")
    wrong, right = storage.pipelines(place)
    assert wrong.message.startswith("broken.yaml: ")
    assert right.message.endswith("sound: 1")


def test_an_entry_point_with_a_name_of_ours_is_found(place: Installation, site: Path) -> None:
    install(site, "acme_one", {"ranker": "acme.ranker"})
    installed.cache_clear()
    (found,) = [each for each in storage.pipelines(place) if each.check == "names"]
    assert (found.message, found.is_ok) == ("'ranker' of the group nightshift.families is in training and in acme.ranker", False)


@pytest.fixture
def in_cluster(api: KubernetesApi, airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Installation:
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "kubernetes")
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES", str(CHECKOUT / "docker" / "kubernetes" / "placement.yaml"))
    return Installation(settings=Settings.from_environment())


def test_rights_that_the_clusters_account_lacks_are_named(in_cluster: Installation, api: KubernetesApi) -> None:
    assert {each.is_ok for each in cluster.backend(in_cluster)} == {True}
    api.refused_rights = {"create jobs", "get pods/log"}
    wrong = list(cluster.backend(in_cluster))[1]
    assert wrong.message == "in namespace nightshift this account may not: get pods/log, create jobs"
    assert "nightshift-launcher" in wrong.hint


def in_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> Installation:
    path = tmp_path / "placement.yaml"
    path.write_text(f"namespace: nightshift\nimage: i\n{more}\n", encoding="utf-8")
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES", str(path))
    return Installation(settings=Settings.from_environment())


def test_pod_that_the_cluster_would_forbid_is_named_before_the_night(in_cluster: Installation, api: KubernetesApi) -> None:
    words = "no PriorityClass with name nightshift-default was found"
    api.admission = lambda made: words if made["metadata"]["labels"]["nightshift.io/stage"] == "train" else ""
    found = [each for each in cluster.backend(in_cluster) if each.check == "pods"]
    assert [each.message.partition(":")[0] for each in found] == ["flight_delay, train", "search_ranking, train"]
    assert all("[kubernetes.refused]" in each.message and words in each.message for each in found)
    api.admission = lambda made: ""
    assert [each.is_ok for each in cluster.backend(in_cluster) if each.check == "pods"] == [True, True]
    assert api.names() == []


def test_pipeline_that_names_what_the_cluster_does_not_have_is_named_before_the_night(
    in_cluster: Installation, api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.api_versions.add("kueue.x-k8s.io/v1beta2")
    place = in_file(tmp_path, monkeypatch, "queues: {operations-research: team}")
    found = {each.message.partition(":")[0]: each for each in cluster.backend(place) if each.check == "pods"}
    assert found["flight_delay"].is_ok
    assert "owner: no queue for the owner 'search-relevance'" in found["search_ranking"].message


def test_queue_that_is_missing_or_admits_nothing_is_named_before_the_night(
    in_cluster: Installation, api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.api_versions.add("kueue.x-k8s.io/v1beta2")
    place = in_file(tmp_path, monkeypatch, "queues: {a: active, b: inactive, c: missing, default: active}")
    for name, status in (("active", "True"), ("inactive", "False")):
        condition = {"type": "Active", "status": status, "message": "Can't submit new workloads to clusterQueue"}
        api.objects["localqueues", name] = {"metadata": {"name": name}, "status": {"conditions": [condition]}}
    found = [each for each in cluster.backend(place) if each.check == "queues"]
    assert [each.is_ok for each in found] == [True, False, False]
    assert "inactive admits nothing: Can't submit" in found[1].message
    assert "no LocalQueue missing" in found[2].message


@pytest.mark.parametrize(
    ("versions", "queues", "is_ok", "words"),
    [
        (set(), "", True, "no API scheduling.k8s.io/v1alpha2 (Kubernetes 1.36 with the alpha feature gates GenericWorkload, "),
        ({"scheduling.k8s.io/v1alpha2"}, "", True, "on, Kubernetes starts all members or none; otherwise a gang that has only some"),
        ({"kueue.x-k8s.io/v1beta2"}, "queues: {default: shared}", True, "Kueue admits gangs as a whole"),
        ({"kueue.x-k8s.io/v1beta2"}, "", True, "members start one by one, and a gang that has only some of its nodes for 7m gives them"),
        (set(), "queues: {default: shared}", False, "the cluster has no API kueue.x-k8s.io"),
    ],
)
def test_what_starts_the_members_of_a_gang_is_named(
    in_cluster: Installation,
    api: KubernetesApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: set[str],
    queues: str,
    is_ok: bool,
    words: str,
) -> None:
    api.api_versions |= versions
    found = only([each for each in cluster.backend(in_file(tmp_path, monkeypatch, f"partial_wait: 7m\n{queues}")) if each.check == "gangs"])
    assert found.is_ok == is_ok
    assert words in found.message


def test_a_cluster_that_does_not_answer_is_a_finding(in_cluster: Installation, api: KubernetesApi) -> None:
    api.faults = [500] * 20
    assert "[kubernetes.unavailable]" in list(findings_of("backend", in_cluster))[-1].message


def test_rights_that_are_asked_for_are_those_of_the_shipped_role() -> None:
    documents = yaml.safe_load_all((CHECKOUT / "docker" / "kubernetes" / "base" / "rbac.yaml").read_text(encoding="utf-8"))
    (role,) = (each for each in documents if each["kind"] == "Role")
    shipped = {(rule["apiGroups"][0], rule["resources"][0], tuple(rule["verbs"])) for rule in role["rules"]}
    assert shipped == set(cluster.RIGHTS)


def test_a_backend_that_does_not_exist_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_BACKEND", "slurm")
    found = only(list(findings_of("backend", Installation(settings=Settings.from_environment()))))
    assert "there is no backend 'slurm'" in found.message


@pytest.mark.parametrize(
    "case",
    [
        ((), "2.13.0+cpu", None, True, "has no NVIDIA GPU"),
        (("nvidia0", "nvidiactl"), "2.13.0+cpu", None, False, "a build without CUDA"),
        (("nvidia0", "nvidia1"), "2.13.0", None, True, "use the GPUs of this machine (2)"),
        (("nvidia0",), "2.13.0", "-1", True, "hides the GPUs"),
    ],
)
def test_gpus_that_trainings_would_not_use_are_found(
    place: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[tuple[str, ...], str, str | None, bool, str]
) -> None:
    devices, build, visible, is_ok, words = case
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda _name: build)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = only(list(machine.gpu(Installation(settings=place.settings, environ=environ))))
    assert (found.is_ok, words in found.message) == (is_ok, True)
