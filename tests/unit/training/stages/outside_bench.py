"""A prepared dataset, and models that are made of it without Nightshift's trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xgboost
from numpy.typing import NDArray

from tests.unit.training.stages.evaluate_bench import EvaluateBench
from training.contracts import ExitCode, StageResult
from training.data.dataset.reader import DatasetReader
from training.data.features.transforms import FittedTransforms, Matrix
from training.data.join.contract import LABEL
from training.spec import PipelineSpec
from training.spec.registration import Registration, registered_spec
from training.store import WorkFolder


class OutsideBench(EvaluateBench):
    """Its runs judge a model from outside once there is a registration."""

    registration: Registration | None = None

    def spec_of(self, replaced: Mapping[str, str]) -> PipelineSpec:
        spec = super().spec_of(replaced)
        return spec if self.registration is None else registered_spec(spec, self.registration)

    def register(
        self, data: bytes, format_name: str, *, transforms: bytes | None = None, work: str, **more: Any
    ) -> tuple[ExitCode, WorkFolder]:
        """Import a file; return how the stage ended, and where."""
        values = {"artifact_uri": "${MODELS_URI}/17/model", "format": format_name, **more}
        self.registration = Registration.model_validate(values)
        files = {"artifact": data, **({} if transforms is None else {"transforms.json": transforms})}
        meta = {**self.registration.model_dump(mode="json", exclude_none=True), "sha256": "0" * 64}
        uri, _ = self.store.manifests.put_files("artifact", files, meta)
        self.spec = self.spec_of({})
        return self.attempt("train", {"dataset": self.dataset_uri}, {"world_size": 1, "artifact": uri}, work)

    def registered(self, data: bytes, format_name: str, *, work: str = "outside", **more: Any) -> StageResult:
        """Import a file that is taken."""
        ended, work_folder = self.register(data, format_name, work=work, **more)
        assert ended is ExitCode.DONE, work_folder.error("a1")
        result = work_folder.result()
        assert result is not None
        return result

    def refused(self, data: bytes, format_name: str, *, work: str, **more: Any) -> Mapping[str, Any]:
        """Return the error of a file that is refused."""
        ended, work_folder = self.register(data, format_name, work=work, **more)
        assert ended in (ExitCode.BAD_DATA, ExitCode.BAD_SPEC), ended
        assert work_folder.result() is None
        error = work_folder.error("a1")
        assert error is not None
        return error

    @property
    def transforms(self) -> FittedTransforms:
        """Those of the dataset."""
        manifest = self.store.manifests.get(self.dataset_uri, kind="dataset")
        return FittedTransforms.from_json(self.store.manifests.read(manifest, "transforms.json"))

    def raw(self, folder: Path, split: str) -> pd.DataFrame:
        """Return a split's rows as they were read."""
        return DatasetReader(self.store, self.store.manifests.get(self.dataset_uri), folder).rows(split)

    def cells(self, folder: Path, split: str, transforms: FittedTransforms | None = None) -> tuple[Matrix, NDArray[np.float64]]:
        """Return the input of a model and the labels of a split's rows."""
        frame = self.raw(folder, split)
        return (transforms or self.transforms).apply(frame, serving=True), frame[LABEL].to_numpy(dtype=np.float64)


def boosted(matrix: Matrix, labels: NDArray[np.float64], **parameters: Any) -> xgboost.Booster:
    """Return trees that XGBoost itself made."""
    rows = xgboost.DMatrix(matrix.as_floats(), label=labels, feature_names=[cell.name for cell in matrix.layout])
    rounds = int(parameters.pop("rounds", 12))
    return xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1, **parameters}, rows, rounds)
