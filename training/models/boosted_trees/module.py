"""Gradient-boosted trees by XGBoost: histogram method, fixed threads, random numbers by round, so that a resumed run has the same bits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import xgboost
from numpy.typing import NDArray

from training.data.features.transforms import Matrix
from training.errors import PreemptedError, spec_error
from training.models.base import Family, FitContext, FitResult, ImportedArtifact, Scorer
from training.models.boosting_rounds import Rounds

if TYPE_CHECKING:
    from training.contracts import JsonValue
    from training.engine.checkpoint.format import Position

logger = logging.getLogger(__name__)

SCORING_THREADS: Final = 2
"""A row's score does not depend on it."""
TREE_METHOD: Final = "hist"
OBJECTIVES: Final = {
    "binary": ("binary:logistic", "logloss"),
    "ranking": ("rank:ndcg", "ndcg@10"),
    "multiclass": ("multi:softprob", "mlogloss"),
    "regression": ("reg:squarederror", "rmse"),
}
"""Task to the objective and the loss that early stopping goes by."""
OF_SETTINGS: Final = {
    "quantile": ("reg:quantileerror", "quantile"),
    "poisson": ("count:poisson", "poisson-nloglik"),
    "log": ("reg:squarederror", "rmse"),
}
"""The same for `settings.objective`."""
LOG_LABELS: Final = "log_labels"
"""Key of a model's architecture: it predicts log(1 + label)."""


class BoostedTrees(Family):
    """One boosting round is one epoch."""

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries what this file imports above, and serves no training.
        from training.models.boosted_trees.collective import joined
        from training.models.boosted_trees.matrices import matrices_of

        parameters = _parameters(context)
        run = _Rounds(context)
        with joined(context.gang), matrices_of(context, max_bin=context.spec.train.settings["max_bin"]) as matrices:
            booster = _boosted(context, parameters, matrices, run)
        architecture: dict[str, object] = {name: parameters[name] for name in ("objective", "num_class") if name in parameters}
        architecture[LOG_LABELS] = context.spec.train.settings["objective"] == "log"
        return run.result("weights.ubj", bytes(booster[: run.best_round].save_raw("ubj")), architecture)

    def imported(self, artifact: ImportedArtifact) -> FitResult:
        from training.models.boosted_trees.importing import imported_trees

        return imported_trees(artifact)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        booster = xgboost.Booster()
        booster.load_model(str(folder / "weights.ubj"))
        booster.set_param({"nthread": SCORING_THREADS})

        def score(matrix: Matrix) -> NDArray[np.float64]:
            scores = np.asarray(booster.inplace_predict(matrix.as_floats()), dtype=np.float64)
            return np.expm1(scores) if architecture.get(LOG_LABELS) else scores

        return score


def _boosted(
    context: FitContext, parameters: Mapping[str, JsonValue], matrices: Mapping[str, xgboost.DMatrix], run: _Rounds
) -> xgboost.Booster:
    """Boost to the last round. All processes get the same model: histograms and losses are summed over their rows.

    Raises:
        PreemptedError: `train.preempted`, a rank was to stop; the last round is committed.
    """
    from training.process import liveness

    train = context.spec.train
    evaluated = [(matrix, split) for split, matrix in matrices.items()]
    booster = xgboost.Booster(dict(parameters), list(matrices.values()), model_file=run.resume())
    while run.num_rounds < train.epochs and not run.is_over:
        with liveness.phase("step", f"round {run.num_rounds + 1}"):
            _forget_random_numbers(booster)
            # Not xgboost.train: it counts the rounds from 0 again when it continues a model, and seeds them so.
            booster.update(matrices["train"], run.num_rounds)
            losses = _losses(booster.eval_set(evaluated, run.num_rounds))
        run.record(*losses)
        if run.checkpoint_due:
            run.save(booster)
        if run.is_stopped and run.num_rounds < train.epochs and not run.is_over:
            run.save(booster, wait=True)
            raise PreemptedError("train.preempted", f"stopped after round {run.num_rounds}, which is committed")
    return booster


class _Rounds(Rounds):
    """Rounds, and the checkpoints of them."""

    def resume(self) -> bytearray | None:
        """Return the model of the newest usable checkpoint, None where there is none."""
        checkpoints, gang = self.context.checkpoints, self.context.gang
        entry = gang.from_first(checkpoints.newest_entry() if gang.is_first else 0)
        if entry == 0:
            return None
        restored = checkpoints.restore(entry)
        self.num_rounds, self.best_round = restored.meta["step"], restored.meta["best_round"]
        best_loss = restored.meta["best_loss"]
        self.best_loss = float("inf") if best_loss is None else best_loss
        self.history = restored.meta["history"]
        logger.info("resuming after round %d", self.num_rounds)
        return restored.bytes_of("booster")

    def save(self, booster: xgboost.Booster, *, wait: bool = False) -> None:
        """Save the model, which is the same on all ranks: rank 0 does it."""
        if not self.context.gang.is_first:
            return
        meta: Position = {
            "step": self.num_rounds,
            "epoch": self.num_rounds,
            "best_round": self.best_round,
            "best_loss": self.best_loss,
            "history": self.history,
        }
        self.context.checkpoints.save_bytes({"booster": booster.save_raw("ubj")}, meta)
        if wait:
            self.context.checkpoints.wait()

    @property
    def checkpoint_due(self) -> bool:
        return self.context.gang.is_first and self.context.checkpoints.is_due(self.num_rounds)


def _losses(evaluated: str) -> list[float]:
    """Return the training and the validation loss from the text of `Booster.eval_set`: its entries are `train-logloss:0.5`."""
    losses = []
    for entry in evaluated.split()[1:]:
        name, _, value = entry.rpartition(":")
        # Of a gain, higher is better; everything here goes by losses.
        losses.append(-float(value) if "-ndcg" in name else float(value))
    return losses


def _forget_random_numbers(booster: xgboost.Booster) -> None:
    """Make the booster's updater of trees again: it draws columns by its own generator, which no model file holds.

    With `seed_per_iteration` a new one begins with numbers of (seed, round), as it does after a resumption.
    """
    booster.set_param({"tree_method": "approx"})
    booster.save_config()
    booster.set_param({"tree_method": TREE_METHOD})


def _parameters(context: FitContext) -> dict[str, JsonValue]:
    from training.models.shard_rows import labels_of, num_classes

    train = context.spec.train
    settings = dict(train.settings)
    task = context.spec.evaluate.task
    named = settings.pop("objective", None)
    objective, metric = OBJECTIVES[task] if named is None else OF_SETTINGS[named]
    return {
        "objective": objective,
        "eval_metric": metric,
        **({"num_class": num_classes(labels_of(context))} if task == "multiclass" else {}),
        "tree_method": TREE_METHOD,
        "learning_rate": train.learning_rate,
        "colsample_bytree": settings.pop("colsample"),
        **settings,
        "seed": train.seed,
        "seed_per_iteration": True,
        # Histograms are summed by thread: another number can round otherwise.
        "nthread": train.threads_per_process,
        **_device(context),
    }


def _device(context: FitContext) -> dict[str, JsonValue]:
    """Return the parameter `device`; nothing for the CPU, XGBoost's own default.

    Raises:
        SpecError: `device.missing`, the training is to run on a GPU, for which the installed XGBoost is not built.
    """
    device = context.gang.device
    if device.type == "cpu":
        return {}
    if not xgboost.build_info()["USE_CUDA"]:
        # It would train on the CPU, with a warning.
        message = f"the training is to run on {device.type}, and the installed XGBoost {xgboost.__version__} is built for CPUs only"
        hint = "install xgboost in place of xgboost-cpu in the image of the training, or remove train.placement.gpus"
        raise spec_error("train.placement", "device.missing", message, hint=hint, field="train.placement.gpus")
    return {"device": f"{device.type}:{device.index or 0}"}


FAMILY = BoostedTrees()
