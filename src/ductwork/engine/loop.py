"""The training loop. There is one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ductwork.backbones.norm import set_batch_norm
from ductwork.data.loading import Batch
from ductwork.engine.seeding import derive, seed_everything
from ductwork.engine.session import Session
from ductwork.engine.whole import looks_around, whole_batch
from ductwork.errors import DuctworkError
from ductwork.methods.base import Batches, Group, Loss, TrainingConfig


@dataclass(frozen=True)
class Snapshot:
    """Training in the middle: ``epoch`` epochs are done. Tensors of everything that is trained and of the optimiser."""

    epoch: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class EpochLog:
    """What an epoch of training was like."""

    epoch: int
    loss: float
    seconds: float
    lr: dict[str, float]


OnEpoch = Callable[[EpochLog, Callable[[], Snapshot]], None]


def train(
    session: Session,
    model: nn.Module,
    batches: Batches,
    groups: Sequence[Group],
    config: TrainingConfig,
    *,
    loss: Loss,
    epochs: int,
    seed: int,
    freeze_batch_norm: bool,
    resume: Snapshot | None,
    on_epoch: OnEpoch,
    on_batch: Callable[[int, int], None],
) -> None:
    """Train the parameters in ``groups`` in place, from ``resume`` on if it is given."""
    raw = _optimizer(groups, config)
    state = _Trained(model, groups, raw)
    if resume is not None:
        state.restore(resume)
    wrapped, optimizer = session.fabric.setup(_Objective(session, model, loss), raw)
    for epoch in range(resume.epoch if resume else 0, epochs):
        start = time.perf_counter()
        seed_everything(derive(seed, "epoch", epoch))
        rates = _set_rates(raw, groups, config, epoch, epochs)
        wrapped.train()
        set_batch_norm(model, frozen=freeze_batch_norm)
        total, seen, pending = torch.zeros((), device=session.device), 0, 0
        for step, batch in enumerate(batches.epoch(epoch)):
            batch = batch.to(session.device, non_blocking=True)
            last = step + 1 == len(batches)
            update = last or (step + 1) % config.accumulate == 0
            with session.fabric.no_backward_sync(wrapped, enabled=not update and session.world > 1):
                value = wrapped(batch.inputs, batch.targets, batch.index, batch.total)
                # the mean over the whole batch of all ranks, whatever this rank's slice of it is
                share = len(batch) * session.world / batch.total
                window = min(config.accumulate, len(batches) - (step - pending))
                session.fabric.backward(value * share / window)
            total += value.detach() * len(batch)
            seen += len(batch)
            pending = 0 if update else pending + 1
            if update:
                if config.clip_norm is not None:
                    session.fabric.clip_gradients(wrapped, optimizer, max_norm=config.clip_norm)
                optimizer.step()
                optimizer.zero_grad()
            on_batch(len(batch), batch.total)
        sums = session.sum(torch.stack([total, total.new_tensor(seen)]))
        mean = float(sums[0] / sums[1]) if seen else 0.0
        if not math.isfinite(mean):
            fix = "lower lr_backbone or lr_head, or set clip_norm"
            raise DuctworkError(f"training diverged: the loss of epoch {epoch + 1} is {mean}; {fix}")
        log = EpochLog(epoch + 1, mean, time.perf_counter() - start, rates)
        on_epoch(log, lambda done=epoch + 1: state.snapshot(done))  # type: ignore[misc]
    raw.zero_grad()


def _optimizer(groups: Sequence[Group], config: TrainingConfig) -> torch.optim.Optimizer:
    options = [
        {
            "params": list(group.parameters),
            "lr": group.lr,
            "weight_decay": config.weight_decay if group.weight_decay is None else group.weight_decay,
        }
        for group in groups
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(options, lr=0.0, momentum=config.momentum)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(options, lr=0.0, betas=(config.momentum, 0.999))


def _set_rates(
    optimizer: torch.optim.Optimizer, groups: Sequence[Group], config: TrainingConfig, epoch: int, epochs: int
) -> dict[str, float]:
    factor = rate_factor(config.schedule, epoch, epochs)
    for options, group in zip(optimizer.param_groups, groups, strict=True):
        options["lr"] = group.lr * factor
    return {group.name: group.lr * factor for group in groups}


def rate_factor(schedule: str, epoch: int, epochs: int) -> float:
    """The share of the learning rate that holds in ``epoch`` (from 0). A function of nothing else, so never saved."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / epochs))
    if schedule == "cosine-coda":  # a quarter of a wave, as the released code of CODA-Prompt has it
        return math.cos(99 * math.pi * epoch / (200 * (epochs - 1))) if epochs > 1 else 1.0
    if schedule == "step-up":  # torch's ConstantLR with its default values, as the released code of 2024 has it
        return 1 / 3 if epoch < 5 else 1.0
    return 1.0


class _Objective(nn.Module):
    """From a batch to its loss in one call, so that DDP sees every parameter that the loss depends on."""

    def __init__(self, session: Session, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._session, self._loss = session.compiled(model), session, loss
        self._looks_around = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self._looks_around = looks_around(self.model, alone=self._session.world == 1)
        return self

    def forward(self, inputs: Tensor, targets: Tensor, index: Tensor, total: int) -> Tensor:
        batch = Batch(inputs, targets, index, total)
        with whole_batch(self._session.ranks, inputs, total, layers=self._looks_around) as images:
            outputs = self.model(images)
        with torch.autocast(inputs.device.type, enabled=False):
            outputs = _map(outputs, lambda t: t.float() if t.is_floating_point() else t)
            return self._loss(outputs, batch) if len(batch) else _nothing(outputs)


def _map(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``outputs`` with every tensor of it changed."""
    if isinstance(outputs, Tensor):
        return change(outputs)
    return type(outputs)(_map(one, change) for one in outputs) if isinstance(outputs, (tuple, list)) else outputs


def _nothing(outputs: Any) -> Tensor:
    """A loss of zero that touches every output: a rank without images still takes part in the backward pass."""
    found: list[Tensor] = []
    _map(outputs, lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return sum((t.sum() * 0.0 for t in found), torch.zeros((), device=found[0].device))


class _Trained:
    """Everything that training changes: parameters, the model's buffers, the optimiser's memory."""

    def __init__(self, model: nn.Module, groups: Sequence[Group], optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._parameters = {f"{g}.{i}": p for g, group in enumerate(groups) for i, p in enumerate(group.parameters)}

    def snapshot(self, epoch: int) -> Snapshot:
        tensors: dict[str, Tensor] = {f"parameter.{key}": p.detach() for key, p in self._parameters.items()}
        tensors |= {f"buffer.{name}": b.detach() for name, b in self._model.named_buffers()}
        for key, parameter in self._parameters.items():
            for name, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{key}.{name}"] = value.detach()
        return Snapshot(epoch, tensors)

    def restore(self, snapshot: Snapshot) -> None:
        tensors = snapshot.tensors
        with torch.no_grad():
            for key, parameter in self._parameters.items():
                parameter.copy_(tensors[f"parameter.{key}"])
            for name, buffer in self._model.named_buffers():
                buffer.copy_(tensors[f"buffer.{name}"])
        for key, parameter in self._parameters.items():
            prefix = f"optimizer.{key}."
            memory = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if memory:
                # Adam counts its steps on the CPU wherever the parameter is
                self._optimizer.state[parameter] = {
                    k: v.clone() if k == "step" else v.to(parameter.device).clone() for k, v in memory.items()
                }
