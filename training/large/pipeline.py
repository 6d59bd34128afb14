"""Pipeline parallel training: each process has some of the layers, and hands activations to the next one (Huang et al., GPipe, 2019).

The micro-batches of a share go through the stages one after another; torch's schedules say in which order a stage computes forward and
backward passes (1F1B: Narayanan et al., PipeDream, 2019). All stages of a pipeline load the same rows, so that labels need not travel. With
several replicas, the gradients of a stage are added up over them once for each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from training.data.dataset.loader import Batch
from training.engine.optimizers import MakeMuon, whole_muon
from training.engine.parallel.gang import Gang
from training.engine.parallel.strategy import SumLoss
from training.engine.precision import autocast
from training.large.clipping import clip_divided_gradients
from training.large.divided_model import DividedModel
from training.large.mesh import DATA, PIPELINE, mesh_of
from training.large.module_buffers import saved_buffers, take_from_first
from training.large.pipeline_cut import ComputedOutput, Cut, names_of_stages, shared_gpus
from training.large.pipeline_stage import Passed, StageOfBatch, learn_passed
from training.process import liveness
from training.spec.layout import Layout

BUCKET_ITEMS: Final = 6_553_600
"""25 MiB of float32, as DDP has them."""

ScheduleName = Literal["gpipe", "1f1b"]


class PipelinedModel(DividedModel):
    """The strategy of `pipeline`: each process trains and saves one stage; those of one pipeline are one data rank."""

    def __init__(self, gang: Gang, layout: Layout, *, cut: Cut, schedule: ScheduleName = "1f1b", precision: str = "fp32") -> None:
        if layout.shard > 1 or layout.tensor > 1:
            raise ValueError(f"the layout {layout.words()} divides the layers of a stage, which is not supported")
        super().__init__(gang, layout, precision=precision)
        self._cut = cut
        self._schedule_name = schedule
        self._stage_number = self.stage_number(gang.rank)
        self._names: list[list[str]] = []
        self._shapes: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._passed: Passed | None = None
        self._schedule: PipelineScheduleSingle | None = None
        self._num_rows = 1

    def stage_number(self, rank: int) -> int:
        return rank // self._layout.data

    @property
    def _is_last(self) -> bool:
        return self._stage_number == self._layout.pipeline - 1

    def place(self, module: nn.Module) -> Mapping[str, nn.Parameter]:
        """See `Strategy.place`.

        Raises:
            SpecError: `parallel.pipeline_stages`, `parallel.shared_gpu`; what `cut` raises.
        """
        if self.gang.device.type == "cuda" and dist.get_backend() == "gloo":
            raise shared_gpus()
        stages = list(self._cut(module, self._layout.pipeline))
        self._names = names_of_stages(module, stages, self._layout.pipeline)
        self._module = module
        self._shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}
        mesh = mesh_of(self.gang, self._layout)
        self._stages, self._replicas = mesh.get_group(PIPELINE), mesh.get_group(DATA)
        stage = stages[self._stage_number]
        own = {id(tensor) for tensor in [*stage.parameters(), *stage.buffers()]}
        # In place: a stage and the model share tensors, and modules of both must go on to share them.
        for tensor in [*stage.parameters(), *stage.buffers()]:
            tensor.data = tensor.data.to(self.gang.device)
        for tensor in [*module.parameters(), *module.buffers()]:
            if id(tensor) not in own:
                tensor.data = torch.empty(0, dtype=tensor.dtype)
        self._parameters = {name: parameter for name, parameter in module.named_parameters() if id(parameter) in own}
        self._stage = StageOfBatch(stage, self._stage_number, self._layout.pipeline, precision=self.precision, device=self.gang.device)
        self._buffers = saved_buffers(stage) if self._layout.data > 1 else []
        with self.gang.collectives():
            self._copy_from_first_replica([*stage.parameters(), *stage.buffers()])
        return self._parameters

    def backward(self, batches: Sequence[Batch], loss: SumLoss, weight: float) -> torch.Tensor:
        with self.gang.collectives():
            take_from_first(self._buffers, self._replicas)
            self._learn(batches[0], loss)
            self._draw_own_numbers()
            totals = self._stage.set_work(batches, loss, weight)
            numbers = torch.arange(len(batches))
            self._run(numbers, max(len(batch["label"]) for batch in batches))
            if self._layout.data > 1:
                self._add_up_gradients()
            found = torch.stack(totals).sum() if self._is_last else torch.zeros(())
            # The divergence guard of every stage must see it.
            total = found.to(self.gang.device, torch.float64)
            dist.broadcast(total, group=self._stages, group_src=self._layout.pipeline - 1)
        return total

    def _learn(self, batch: Batch, loss: SumLoss) -> None:
        """Find out, before the first step or validation, what the stages hand on."""
        if self._passed is None:
            self._passed = learn_passed(self._stage, batch, loss, self._stages)

    def _run(self, numbers: torch.Tensor, num_rows: int) -> None:
        """Run the schedule over micro-batches of at most so many rows."""
        schedule = self._schedule
        if schedule is None or schedule._n_microbatches != len(numbers) or num_rows > self._num_rows:
            self._num_rows = max(num_rows, self._num_rows)
            self._schedule = schedule = self._made_schedule(len(numbers))
        self._stage.num_rows = self._num_rows
        try:
            schedule.step(target=numbers, return_outputs=False, number=numbers)
        except RuntimeError as err:
            # torch puts what a stage raises into a text of its own.
            if err.__cause__ is not None and "failed to run" in str(err).lower():
                raise err.__cause__ from None
            raise

    def _made_schedule(self, num_micro_batches: int) -> PipelineScheduleSingle:
        """Return a schedule with sizes that are known, so that stages need not tell them to each other."""
        assert self._passed is not None, "the sizes are learned first"  # noqa: S101
        takes, gives = (None if size is None else size.tensor(self._num_rows) for size in (self._passed.takes, self._passed.gives))
        stage = PipelineStage(
            self._stage,
            self._stage_number,
            self._layout.pipeline,
            self.gang.device,
            input_args=() if takes is None else (takes,),
            output_args=torch.empty((), device="meta") if gives is None else gives,
            group=self._stages,
        )
        # torch's 1F1B takes no fewer micro-batches than stages: an epoch's last batch may have them. Both give the same bits.
        is_short = num_micro_batches < self._layout.pipeline
        made = ScheduleGPipe if self._schedule_name == "gpipe" or is_short else Schedule1F1B
        return made(stage, num_micro_batches, loss_fn=lambda total, _: total, scale_grads=False)

    def _draw_own_numbers(self) -> None:
        """Let each stage but the first draw random numbers of its own: the loop seeds all stages of a pipeline alike."""
        if self._stage_number == 0:
            return
        seed = int(torch.randint(2**62, ())) + self._stage_number
        torch.default_generator.manual_seed(seed)
        if self.gang.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _add_up_gradients(self) -> None:
        """Add up the gradients of this stage over the replicas; each process has divided its own by all units."""
        parameters = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        # A parameter may have a gradient on one replica alone.
        known = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8, device=self.gang.device)
        dist.all_reduce(known, op=dist.ReduceOp.MAX, group=self._replicas)
        gradients = []
        for parameter, is_known in zip(parameters, known.tolist(), strict=True):
            if is_known:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            cells = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(cells, group=self._replicas)
            parts = torch.split(cells, [gradient.numel() for gradient in bucket])
            torch._foreach_copy_(bucket, [part.view_as(gradient) for part, gradient in zip(parts, bucket, strict=True)])

    @property
    def muon(self) -> MakeMuon:
        return whole_muon

    def clip(self, max_norm: float) -> float:
        with self.gang.collectives():
            return clip_divided_gradients(self._parameters.values(), max_norm, device=self.gang.device, stages=self._stages)

    def summed_loss(self, batches: Iterable[Batch], loss: SumLoss) -> float:
        """Each batch goes through the stages alone; with buffers, every replica uses those of the first one."""
        with self.gang.collectives():
            self._copy_from_first_replica(self._stage.buffers())
        self._set_mode(is_training=False)
        total = 0.0
        with torch.no_grad(), self.gang.collectives():
            for batch in batches:
                liveness.moved()
                self._learn(batch, loss)
                if len(batch["label"]):
                    total += self._forward(batch, loss)
        self._set_mode(is_training=True)
        return self.gang.sum(total)[0]

    def _set_mode(self, *, is_training: bool) -> None:
        self._stage.train(is_training)
        # After the stage: the model's own `train` may leave layers in eval mode, such as frozen batch norms.
        self._module.train(is_training)

    def _forward(self, batch: Batch, loss: SumLoss) -> float:
        """Return the loss of a batch on the last stage, 0 on the others."""
        assert self._passed is not None, "the sizes are learned first"  # noqa: S101
        batch = self._stage.on_device(batch)
        given: Batch | torch.Tensor = batch
        if self._passed.takes is not None:
            given = self._passed.takes.tensor(len(batch["label"]), self.gang.device)
            dist.recv(given, group=self._stages, group_src=self._stage_number - 1)
        with autocast(self.precision, self.gang.device):
            output = self._stage.stage(given)
            if self._is_last:
                return float(loss(ComputedOutput(output, batch), batch))
        dist.send(output.contiguous(), group=self._stages, group_dst=self._stage_number + 1)
        return 0.0

    def state(self) -> dict[str, torch.Tensor]:
        own = set(self._names[self._stage_number])
        return {name: tensor for name, tensor in self._module.state_dict().items() if name in own}

    def whole(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Each stage of the first replica sends its tensors to the first process."""
        if not weights or self.data_rank > 0:
            return {}
        found = {name: tensor.cpu() for name, tensor in weights.items()} if self.gang.is_first else {}
        with self.gang.collectives():
            for number, names in enumerate(self._names[1:], start=1):
                for name in names:
                    if number == self._stage_number:
                        dist.send(_bytes(weights[name]), group=self._stages, group_dst=0)
                    elif self.gang.is_first:
                        shape, dtype = self._shapes[name]
                        tensor = torch.empty(shape, dtype=dtype, device=self.gang.device)
                        dist.recv(_bytes(tensor), group=self._stages, group_src=number)
                        found[name] = tensor.cpu()
        return {name: found[name] for name in self._shapes} if self.gang.is_first else {}

    def _copy_from_first_replica(self, tensors: Iterable[torch.Tensor]) -> None:
        if self._layout.data == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                cells = tensor.detach().contiguous()
                dist.broadcast(_bytes(cells), group=self._replicas, group_src=0)
                tensor.copy_(cells)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor: not every backend sends every dtype."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _buckets(gradients: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients of one dtype, in order, in groups of about `BUCKET_ITEMS` numbers."""
    bucket: list[torch.Tensor] = []
    for gradient in gradients:
        if bucket and (bucket[0].dtype != gradient.dtype or sum(one.numel() for one in bucket) >= BUCKET_ITEMS):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
