"""The training of `lightgbm`: rows are binned from the mapped shards, without a copy of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import lightgbm
import numpy as np
from numpy.typing import NDArray

from training.data.dataset.mapped_shards import MappedShards
from training.errors import DataError, PreemptedError
from training.models.boosting_rounds import Rounds
from training.models.shard_rows import labels_of, num_classes, shards_of
from training.process import liveness

if TYPE_CHECKING:
    from training.contracts import JsonValue
    from training.models.base import FitContext

OBJECTIVES: Final = {
    "binary": ("binary", "binary_logloss"),
    "ranking": ("lambdarank", "ndcg"),
    "multiclass": ("multiclass", "multi_logloss"),
    "regression": ("regression", "rmse"),
}
"""Task to the objective and the loss that early stopping goes by."""
OF_SETTINGS: Final = {"quantile": ("quantile", "quantile"), "poisson": ("poisson", "poisson"), "log": ("regression", "rmse")}
"""The same for `settings.objective`."""
NDCG_CUT: Final = 10
MAX_GRADE: Final = 30
"""LightGBM's largest grade of a ranked row."""
BATCH_ROWS: Final = 65_536


class BoostingRows(lightgbm.Sequence):  # type: ignore[misc]
    """A shard's rows for LightGBM, ids as numbers."""

    batch_size = BATCH_ROWS

    def __init__(self, shards: MappedShards, shard: int) -> None:
        self._shards, self._shard = shards, shard

    def __len__(self) -> int:
        return self._shards.shard_rows[self._shard]

    def __getitem__(self, rows: Any) -> Any:
        liveness.moved()
        if isinstance(rows, slice):
            return self._features(rows)
        number = int(rows)
        return self._features(slice(number, number + 1))[0]

    def _features(self, rows: slice) -> NDArray[np.float64]:
        return self._shards.block(self._shard, rows)[0].astype(np.float64)


def boost(context: FitContext) -> tuple[lightgbm.Booster, JsonValue, Rounds]:
    """Boost to the last round; return the booster, what `Family.load` needs besides it, and the rounds.

    Raises:
        DataError: labels that the objective does not take; see `training.models.shard_rows`.
        PreemptedError: `train.preempted`.
    """
    parameters = _parameters(context)
    shards = shards_of(context)
    run = Rounds(context)
    with liveness.phase("part", "bins"):
        categorical = bool(context.spec.train.settings["categorical"])
        train = dataset_of(shards["train"], parameters, categorical=categorical)
        validation = dataset_of(shards["validation"], parameters, categorical=categorical, reference=train)
        booster = lightgbm.Booster(parameters, train)
        booster.add_valid(validation, "validation")
    while run.num_rounds < context.spec.train.epochs and not run.is_over:
        with liveness.phase("step", f"round {run.num_rounds + 1}"):
            is_finished = booster.update()
            losses = [_loss(found) for found in (booster.eval_train(), booster.eval_valid())]
        run.record(*losses)
        if run.is_stopped and run.num_rounds < context.spec.train.epochs and not run.is_over:
            message = f"stopped after round {run.num_rounds}; LightGBM begins again"
            raise PreemptedError("train.preempted", message)
        if is_finished:
            # No tree has a split with a gain: all further ones would be the same.
            break
    return booster, parameters["objective"], run


def dataset_of(
    rows: MappedShards, parameters: Mapping[str, JsonValue], *, categorical: bool, reference: lightgbm.Dataset | None = None
) -> lightgbm.Dataset:
    """Return the binned rows of a split; bins are those of `reference`, the training rows, where it is given."""
    shards = range(len(rows.cells))
    weights = [rows.weights(shard, slice(None)) for shard in shards]
    found = lightgbm.Dataset(
        [BoostingRows(rows, shard) for shard in shards],
        label=np.concatenate([rows.labels(cells) for cells in rows.cells]),
        reference=reference,
        weight=np.concatenate([part for part in weights if part is not None]) if rows.is_weighted else None,
        group=_group_sizes(rows) if rows.has_group else None,
        categorical_feature=list(range(rows.num_floats, len(rows.features))) if categorical else [],
        params=dict(parameters),
        free_raw_data=True,
    )
    return found.construct()


def _group_sizes(rows: MappedShards) -> NDArray[np.int32]:
    """Return the rows of each group, in their order; no shard divides one."""
    sizes = []
    for cells in rows.cells:
        group = cells[:, -1]
        edges = np.flatnonzero(group[1:] != group[:-1]) + 1
        sizes.append(np.diff(np.concatenate([[0], edges, [len(group)]])))
    return np.concatenate(sizes).astype(np.int32)


def _loss(evaluated: list[tuple[str, str, float, bool]]) -> float:
    ((_, _, value, is_gain),) = evaluated
    # Of a gain, higher is better; everything here goes by losses.
    return -value if is_gain else value


def _parameters(context: FitContext) -> dict[str, Any]:
    train, task = context.spec.train, context.spec.evaluate.task
    settings = dict(train.settings)
    named, alpha, max_depth, _ = (settings.pop(key) for key in ("objective", "quantile_alpha", "max_depth", "categorical"))
    objective, metric = OBJECTIVES[task] if named is None else OF_SETTINGS[named]
    if task == "ranking":
        _check_grades(labels_of(context))
    return {
        "objective": objective,
        "metric": metric,
        "eval_at": [NDCG_CUT],
        **({"num_class": num_classes(labels_of(context))} if task == "multiclass" else {}),
        **({"alpha": alpha} if alpha is not None else {}),
        "max_depth": -1 if max_depth is None else max_depth,
        # Without a frequency, LightGBM ignores the fraction.
        "bagging_freq": int(settings["bagging_fraction"] < 1),
        "learning_rate": train.learning_rate,
        **settings,
        "seed": train.seed,
        # Histograms are summed by thread: another number can round otherwise.
        "num_threads": train.threads_per_process,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def _check_grades(labels: NDArray[np.float32]) -> None:
    """Check that the labels of a ranking are grades that LightGBM takes.

    Raises:
        DataError: `label.not_a_grade`.
    """
    wrong = labels[~((labels >= 0) & (labels <= MAX_GRADE) & (labels == np.floor(labels)))]
    if len(wrong):
        message = f"{len(wrong)} of {len(labels)} labels are not a grade from 0 to {MAX_GRADE}, the first is {wrong[0]:g}"
        raise DataError("label.not_a_grade", message, hint="derive a whole number in data.source.derive, or use train.model: boosted_trees")
