"""Names in paths and queries, as narrow as what they name: an odd one is refused before anything is asked for it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path

from nightshift.run_refs import RUN_ID_RULE
from training.spec.scalar_types import NAME_RULE

PipelineName = Annotated[str, Path(pattern=f"^{NAME_RULE}$", description="The pipeline's name.", examples=["search_ranking"])]
RunId = Annotated[
    str,
    Path(pattern=f"^{RUN_ID_RULE}$", description="Airflow's id of the run.", examples=["scheduled__2026-02-01T02:00:00+00:00"]),
]
RunKey = Annotated[
    str,
    Path(
        pattern=rf"^{NAME_RULE}:{RUN_ID_RULE}$",
        description="`id` of a run: `<pipeline>:<run_id>`, percent-encoded.",
        examples=["search_ranking:scheduled__2026-02-01T02:00:00+00:00"],
    ),
]
ModelName = Annotated[str, Path(pattern=f"^{NAME_RULE}$", description="The model's name.", examples=["search_ranking"])]
VERSION_RULE: Final = r"([0-9]{1,9}(\.[0-9]{1,9}\.[0-9]{1,9})?|[0-9a-f]{12,64})"
VersionName = Annotated[
    str,
    Path(
        pattern=f"^{VERSION_RULE}$",
        description="Semantic version, first 12 or more digits of the weights' digest, or number in MLflow.",
        examples=["1.2.0"],
    ),
]
CheckpointName = Annotated[
    str,
    Path(
        pattern=r"^((epoch_|step_)?[0-9]{1,9}|best|newest)$",
        description="`epoch_3` or `3`, `step_400`, `best`, `newest`.",
        examples=["epoch_3"],
    ),
]
DecisionKey = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="`key` of a decision.")]
SnapshotVersion = Annotated[
    str, Path(pattern=r"^[0-9a-f]{16}([0-9a-f]{48})?$", description="Version of a snapshot, or its digest.", examples=["0a1b2c3d4e5f6071"])
]
TrialNumber = Annotated[int, Path(ge=0, lt=100_000, description="Number of a trial in its study, from 0.", examples=[3])]
