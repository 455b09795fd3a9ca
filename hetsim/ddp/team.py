"""A team of ranks of unequal speed: how much of each batch each takes, and what its gradient then weighs."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from hetsim import checks
from hetsim.ddp.check import checked
from hetsim.ddp.clock import Clock, HostClock, clock_of
from hetsim.ddp.exchange import Balance, Control, Window
from hetsim.ddp.hook import Hook, Weighted, weighted_hook
from hetsim.ddp.loader import TeamLoader, check_options, look_ahead
from hetsim.ddp.rules import allocation_of
from hetsim.ddp.saved import plain, restored
from hetsim.ddp.schedule import Data, Schedule, Step
from hetsim.policies.allocation import Allocation

M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T", float, torch.Tensor)

DISABLED: Callable[[Any], Any] = torch.compiler.disable
"""What keeps a function out of compiled code, as it reads a clock."""


class Team:
    """The ranks of a process group, of which each takes its share of a global batch of `batch_size` samples.

    The average of the ranks' gradients is that of one process over the same batch: Σ b_i g_i / R, with b_i of R samples on rank i, where
    the loss is the mean over the rank's samples. All ranks construct it, and call `loader` and `wrap`, alike.
    """

    def __init__(
        self,
        batch_size: int,
        allocation: str | Allocation = "dbs",
        *,
        group: Any = None,
        seed: int = 0,
        max_samples: int | Sequence[int] | None = None,
        accumulate: int = 1,
        warmup_steps: int = 2,
        trace: str | Path | None = None,
    ) -> None:
        """`allocation` is the name of one of `hetsim.ddp.rules.RULES`, or an allocation with parameters of your own.

        `max_samples` is the most samples that fit into this rank's memory, or those of all ranks; `accumulate` the number of steps
        in a window of `no_sync`; the first `warmup_steps` steps of each split are not measured. In the folder `trace`, rank 0 leaves what
        a run of hetsim leaves. ValueError with one sentence if something is wrong, or not the same on all ranks.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("a Team needs a process group: call torch.distributed.init_process_group before it")
        self.allocation = allocation_of(allocation)
        checks.whole("batch_size", batch_size)
        checks.whole("accumulate", accumulate)
        checks.whole("seed", seed, least=0)
        checks.whole("warmup_steps", warmup_steps, least=0)
        self._data = {"batch_size": batch_size, "seed": seed, "accumulate": accumulate}
        self._control = Control(group)
        self.rank, self.size = self._control.rank, self._control.size
        self._check = checked(self.rank, self.size)
        if self._check is not None:
            self.allocation = self._check.allocation
        self._control.check_agreed(
            **self._data, warmup_steps=warmup_steps, allocation=zlib.crc32(repr(self.allocation).encode()), trace=int(trace is not None)
        )
        if batch_size < self.size:
            raise ValueError(f"batch_size={batch_size} is less than one sample for each of {self.size} ranks: raise it")
        self._max_samples = self._bounds(max_samples, batch_size)
        self._warmup_steps = warmup_steps
        self._balance = self._new_balance()
        self._clock: Clock = HostClock()
        self._schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None
        self._model: DistributedDataParallel | None = None
        self._step: Step | None = None
        self._count: float | None = None
        self.number = 0
        self._window_start: Any = None
        self._waits: list[tuple[Any, Any]] = []
        self._window: Window | None = None
        """The one that is over, from its last bucket to the next step."""
        self._reduced_at: Any = None
        self._measured = True
        self._kept: list[tuple[int, ...]] = []
        """Of the steps since the last reduction whose gradients were kept: the ranks' samples."""
        self._trace: Any = None
        if trace is not None:
            from hetsim.ddp.trace import TeamTrace

            self._trace = TeamTrace(Path(trace), self._control, batch_size=batch_size, seed=seed, allocation=self.allocation)

    # What a script calls

    def loader(self, dataset: Any, *, shuffle: bool = True, drop_last: bool = False, device: Any = None, **options: Any) -> TeamLoader:
        """This rank's batches of the dataset, in place of a DataLoader with a DistributedSampler; `options` are those of a DataLoader.

        Each epoch is a new order of the samples, which depends on the seed alone; no `set_epoch` is needed. Without `drop_last`, the last
        step of an epoch divides what is left, and a rank for which nothing is left gets one sample with weight 0. With a `device`, batches
        are moved there.
        """
        if self._schedule is not None:
            raise ValueError("a Team divides one training set, and has it: make another Team for another one")
        check_options(dataset, options)
        data = Data(len(dataset), **self._data, shuffle=checks.flag("shuffle", shuffle), drop_last=checks.flag("drop_last", drop_last))
        ahead = max(ahead for (ahead,) in self._control.gather([look_ahead(options)]))
        order = zlib.crc32(data.order(0)[:1000].tobytes())
        self._control.check_agreed(
            **{"the number of samples": data.num_samples, "shuffle": shuffle, "drop_last": drop_last, "the order of the samples": order}
        )
        self._schedule = Schedule(data, self.size, self._balance.shares, ahead)
        if self._saved is not None:
            self._resume(self._saved)
        return TeamLoader(dataset, self._schedule, self, self.rank, device, options)

    def wrap(self, model: M, hook: Hook = allreduce_hook, state: Any = None) -> M:
        """Weigh the gradients of a DistributedDataParallel model, and measure its steps. Returns the model.

        `hook` and its `state` average the weighted gradients: one of torch.distributed.algorithms.ddp_comm_hooks, which may compress them.
        """
        ddp = getattr(model, "_orig_mod", model)
        if not isinstance(ddp, DistributedDataParallel):
            raise ValueError(f"wrap takes a DistributedDataParallel, not {type(ddp).__name__}: wrap(DDP(model)), or scale the loss instead")
        if self._model is not None:
            raise ValueError("a Team weighs the gradients of one model, and has it: make another Team for another model")
        if dist.get_process_group_ranks(ddp.process_group) != dist.get_process_group_ranks(self._control.group):
            raise ValueError("the model's process group has other ranks than the Team's: give the Team group=, or leave the model's out")
        if any(isinstance(part, torch.nn.SyncBatchNorm) for part in ddp.modules()):
            raise ValueError(
                "SyncBatchNorm sends gradients between ranks before they are weighed, so they would be wrong: do not wrap the model, and "
                "take team.scale(loss).backward() with a fixed allocation"
            )
        self._model, self._device = ddp, next(ddp.module.parameters()).device
        self._clock = clock_of(self._device)
        if self._trace is not None:
            self._trace.nbytes = sum(p.numel() * p.element_size() for p in ddp.module.parameters() if p.requires_grad)
        if self._check is not None:
            self._check.begin(ddp)
        ddp.register_comm_hook(Weighted(self, hook, state, self._check), weighted_hook)
        ddp.register_forward_pre_hook(DISABLED(self._before_forward))
        if ddp.broadcast_buffers and self._balance.measures and any(True for _ in ddp.module.buffers()):
            ddp.module.register_forward_pre_hook(DISABLED(self._after_buffers))
        return model

    def scale(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> torch.Tensor:
        """The loss whose gradients, averaged over the ranks, are those of the mean over the whole batch: loss · N·b_i/R.

        For models that `wrap` does not take: FSDP2, SyncBatchNorm, losses over the samples of all ranks. With a `weight`, such as the
        number of tokens whose mean the loss is, it is loss · N·weight/Σ weight; all ranks then wait for one another.
        """
        if self._model is not None:
            raise ValueError("the gradients of the wrapped model are weighed already, and would be twice: do not scale its loss")
        if self._balance.measures:
            raise ValueError(
                f"{type(self.allocation).__name__} goes by measured times, and steps whose loss is scaled are not measured: "
                "take allocation='even' or hetsim.policies.allocation.Fixed(parts=[…])"
            )
        step = self._present()
        if weight is None:
            return loss * step.weight(self.rank)
        own = float(weight) if step.shares[self.rank] else 0.0
        total = float(self._control.sum(torch.tensor([own], dtype=torch.float64)))
        return loss * (self.size * own / total if total else 0.0)

    def count(self, weight: float | torch.Tensor) -> None:
        """How many tokens (or what else the loss is the mean over) this rank has in this step: before `backward`, and on all ranks.

        The gradient is then the mean over the tokens of the whole batch.
        """
        if self._model is None:
            raise ValueError("count weighs the gradients of a wrapped model, and there is none: wrap it, or scale(loss, weight)")
        step = self._present()
        self._count = float(weight) if step.shares[self.rank] else 0.0
        self._check_window()

    def mean(self, value: T) -> T:
        """Σ b_i v_i / R over all ranks, such as the mean loss of the whole batch. All ranks wait for one another."""
        start = self._clock.mark()
        step = self._present()
        given = torch.as_tensor(value).detach()
        own = given.to("cpu", torch.float64).flatten()
        samples = step.shares[self.rank]
        total = self._control.sum(own * samples if samples else torch.zeros_like(own)) / step.samples
        self._waits.append((start, self._clock.mark()))
        if isinstance(value, torch.Tensor):
            return total.reshape(given.shape).to(given)
        return float(total)

    @property
    def samples(self) -> int:
        """How many samples of this step are this rank's; 0 if its batch is one sample of weight 0."""
        return self._present().shares[self.rank]

    @property
    def shares(self) -> tuple[int, ...]:
        """How many samples of this step, or of the first one, are each rank's."""
        return self._balance.shares if self._step is None else self._step.shares

    @property
    def epoch(self) -> int:
        """The whole passes over the data that the loop has had: where the next step is, also after `load_state_dict`."""
        if self._schedule is None:
            return 0 if self._saved is None else int(self._saved["epoch"])
        return self._schedule.at(self.number)[0]

    @property
    def num_exchanges(self) -> int:
        """How often the ranks have exchanged measured times."""
        return self._balance.num_exchanges

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain numbers, texts and lists; the same on all ranks.

        The next step of a resumed run is the one after the last that was handed to the loop, or the first one of a window that has begun.
        """
        if self._schedule is None:
            raise ValueError("the Team has no loader yet, whose position it would save: call team.loader first")
        data = self._schedule.data
        return {
            **self._schedule.state(self.number),
            **{name: getattr(data, name) for name in ("num_samples", "batch_size", "seed", "shuffle", "accumulate")},
            "ranks": self.size,
            "max_samples": None if self._max_samples is None else list(self._max_samples),
            "allocation": repr(self.allocation),
            "allocation_state": plain(self._balance.state),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called: before the first step, and with any number of ranks and batch size.

        With the same of both and the same allocation, the split goes on too; otherwise it is measured anew.
        """
        if self.number:
            raise ValueError("the Team has begun its epoch already: load its state before the first step")
        self._saved = saved
        if self._schedule is not None:
            self._resume(saved)

    def close(self) -> None:
        """With `trace`: write the rest of it. All ranks call it. A script whose loop asks for a batch after the last one need not."""
        if self._trace is not None:
            self._trace.close()

    # What the loader tells

    def begin_step(self, *, first: bool = False) -> None:
        """The loop asks for a batch, which may be the `first` one of a new iterator: what was measured is known to all, the clock starts.

        Where any rank has workers that begin with it, that step is not measured.
        """
        if self._check is not None:
            self._check.end(self.shares)
        shares = self._balance.decided()
        if shares is not None and self._schedule is not None:
            self._schedule.decided(shares, before=self.number)
        mark = self._clock.mark()
        if self._step is None or self._step.ends_window:
            if self._trace is not None:
                self._trace.updated(mark)
            self._window_start, self._window, self._measured = mark, None, True
            self._waits.clear()
        if first and self._schedule is not None and self._schedule.look_ahead:
            self._measured = False

    def hand_over(self, step: Step) -> None:
        """The loop gets the batch of this step. Before the last one of an epoch, after which the loop may ask for no other, the trace is gathered."""
        self._step, self._count = step, None
        self.number += 1
        if self._trace is not None and self._schedule is not None and self._schedule.is_over(self.number):
            start = self._clock.mark()
            self._trace.gather()
            self._waits.append((start, self._clock.mark()))

    def end_epoch(self) -> None:
        """The loop has had all batches of the epoch, and their gradients are applied."""
        assert self._schedule is not None
        self._schedule.begin_epoch(self.number)
        if self._trace is not None:
            self._trace.gather()

    # What the model and its hook tell

    @property
    def factor(self) -> float:
        """By which this rank's gradients are multiplied before they are averaged."""
        step = self._present()
        if self._count is not None:
            return self.size * self._count / step.samples
        return step.weight(self.rank)

    def first_bucket(self) -> Callable[[], torch.Tensor] | None:
        """The first gradients are ready."""
        if self._window is not None:  # a second backward pass in this step, which waited for the reduction of the first
            self._waits.append((self._window.end, self._reduced_at))
        else:
            self._balance.begin_exchange(self._clock)
        if self._count is None:
            return None
        assert self._model is not None
        samples = self._present().samples
        total = torch.tensor(self._count, dtype=torch.float64, device=self._device)
        work = dist.all_reduce(total, group=self._model.process_group, async_op=True)

        def correction() -> torch.Tensor:
            work.wait()
            return torch.where(total > 0, samples / total, 0.0)

        return correction

    def last_bucket(self) -> Callable[[], None]:
        """All gradients are ready."""
        step, schedule = self._present(), self._schedule
        assert schedule is not None
        self._kept.clear()
        number = self.number - 1
        epoch = step.epoch + schedule.is_over(self.number)
        num_steps = number - schedule.window_of(number) + 1
        start, end = self._window_start, self._clock.mark()
        window = Window(number, step, num_steps, epoch, start, end, tuple(self._waits), self._measured)
        self._window = window
        self._balance.end_window(window)

        def reduced() -> None:
            self._reduced_at = self._clock.mark()
            if self._trace is not None:
                self._trace.reduced(window, self._reduced_at, self._clock)

        return reduced

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        """Gradients of this step are kept on this rank (`no_sync`), or reduced together with what was kept."""
        if not torch.is_grad_enabled() or self._step is None:
            return
        if not module.require_backward_grad_sync:
            self._kept.append(self._step.shares)
        self._check_window()
        self._forward_at = self._clock.mark()

    def _after_buffers(self, *_: Any) -> None:
        """DDP has waited for the buffers of rank 0."""
        if torch.is_grad_enabled() and self._step is not None:
            self._waits.append((self._forward_at, self._clock.mark()))

    def _check_window(self) -> None:
        shares = self._present().shares
        if self._kept and self._count is not None:
            raise ValueError("count is for the tokens of one step, and no_sync adds up the gradients of several: scale each loss instead")
        if any(kept != shares for kept in self._kept):
            raise ValueError(
                "no_sync has kept gradients of steps with other shares, and one weight cannot be right for all of them: "
                f"give the Team accumulate={len(self._kept) + 1}, so that the split changes only between windows"
            )

    # Within

    def _present(self) -> Step:
        if self._step is None:
            raise ValueError("there is no step yet: iterate over team.loader(…)")
        return self._step

    def _bounds(self, max_samples: int | Sequence[int] | None, batch_size: int) -> tuple[int, ...] | None:
        """The most samples of each rank; None if none is bounded."""
        if isinstance(max_samples, Sequence):
            if len(max_samples) != self.size:
                raise ValueError(f"max_samples has {len(max_samples)} numbers for {self.size} ranks: give one for each, or this rank's own")
            max_samples = max_samples[self.rank]
        own = 0 if max_samples is None else checks.whole("max_samples", max_samples)
        bounds = [bound for (bound,) in self._control.gather([own])]
        return tuple(bound or batch_size for bound in bounds) if any(bounds) else None

    def _new_balance(self) -> Balance:
        state = self.allocation.initial_within(self.size, self._data["batch_size"], self._max_samples)
        return Balance(self.allocation, state, self._control, warmup_steps=self._warmup_steps)

    def _resume(self, saved: Mapping[str, Any]) -> None:
        schedule = self._schedule
        assert schedule is not None
        data = schedule.data
        for name in ("num_samples", "seed", "shuffle"):
            if saved[name] != getattr(data, name):
                raise ValueError(
                    f"{name} is {getattr(data, name)}, but was {saved[name]} where the state was saved, and positions would be lost or "
                    "repeated: give the Team and the loader what they had"
                )
        bounds = None if self._max_samples is None else list(self._max_samples)
        present = {**self._data, "ranks": self.size, "max_samples": bounds, "allocation": repr(self.allocation)}
        same = all(saved[name] == value for name, value in present.items())
        shares, pending = self._balance.shares, list[tuple[int, tuple[int, ...]]]()
        if same:
            self._balance.state = restored(self._balance.state, saved["allocation_state"])
            shares, pending = tuple(saved["shares"]), [(first, tuple(later)) for first, later in saved["pending"]]
        schedule.resume(saved["epoch"], saved["position"], shares, pending)
