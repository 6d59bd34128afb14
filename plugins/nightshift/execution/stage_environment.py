"""The environment of a stage's process on this machine: an allow-list, by name, of what the stage reads.

No stage gets a token, a webhook or its secret, a database or a key of Airflow's, or the account of a service that it does not open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from nightshift.settings import Settings
from nightshift.slots import stage_share_bytes
from training.installation import MODEL_PATH, OF_CLOUDS, OF_LIBRARIES, OF_STAGES, OF_SYSTEM, STOP_NOTICE, THREADS, Variable
from training.runtime.stage_memory import STAGE_MEMORY
from training.spec import PipelineSpec
from training.spec.descriptors.sources import SOURCES
from training.stage_table import TABLE, TRAININGS, Need

WAIT_POLICY: Final = Variable(
    name="OMP_WAIT_POLICY",
    default="`PASSIVE`",
    set_by="others",
    meaning="OpenMP: whether threads that wait sleep or spin (docs/performance.md)",
)
GLOO_INTERFACE: Final = Variable(
    name="GLOO_SOCKET_IFNAME", default="`lo`", set_by="others", meaning="gloo: network device by which the ranks of a training meet"
)
MEBIBYTE: Final = 2**20
GRACE_SECONDS: Final = 4.0
"""Between TERM and KILL: Airflow leaves five."""
OF_TRAININGS: Final = ("NCCL_", "GLOO_")
OF_MLFLOW: Final = ("MLFLOW_TRACKING_", "MLFLOW_HTTP_REQUEST_", "MLFLOW_S3_")
"""Of its clients; those of its server are in none."""


def stage_environment(settings: Settings, stage: str, spec: PipelineSpec, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a stage sees of this process's environment, and what is set for it.

    Args:
        spec: with its places resolved: a stage needs none of their variables.
        inherited: absent: the environment of this process.
    """
    source = os.environ if inherited is None else inherited
    services = TABLE[stage].services
    names = OF_SYSTEM | OF_STAGES | (_of_sources(spec) if stage == "ingest" else frozenset())
    prefixes = (
        *OF_LIBRARIES,
        *(OF_TRAININGS if stage in TRAININGS else ()),
        *(OF_MLFLOW if Need.MLFLOW in services else ()),
        *_clouds(settings, stage, spec),
    )
    found = {name: value for name, value in source.items() if name in names or name.startswith(prefixes)}
    if Need.DATABASE in services:
        found["NIGHTSHIFT_DATABASE"] = settings.database_url
    if Need.MLFLOW in services:
        found["MLFLOW_TRACKING_URI"] = settings.mlflow_uri
    return {
        **found,
        "NIGHTSHIFT_EXPECTATIONS": str(settings.expectations_path),
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(settings.checkout_path), MODEL_PATH.value(source)])),
        STOP_NOTICE.name: f"{GRACE_SECONDS:g}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        STAGE_MEMORY.name: STAGE_MEMORY.text(source) or f"{stage_share_bytes(settings) // MEBIBYTE}MiB",
        "OMP_NUM_THREADS": THREADS.text(source) or "1",
        # Threads that wait for each other sleep: by default they spin, on busy cores for up to 47 times the CPU of the work itself.
        "OMP_WAIT_POLICY": WAIT_POLICY.text(source) or "PASSIVE",
        # The ranks of one machine meet on its loopback, regardless of what its name resolves to.
        "GLOO_SOCKET_IFNAME": GLOO_INTERFACE.text(source) or "lo",
    }


def _of_sources(spec: PipelineSpec) -> frozenset[str]:
    """Return what the kinds of a pipeline's sources say that they read."""
    kinds = (SOURCES.get(table.kind) for _, table in spec.data.tables())
    return frozenset(name for kind in kinds if kind is not None for name in kind.variables)


def _clouds(settings: Settings, stage: str, spec: PipelineSpec) -> list[str]:
    """Return the prefixes of the clouds whose storage a stage opens: the store's, and for `ingest` those of the sources."""
    uris = [settings.store_uri, *(table.uri for _, table in spec.data.tables() if stage == "ingest" and table.uri)]
    return [prefix for scheme in sorted({urlsplit(uri).scheme for uri in uris}) if (prefix := OF_CLOUDS.get(scheme))]
