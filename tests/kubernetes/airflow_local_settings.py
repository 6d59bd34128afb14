"""Airflow's local settings on a cluster: stages of pipelines named `hanging…` have the ConfigMap `hanging` on their Python path."""

from __future__ import annotations

from kubernetes.client import V1ConfigMapVolumeSource, V1EnvVar, V1Pod, V1Volume, V1VolumeMount

FOLDER = "/opt/hanging"


def pod_mutation_hook(pod: V1Pod) -> None:
    if pod.metadata.labels["nightshift.io/pipeline"].startswith("hanging"):
        (container,) = pod.spec.containers
        pod.spec.volumes.append(V1Volume(name="hanging", config_map=V1ConfigMapVolumeSource(name="hanging")))
        container.volume_mounts.append(V1VolumeMount(name="hanging", mount_path=FOLDER))
        container.env.append(V1EnvVar(name="PYTHONPATH", value=f"/opt/nightshift:{FOLDER}"))
