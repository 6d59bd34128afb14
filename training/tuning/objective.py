"""What a trial is judged by: the validation loss, or a metric over the validation rows. The test rows are not even fetched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from training.data.dataset.loader import ShardSet
from training.data.dataset.manifest import meta_of
from training.data.features.transforms import LayoutEntry, Matrix
from training.evaluation.custom_metrics import load_own_metrics
from training.evaluation.metrics.metric import CalledMetric, ScoredRows
from training.evaluation.metrics.registry import metric_of
from training.models.base import FitResult, load_family
from training.spec import PipelineSpec
from training.spec.rules.tuning import VALIDATION_LOSS
from training.store import Manifest
from training.tuning.records import is_minimized


def objective_value(spec: PipelineSpec, dataset_path: Path, dataset: Manifest, result: FitResult, objective: str) -> float:
    """Return the objective of a fitted model, to be minimized: of a metric of which higher is better, the negative.

    Args:
        dataset_path: local folder of the dataset's shards; the weights are written beside them.
    """
    if objective == VALIDATION_LOSS:
        return result.validation_loss
    folder = dataset_path / "fitted"
    folder.mkdir(exist_ok=True)
    (folder / result.weights_name).write_bytes(result.weights)
    score = load_family(spec.train.model).load(folder, result.architecture)
    shards = ShardSet(dataset_path, meta_of(dataset), "validation")
    batch = shards.gather([(number, np.arange(count, dtype=np.int64)) for number, count in enumerate(shards.shard_units)])
    cells = torch.cat([batch["features_float"].contiguous().view(torch.int32), batch["features_int"]], dim=1).numpy()
    layout = tuple(LayoutEntry(**entry) for entry in meta_of(dataset)["layout"]["features"])
    scores = score(Matrix(cells=np.ascontiguousarray(cells), layout=layout)) + (0.0 if result.whole_labels else shards.label_center)
    groups = batch["group"].numpy().astype(np.int64) if shards.has_group else None
    rules = spec.evaluate
    labels = batch["label"].numpy().astype(np.float64) + shards.label_center
    rows = ScoredRows(labels=labels, scores=scores, groups=groups, threshold=rules.threshold, gain=rules.gain)
    own = load_own_metrics({name: place for name, place in rules.metrics.items() if name == objective})
    value = (CalledMetric(own[objective]) if objective in own else metric_of(objective)).measured(rows)
    return value if is_minimized(objective) else -value
