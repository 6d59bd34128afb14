"""Manifests under docker/kubernetes/: valid by Kubernetes' own schemas, and no more rights than are meant."""

import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from nightshift.execution.kubernetes.config import load_cluster
from nightshift.execution.kubernetes.launch_request import Launch
from nightshift.execution.kubernetes.manifests import labels_of
from tests.unit.docker.restricted_profile import violations
from training.runtime.provenance import CHECKOUT
from training.stage_table import ALL_STAGES, TRAININGS

ROOT = CHECKOUT / "docker" / "kubernetes"
KUBERNETES_VERSION = "1.36"
KUEUE = "kueue.x-k8s.io"


def documents() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(ROOT.rglob("*.yaml")):
        if path.name in ("placement.yaml", "airflow-values.yaml", "kustomization.yaml"):
            continue
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path, document


def case(path: Path, document: dict[str, Any]) -> Any:
    return pytest.param(document, id=f"{path.relative_to(ROOT)}:{document['kind']}/{document['metadata']['name']}")


def named(kind: str) -> dict[str, Any]:
    return next(document for _, document in documents() if document["kind"] == kind)


@pytest.mark.parametrize(
    "document",
    [case(path, document) for path, document in documents() if KUEUE not in document["apiVersion"]],
)
def test_a_manifest_is_valid(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_the_schemas_would_see_a_key_that_there_is_not() -> None:
    broken = {**named("Role"), "rights": []}
    with pytest.raises(kubernetes_validate.ValidationError, match="rights"):
        kubernetes_validate.validate(broken, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize(
    "document",
    [case(path, document) for path, document in documents() if KUEUE in document["apiVersion"]],
)
def test_an_object_of_kueue_fits_its_crd(document: dict[str, Any]) -> None:
    folder = os.environ.get("NIGHTSHIFT_KUEUE_CRDS")
    if not folder:
        pytest.skip("NIGHTSHIFT_KUEUE_CRDS names no folder with Kueue's CRDs (config/components/crd/bases of its repository)")
    crds = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.yaml")]
    crd = next(found for found in crds if found["spec"]["names"]["kind"] == document["kind"])
    version = document["apiVersion"].split("/")[1]
    schema = next(found["schema"]["openAPIV3Schema"] for found in crd["spec"]["versions"] if found["name"] == version)
    jsonschema.validate(document, closed(schema))


def closed(schema: Any) -> Any:
    """Return a CRD's schema with keys refused that it does not name, as the API server's strict validation does."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in made:
        known = made["properties"]
        if made.get("type") == "object" and known and "metadata" not in known:
            made["additionalProperties"] = False
    return made


def test_airflow_may_do_what_it_does_and_nothing_more() -> None:
    rights = {
        (group, resource): rule["verbs"] for rule in named("Role")["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }
    assert rights == {
        ("", "pods"): ["create", "get", "list", "delete"],
        ("", "pods/log"): ["get"],
        ("batch", "jobs"): ["create", "get", "delete"],
        ("", "services"): ["create"],
        ("kueue.x-k8s.io", "localqueues"): ["get"],
    }
    assert not [document for _, document in documents() if document["kind"] in ("ClusterRole", "ClusterRoleBinding", "Secret")]


def kueue(folder: str, kind: str) -> dict[str, dict[str, Any]]:
    found = (document for path, document in documents() if path.is_relative_to(ROOT / folder) and document["kind"] == kind)
    return {document["metadata"]["name"]: document["spec"] for document in found}


@pytest.mark.parametrize("folder", ["kueue", "examples/three-teams"])
def test_queues_name_flavors_and_flavors_name_topologies_that_are_there(folder: str) -> None:
    queues, flavors, topologies = (kueue(folder, kind) for kind in ("ClusterQueue", "ResourceFlavor", "Topology"))
    groups = [group for queue in queues.values() for group in queue["resourceGroups"]]
    assert {flavor["name"] for group in groups for flavor in group["flavors"]} == set(flavors)
    assert {flavor["topologyName"] for flavor in flavors.values() if "topologyName" in flavor} == set(topologies)
    assert {local["clusterQueue"] for local in kueue(folder, "LocalQueue").values()} == set(queues)
    for group in groups:
        for flavor in group["flavors"]:
            assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]


def test_nodes_without_an_nvlink_label_are_seen_by_every_flavor_but_the_one_for_such_nodes() -> None:
    flavors, topologies = kueue("kueue", "ResourceFlavor"), kueue("kueue", "Topology")
    levels = {name: [level["nodeLabel"] for level in topologies[flavor["topologyName"]]["levels"]] for name, flavor in flavors.items()}
    assert {name for name, labels in levels.items() if "nvidia.com/gpu.clique" in labels} == {"gb200"}


def test_work_without_a_gpu_is_tried_on_nodes_without_one_first() -> None:
    for queue in kueue("kueue", "ClusterQueue").values():
        (group,) = queue["resourceGroups"]
        gpus = {flavor["name"]: flavor["resources"][2]["nominalQuota"] for flavor in group["flavors"]}
        assert [name for name, amount in gpus.items() if amount == "0"][:2] == list(gpus)[:2] == ["on-demand", "spot"]


def test_queues_share_one_cohort_and_take_back_what_they_lend() -> None:
    queues = kueue("kueue", "ClusterQueue").values()
    assert {queue["cohortName"] for queue in queues} == {"nightshift"}
    assert {queue["preemption"]["reclaimWithinCohort"] for queue in queues} == {"Any"}


def test_the_queues_that_the_cluster_file_suggests_are_made() -> None:
    lines = (ROOT / "placement.yaml").read_text(encoding="utf-8").splitlines()
    first = lines.index("# queues:")
    suggested = takewhile(lambda line: line.startswith("#   "), lines[first + 1 :])
    owners = yaml.safe_load("\n".join(line.removeprefix("#") for line in suggested))
    assert owners
    assert set(owners.values()) == set(kueue("kueue", "LocalQueue"))


def test_the_example_says_which_queue_is_whose() -> None:
    text = (ROOT / "examples" / "three-teams" / "README.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("queues: "))
    assert set(yaml.safe_load(line)["queues"].values()) == set(kueue("examples/three-teams", "LocalQueue"))


def test_kueue_ranks_work_by_label_as_the_scheduler_ranks_pods() -> None:
    ranks = {
        kind: {document["metadata"]["name"]: document["value"] for _, document in documents() if document["kind"] == kind}
        for kind in ("PriorityClass", "WorkloadPriorityClass")
    }
    assert ranks["WorkloadPriorityClass"] == ranks["PriorityClass"]


@pytest.mark.parametrize("folder", ["kueue", "examples/three-teams"])
def test_the_namespace_has_room_for_all_that_its_queues_admit(folder: str) -> None:
    admitted: dict[str, Decimal] = defaultdict(Decimal)
    for queue in kueue(folder, "ClusterQueue").values():
        for flavor in queue["resourceGroups"][0]["flavors"]:
            for resource in flavor["resources"]:
                admitted[resource["name"]] += parse_quantity(resource["nominalQuota"])
    hard = named("ResourceQuota")["spec"]["hard"]
    assert parse_quantity(hard["requests.cpu"]) >= admitted["cpu"] > 0
    assert parse_quantity(hard["requests.memory"]) >= admitted["memory"] > 0
    assert parse_quantity(hard["limits.memory"]) >= admitted["memory"]
    assert parse_quantity(hard["requests.nvidia.com/gpu"]) >= admitted["nvidia.com/gpu"] > 0


def test_a_flavor_of_the_example_is_none_that_is_already_there() -> None:
    # A flavor's topology cannot be changed: going from the one set of queues to the other would be refused.
    assert not set(kueue("kueue", "ResourceFlavor")) & set(kueue("examples/three-teams", "ResourceFlavor"))


def test_the_older_of_two_equal_trainings_goes_first_in_a_team() -> None:
    queues = kueue("examples/three-teams", "ClusterQueue").values()
    assert {queue["preemption"]["withinClusterQueue"] for queue in queues} == {"LowerOrNewerEqualPriority"}


def test_three_teams_own_128_gpus_together_and_take_back_what_they_lend() -> None:
    queues = kueue("examples/three-teams", "ClusterQueue")
    own = {name: int(queue["resourceGroups"][0]["flavors"][0]["resources"][2]["nominalQuota"]) for name, queue in queues.items()}
    assert own == {"team-search": 48, "team-recommendations": 48, "team-research": 32}
    assert {queue["cohortName"] for queue in queues.values()} == {"gpus"}
    assert {queue["preemption"]["reclaimWithinCohort"] for queue in queues.values()} == {"Any"}


CLUSTER = load_cluster(ROOT / "placement.yaml")


def launch(stage: str) -> Launch:
    return Launch(name="n", pipeline="p", stage=stage, owner="o", attempt_id="a", request_uri="u", nodes=2)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector takes a pod, as Kubernetes does for the two forms that are used here."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    expressions = selector.get("matchExpressions", [])
    assert {expression["operator"] for expression in expressions} <= {"In"}
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def test_nobody_but_trainings_reaches_a_stage_and_no_stage_reaches_a_metadata_address() -> None:
    policy = named("NetworkPolicy")["spec"]
    assert policy["podSelector"] == {}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert set(peer) == {"podSelector"}
    admitted = {stage for stage in ALL_STAGES if selects(peer["podSelector"], labels_of(launch(stage), CLUSTER))}
    assert admitted == TRAININGS
    assert not selects(peer["podSelector"], {"nightshift.io/stage": "train"}), "a pod of another project"
    blocks = [peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]},
        {"cidr": "::/0", "except": ["fd00:ec2::254/128"]},
    ]
    assert {"namespaceSelector": {}} in [peer for rule in policy["egress"] for peer in rule["to"]]


def test_mlflow_is_at_the_address_that_stages_are_given_and_sees_no_variables_of_services() -> None:
    deployment, service = named("Deployment"), named("Service")
    place = service["metadata"]
    (port,) = service["spec"]["ports"]
    assert CLUSTER.environment["MLFLOW_TRACKING_URI"] == f"http://{place['name']}.{place['namespace']}.svc:{port['port']}"
    assert deployment["metadata"]["namespace"] == place["namespace"]
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert port["targetPort"] in [each["name"] for each in template["spec"]["containers"][0]["ports"]]
    # Beside this Service they would be MLFLOW_PORT=tcp://…, which MLflow's command line reads.
    assert template["spec"]["enableServiceLinks"] is False
    assert violations(template["spec"], template["metadata"]) == []


def test_mlflow_is_given_all_that_its_script_reads() -> None:
    script = (CHECKOUT / "docker" / "compose" / "mlflow-server.sh").read_text(encoding="utf-8")
    read = set(re.findall(r"\$\{([A-Z_]+)(?::-)?\}", script)) | {"MLFLOW_FLASK_SERVER_SECRET_KEY"}
    page = (CHECKOUT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (secret,) = re.findall(r"^kubectl create secret generic mlflow -n airflow .*(?:\n  .*)*", page, re.MULTILINE)
    container = named("Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = set(re.findall(r"--from-literal=([A-Z_]+)=", secret)) | {variable["name"] for variable in container["env"]}
    assert given == read | {"AWS_REGION"}


def test_the_namespace_enforces_the_restricted_profile() -> None:
    labels = named("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_stages_have_no_token() -> None:
    assert named("ServiceAccount")["automountServiceAccountToken"] is False


def test_the_cluster_file_to_begin_with_is_read_and_names_what_the_manifests_make() -> None:
    cluster = load_cluster(ROOT / "placement.yaml")
    assert cluster.namespace == named("Namespace")["metadata"]["name"]
    assert cluster.service_account == named("ServiceAccount")["metadata"]["name"]
    made = {document["metadata"]["name"] for _, document in documents() if document["kind"] == "PriorityClass"}
    assert set(cluster.priorities.values()) == made


@pytest.mark.parametrize(
    ("folder", "made"),
    [
        (".", {"Namespace": 1, "Role": 1, "RoleBinding": 1, "NetworkPolicy": 1, "PriorityClass": 3, "ResourceQuota": 1}),
        ("mlflow", {"Deployment": 1, "Service": 1}),
        ("kueue", {"ClusterQueue": 2, "LocalQueue": 2, "ResourceFlavor": 5, "Topology": 2, "WorkloadPriorityClass": 3}),
        ("examples/three-teams", {"ClusterQueue": 3, "LocalQueue": 3, "ResourceFlavor": 1, "WorkloadPriorityClass": 3}),
    ],
)
def test_kustomize_builds_it(folder: str, made: dict[str, int]) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not at hand")
    built = subprocess.run(["kubectl", "kustomize", str(ROOT / folder)], capture_output=True, text=True, check=False)  # noqa: S607
    assert built.returncode == 0, built.stderr
    assert made.items() <= Counter(document["kind"] for document in yaml.safe_load_all(built.stdout)).items()


def test_every_manifest_is_in_a_kustomization() -> None:
    listed = set()
    for path in ROOT.rglob("kustomization.yaml"):
        for resource in yaml.safe_load(path.read_text(encoding="utf-8"))["resources"]:
            target = (path.parent / resource).resolve()
            assert target.exists()
            listed.add(target)
    assert {path for path, _ in documents()} <= listed
