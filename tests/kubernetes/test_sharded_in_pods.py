"""A model that two processes hold in parts, on a real cluster: in one pod, and as a gang of two pods of which one is evicted."""

from __future__ import annotations

import pytest

from tests.chaos.test_kills import resumed
from tests.kubernetes.cluster_installation import ClusterInstallation
from tests.kubernetes.test_kills_in_pods import NIGHT, PIPELINE, evict, start, weights

pytestmark = [pytest.mark.kubernetes, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

SHARDED = {"  precision: auto": "  parallel: {shard: 2}\n  precision: auto"}


@pytest.fixture(scope="module")
def undisturbed(on_cluster: ClusterInstallation) -> str:
    """Digest of the weights of a sharded training in a single pod of two processes, that nobody disturbs."""
    name = on_cluster.copy_with_placement(PIPELINE, "sharded_ranking", {"nodes": 1, "processes_per_node": 2, "cpus": 0.8}, **SHARDED)
    return str(weights(on_cluster, name, on_cluster.trigger(name, NIGHT)).scalars["weights_digest"])


def test_sharded_gang_of_two_pods_resumes_after_an_eviction_with_the_bits_of_one_pod(
    on_cluster: ClusterInstallation, undisturbed: str
) -> None:
    name = on_cluster.copy_with_placement(PIPELINE, "sharded_gang", {"nodes": 2, "processes_per_node": 1, "cpus": 0.4}, **SHARDED)
    run_id = start(on_cluster, name)
    evict(on_cluster, name)
    result = weights(on_cluster, name, run_id)
    assert result.scalars["weights_digest"] == undisturbed
    assert result.attempts == 2
    assert resumed(on_cluster, result, name)
    newest = on_cluster.store.work_folder(name, "train", result.work_id).chain().history()
    (saved, *_) = [entry.value["payload"] for entry in reversed(newest) if entry.value["kind"] == "checkpoint"]
    tensors = on_cluster.store.manifests.get(saved["uri"], kind="checkpoint").meta["tensors"]
    assert {chunk["rank"] for entry in tensors.values() for chunk in entry["chunks"]} == {0, 1}
