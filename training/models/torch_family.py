"""Base of all torch families: an own model needs `build` and `loss`."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from training.data.dataset.loader import Batch, Loader, ShardSet
from training.data.dataset.shard_format import FeatureEntry
from training.errors import spec_error
from training.models.base import Family, FitContext, FitResult, ImportedArtifact, Scorer

if TYPE_CHECKING:
    from training.contracts import JsonObject
    from training.data.dataset.manifest import DatasetMeta
    from training.data.features.transforms import Matrix
    from training.engine.optim import Schedule
    from training.engine.optimizers import OptimizerSettings
    from training.engine.parallel.gang import Gang
    from training.engine.parallel.single_process import Alone
    from training.engine.parallel.strategy import Strategy
    from training.engine.watcher import Watcher
    from training.large.compression import Compression
    from training.large.tensor_plan import TensorPlan
    from training.spec import PipelineSpec
    from training.spec.layout import Layout
    from training.spec.sections.train import Train

SCORED_ROWS: Final = 65_536
"""Rows scored at a time: a fixed number, so that sums do not depend on the number of requested rows."""
MIN_NORM_UNITS: Final = 4
"""Rows, or groups, of a full batch in each part that a batch norm sees."""


class TorchArchitecture(TypedDict):
    """What a torch module is built from, as JSON in a model's `model.json`."""

    features: list[FeatureEntry]
    bias_features: list[str]
    """Those that have a constant value when the model scores."""
    settings: JsonObject
    """`train.settings` of the spec."""


class TorchFamily(Family):
    """A torch module trained by the loop of `training.engine`."""

    link: Literal["identity", "sigmoid"] = "identity"
    """What turns the module's output into a score."""

    learns_whole_labels: bool = False
    """Whether `loss` needs whole labels, as one of counts does. Else those that float32 would round are the difference from their mean."""

    counts_weights: bool = False
    """Whether `loss` multiplies each row's loss by `batch["weight"]`, where the batch has it. Without, weights are refused."""

    @abstractmethod
    def build(self, architecture: TorchArchitecture) -> nn.Module:
        """Return a fresh module. It is called with a batch and returns [n] float32."""

    @abstractmethod
    def loss(self, module: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss summed over the batch's units: rows, each times its weight where there are weights, or groups."""

    @staticmethod
    def architecture_of(spec: PipelineSpec, features: Sequence[FeatureEntry]) -> TorchArchitecture:
        """Return what `build` needs: settings of the spec, and the model's input, floats first."""
        plans = spec.prepare.features
        return {
            "features": list(features),
            "bias_features": [e["name"] for e in features if (plan := plans.get(e["name"])) is not None and plan.serve_as is not None],
            "settings": dict(spec.train.settings),
        }

    def muon_parameters(self, module: nn.Module) -> Collection[str]:
        """Return the names of the 2-D parameters that `train.optimizer: muon` updates; AdamW updates the others.

        Without an override: the weights of hidden `nn.Linear` and attention layers, not embeddings and not the last `nn.Linear`
        (`training.engine.optimizers.hidden_matrices`).
        """
        from training.engine.optimizers import hidden_matrices

        return hidden_matrices(module)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Return the repeated blocks of a model, in its order: of these, `train.activation_checkpointing` does not keep the activations.

        Without an override: the members of ModuleLists and Sequentials that consist of several layers
        (`training.engine.activations.repeated_blocks`).
        """
        from training.engine.activations import repeated_blocks

        return list(repeated_blocks(module))

    def tensor_plan(self, module: nn.Module) -> TensorPlan | None:
        """Return how `train.parallel: {tensor: n}` divides the layers of a model: by the name of a module, `column`, `row`, ….

        Without an override there is no plan, and the layout is refused. See `training.large.tensor_plan` and
        docs/large-models.md. It is called before the model is divided, and must not change it.
        """
        return None

    def pipeline_stages(self, module: nn.Module, num_stages: int) -> Sequence[nn.Module] | None:
        """Return the stages into which `train.parallel: {pipeline: n}` cuts a model: modules that share their layers with it.

        The first is called with the batch, each other one with what the one before it returned: one floating-point tensor, whose dimension
        0 is the rows of the batch and whose other sizes are the same for every batch. The last returns what the model returns; `loss` is
        then called with a module that returns it for the batch, and has no other attributes. Each tensor of the model's state is in one
        stage, and each stage has parameters. Each process keeps the values of its own stage alone.

        Without an override there are none, and the layout is refused. See docs/large-models.md.
        """
        return None

    def fit(self, context: FitContext) -> FitResult:
        # Imported here: a registered model carries this file, and scoring needs no loop, store or spec.
        from training.engine.activations import checkpoint_activations
        from training.engine.loop import Loop, Parts
        from training.models.strategy_choice import strategy_for
        from training.spec.sections.train import Parallel

        train = context.spec.train
        self.check_task(train.model, context.spec.evaluate.task)
        self._check_weights(context.spec)
        layout = context.layout or train.layout_for(context.gang.world_size)
        strategy = strategy_for(
            context.gang,
            precision=train.precision,
            layout=layout,
            compression=_compression(train),
            tensor_plan=functools.partial(self._asked_tensor_plan, train.model),
            cut=functools.partial(self._asked_stages, train.model),
            schedule=train.parallel.schedule if isinstance(train.parallel, Parallel) else "1f1b",
        )
        architecture = self.architecture_of(context.spec, context.dataset_meta["layout"]["features"])
        torch.manual_seed(train.seed)
        module = self.build(architecture)
        if train.activation_checkpointing != "none":
            checkpoint_activations(self.blocks(module), train.activation_checkpointing)
        loader = self._loader(context, "train", strategy)
        _check_batch_norm(module, loader, train, strategy.num_data_ranks)
        loop = Loop(
            Parts(
                module=module,
                loss=self.loss,
                loader=loader,
                validation=self._loader(context, "validation", strategy),
                strategy=strategy,
                checkpoints=context.checkpoints,
                tracker=context.tracker,
                stop=context.stop,
                progress=context.progress,
                seed=train.seed,
                epochs=train.epochs,
                schedule=functools.partial(_schedule, train),
                optimizer=self.optimizer_settings(train, module),
                early_stopping=train.early_stopping,
                refit_epochs=context.refit_epochs,
                watchers=_watchers(context, strategy),
                judge=context.judge,
            )
        )
        loop.train()
        return FitResult(
            weights_name="weights.safetensors",
            weights=save({name: tensor.contiguous() for name, tensor in sorted(strategy.whole(loop.best).items())}),
            architecture=architecture,
            best_epoch=loop.progress.best_epoch,
            validation_loss=loop.progress.best_loss,
            history=loop.progress.history,
            num_steps=loop.progress.step,
            whole_labels=self.learns_whole_labels,
            scalars=loop.scalars(),
        )

    def imported(self, artifact: ImportedArtifact) -> FitResult:
        from training.models.torch_importing import imported_weights

        self.check_task(artifact.spec.train.model, artifact.spec.evaluate.task)
        return imported_weights(self, artifact)

    def layout(self, spec: PipelineSpec, gang: Gang | Alone, dataset_path: Path, dataset_meta: DatasetMeta) -> Layout:
        from training.spec.key_types import AUTO

        if spec.train.parallel != AUTO or gang.world_size == 1:
            return spec.train.layout_for(gang.world_size)
        # Imported here: a plan needs fake tensors.
        from training.data.dataset.mapped_shards import MappedShards
        from training.engine.parallel.single_process import Alone
        from training.models.training_plan import chosen_layout
        from training.process import liveness

        if isinstance(gang, Alone):
            raise TypeError("a torch family trains in a Gang, not in a Alone")
        shards = MappedShards(dataset_path, dataset_meta, "train") if spec.data.group is not None else None
        rows_of_a_group = None if shards is None else max(1, shards.num_rows // max(1, sum(shards.shard_units)))
        with liveness.phase("start", "layout"):
            return chosen_layout(self, spec, gang, dataset_meta["layout"]["features"], rows_of_a_group=rows_of_a_group)

    def load(self, folder: Path, architecture: Mapping[str, object]) -> Scorer:
        module = self.build(cast(TorchArchitecture, architecture))
        module.load_state_dict(load_file(folder / "weights.safetensors"))
        module.eval()

        def score(matrix: Matrix) -> NDArray[np.float64]:
            scores = np.empty(len(matrix.cells), dtype=np.float64)
            with torch.inference_mode():
                for start in range(0, len(scores), SCORED_ROWS):
                    rows = slice(start, start + SCORED_ROWS)
                    floats = torch.from_numpy(np.ascontiguousarray(matrix.floats[rows]))
                    ints = torch.from_numpy(np.ascontiguousarray(matrix.ints[rows]))
                    output = module({"features_float": floats, "features_int": ints})
                    scores[rows] = (torch.sigmoid(output) if self.link == "sigmoid" else output).double().numpy()
            return scores

        return score

    def optimizer_settings(self, train: Train, module: nn.Module) -> OptimizerSettings:
        """Return the optimizer that the section `train` names, for the module's parameters.

        Raises:
            SpecError: `optimizer.muon`.
        """
        from training.engine.optimizers import OptimizerSettings, check_matrices

        muon = check_matrices(module, self.muon_parameters(module)) if train.optimizer == "muon" else frozenset()
        return OptimizerSettings(name=train.optimizer, weight_decay=train.weight_decay or 0.0, momentum=train.momentum, muon=muon)

    def check_task(self, model: str, task: str) -> None:
        """Refuse a task that `load` cannot score, before hours of training end in an evaluation that fails."""
        if task == "multiclass" and type(self).load is TorchFamily.load:
            message = f"{model} gives one number per row, and the task multiclass needs a probability per class"
            hint = "set train.model: boosted_trees; or override `load` in the class so that its scorer returns [rows, classes]"
            raise spec_error("train.model", "model.task", message, hint=hint)

    def _check_weights(self, spec: PipelineSpec) -> None:
        """Refuse weights that the loss would not count."""
        keys = [("data.weight", spec.data.weight), ("train.class_weight", spec.train.class_weight)]
        given = [key for key, value in keys if value is not None]
        if given and not self.counts_weights:
            message = f"{given[0]} is set, and the loss of {spec.train.model} does not count weights"
            hint = f'multiply by batch["weight"] in `loss` and set counts_weights = True in the class; or remove {" and ".join(given)}'
            raise spec_error("train.model", "model.weight", message, hint=hint)

    def _asked_tensor_plan(self, model: str, module: nn.Module) -> TensorPlan:
        plan = self.tensor_plan(module)
        if plan is None:
            from training.large.tensor_plan import no_plan

            raise no_plan(model)
        return plan

    def _asked_stages(self, model: str, module: nn.Module, num_stages: int) -> Sequence[nn.Module]:
        stages = self.pipeline_stages(module, num_stages)
        if stages is None:
            from training.large.pipeline_cut import no_cut

            raise no_cut(model, num_stages)
        return stages

    def _loader(self, context: FitContext, split: str, strategy: Strategy) -> Loader:
        """Return the loader of this data rank's share; a group's rows are never divided between ranks."""
        from training.models.shard_rows import class_weights_of
        from training.spec.sections.train import DEFAULT_BATCH_SIZE

        shards = ShardSet(
            context.dataset_path,
            context.dataset_meta,
            split,
            class_weights=class_weights_of(context),
            whole_labels=self.learns_whole_labels,
        )
        return Loader(
            shards,
            dataset_digest=context.dataset_digest,
            seed=context.spec.train.seed,
            batch_size=context.spec.train.batch_size or DEFAULT_BATCH_SIZE,
            micro_batch_size=context.spec.train.micro_batch_size,
            rank=strategy.data_rank,
            world_size=strategy.num_data_ranks,
            shuffle=split == "train",
        )


def _check_batch_norm(module: nn.Module, loader: Loader, train: Train, num_ranks: int) -> None:
    """Refuse batches of which a part may have a single row: a batch norm divides by the deviation of the rows that it sees."""
    if loader.units_per_part >= MIN_NORM_UNITS or not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    keys = {"train.batch_size": MIN_NORM_UNITS * num_ranks}
    if train.micro_batch_size is not None:
        keys["train.micro_batch_size"] = MIN_NORM_UNITS
    message = (
        f"the model has a batch norm, which sees {loader.units_per_part} rows or groups at a time on {num_ranks} ranks: it needs "
        f"{MIN_NORM_UNITS} in a full batch, so that two are left of a short one"
    )
    wanted = " and ".join(f"{key} to {loader.rows_for(units)} or more" for key, units in keys.items())
    hint = f"set {wanted}, or use a norm of the row's own values (nn.LayerNorm)"
    raise spec_error("train.batch_size", "model.batch_norm", message, hint=hint)


def _schedule(train: Train, total_steps: int) -> Schedule:
    from training.engine.optim import Schedule

    if train.learning_rate is None:
        raise TypeError("train.learning_rate is None: the spec's rules require it")
    return Schedule(
        learning_rate=train.learning_rate,
        total_steps=total_steps,
        kind=train.schedule,
        warmup_steps=train.warmup_steps,
        warmup_share=train.warmup_share,
    )


def _watchers(context: FitContext, strategy: Strategy) -> Sequence[Watcher]:
    train = context.spec.train
    if context.gang.world_size == 1 or (train.replica_check_steps == 0 and train.straggler_ratio is None):
        return ()
    # Imported here: a training that compares no processes needs none of it.
    from training.large.watchers import watchers_for

    return watchers_for(
        strategy,
        checkpoints=context.checkpoints,
        tracker=context.tracker,
        note_straggler=context.note_straggler,
        replica_check_steps=train.replica_check_steps,
        straggler_ratio=train.straggler_ratio,
    )


def _compression(train: Train) -> Compression | None:
    if train.gradient_compression == "none":
        return None
    from training.large.compression import POWERSGD_RANK, Compression

    return Compression(kind=train.gradient_compression, rank=train.powersgd_rank or POWERSGD_RANK)
