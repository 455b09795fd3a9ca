"""A team of ranks of unequal speed: the size of each rank's share of a batch, and the weight of its gradient."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from hetsim import checks
from hetsim.ddp.check import checked
from hetsim.ddp.clock import clock_of
from hetsim.ddp.copies import Own
from hetsim.ddp.exchange import Balance, Control
from hetsim.ddp.grain import Grain
from hetsim.ddp.hook import LOSSES, MEAN, Hook, Weighted, distributed, receives_buffers, register
from hetsim.ddp.loader import TeamLoader, check_options, look_ahead
from hetsim.ddp.passes import Passes
from hetsim.ddp.rules import allocation_of, bounds_of
from hetsim.ddp.saved import check_saved, digest, resume, save
from hetsim.ddp.scaled import averaged, check_scaled, scaled
from hetsim.ddp.schedule import Data, Schedule, Step
from hetsim.ddp.tokens import Tokens
from hetsim.ddp.used import ASKED_AHEAD, Given, Used
from hetsim.ddp.waits import unwatch, watch
from hetsim.ddp.windows import Windows
from hetsim.policies.allocation import Allocation
from hetsim.policies.allocation.base import signature

M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T", float, torch.Tensor)


class Team:
    """The ranks of a process group, each with its own share of a global batch of `batch_size` samples.

    The average of the ranks' gradients is the gradient of one process over the same batch: Σ b_i g_i / R, with b_i of R samples on rank i.
    The loss must be the mean over the rank's samples. All ranks must pass the same arguments to the Team (except `max_samples`), and make
    the same calls of `loader` and `wrap`.
    """

    def __init__(
        self, batch_size: int, allocation: str | Allocation = "dbs", *, group: Any = None, seed: int = 0,
        max_samples: int | Sequence[int] | None = None, accumulate: int = 1, warmup_steps: int = 2, multiple_of: int = 1,
        at_least: int = 1, trace: str | Path | None = None,
    ) -> None:  # fmt: skip
        """Create the Team on all ranks, after `init_process_group`. Raises ValueError if arguments are invalid or differ between ranks.

        Args:
            batch_size: the global batch size, in samples of all ranks together.
            allocation: a name in `hetsim.ddp.rules.RULES`, or an allocation with your own parameters.
            group: the process group; by default all ranks.
            seed: seeds the shuffling of the samples.
            max_samples: the most samples that fit into this rank's memory (may differ between ranks), or a list for all ranks.
            accumulate: the number of steps from one reduction to the next, including the step that synchronizes after `no_sync`.
            warmup_steps: the number of steps after each change of the split that are not measured.
            multiple_of: each share is a multiple of this number of samples.
            at_least: each share contains at least this number of samples.
            trace: the folder to which rank 0 writes the files of a run. By default, it writes none.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError("a Team needs a process group: call torch.distributed.init_process_group before it, in a single process too")
        self.allocation = allocation_of(allocation)
        checks.whole("batch_size", batch_size)
        checks.whole("accumulate", accumulate)
        checks.whole("seed", seed, least=0)
        checks.whole("warmup_steps", warmup_steps, least=0)
        self._grain = Grain(multiple_of, at_least)
        self._control = Control(group)
        self.rank, self.size = self._control.rank, self._control.size
        self._check = checked(self.rank, self.size)
        if self._check is not None:
            self.allocation, warmup_steps, batch_size = self._check.allocation, 0, self._check.batch_of(batch_size)
        self._data = {"batch_size": batch_size, "seed": seed, "accumulate": accumulate}
        self._control.check_agreed(
            **self._data,
            **vars(self._grain),
            warmup_steps=warmup_steps,
            allocation=zlib.crc32(signature(self.allocation).encode()),
            trace=int(trace is not None),
        )
        if batch_size < self.size:
            raise ValueError(f"batch_size={batch_size} is less than one sample for each of {self.size} ranks: raise it")
        alone = self._check is not None and self.size == 1  # with the batches of all ranks
        self._max_samples = None if alone else bounds_of(max_samples, self._control, batch_size)
        bounds = self._grain.bounds(self._max_samples, batch_size)
        state = self.allocation.initial_within(self.size, self._grain.units(batch_size, self.size), bounds)
        self._balance = Balance(self.allocation, state, self._control, warmup_steps=warmup_steps, grain=self._grain, bounds=bounds)
        self._windows, self._tokens = Windows(), Tokens(self._control)
        self._schedule: Schedule | None = None
        self._saved: Mapping[str, Any] | None = None
        self._losses: dict[DistributedDataParallel, str] = {}
        """Each wrapped model's kind of loss."""
        self._used, self._is_agreed = Used(), False
        self.number = 0
        self._trace: Any = None
        if trace is not None:
            from hetsim.ddp.trace import TeamTrace

            self._trace = TeamTrace(Path(trace), self._control, batch_size=batch_size, seed=seed, allocation=self.allocation)
        self._passes = Passes(self.rank, self._used, self._windows, self._balance, self._tokens, self._trace)

    # What a script calls

    def loader(self, dataset: Any, *, shuffle: bool = True, drop_last: bool = False, device: Any = None, **options: Any) -> TeamLoader:
        """A loader of this rank's batches. It replaces a DataLoader with a DistributedSampler, and shuffles each epoch by the seed.

        Args:
            dataset: a map-style Dataset.
            shuffle: whether to shuffle each epoch. You do not need `set_epoch`.
            drop_last: whether to leave out the short last step of an epoch. Otherwise the remaining samples are split, and a rank left with
                none gets one sample of weight 0.
            device: the device to which batches are moved. By default, batches are not moved.
            options: further arguments of a DataLoader, such as `num_workers`.
        """
        if self._schedule is not None:
            raise ValueError("a Team divides one training set, and has it: make another Team for another one")
        check_options(dataset, options)
        if not (self._grain.is_single or drop_last):
            raise ValueError("multiple_of and at_least may not divide the short last step of an epoch: add drop_last=True to the loader")
        data = Data(len(dataset), **self._data, shuffle=checks.flag("shuffle", shuffle), drop_last=checks.flag("drop_last", drop_last))
        ahead = max(ahead for (ahead,) in self._control.gather([look_ahead(options)]))
        data = data if self._check is None else self._check.shorten(data, ahead)
        order = zlib.crc32(data.order(0)[:1000].tobytes())
        self._control.check_agreed(
            **{"the number of samples": data.num_samples, "shuffle": shuffle, "drop_last": drop_last, "the order of the samples": order}
        )
        self._schedule = self._passes.schedule = Schedule(data, self.size, self._balance.shares, ahead)
        if self._saved is not None:
            resume(self._schedule, self._balance, self._max_samples, self._saved)
        return TeamLoader(dataset, self._schedule, self, self.rank, device, options)

    def wrap(self, model: M, hook: Hook = allreduce_hook, state: Any = None, *, loss: str = MEAN) -> M:
        """Weight the gradients of a model, measure its steps, and return the model. Call `wrap` for each model of the loop.

        Raises ValueError for a model whose gradients would be wrong.

        Args:
            model: a DistributedDataParallel, compiled or not.
            hook: a hook of torch.distributed.algorithms.ddp_comm_hooks, which averages the weighted gradients and may compress them.
            state: the hook's state. None passes the model's process group, which these hooks expect.
            loss: "global" if your script divides the loss by a total over all ranks or calls `scale`; otherwise "mean".
        """
        ddp = distributed(model, self._control.group, state)
        if ddp in self._losses:
            raise ValueError("the Team weights the gradients of this model already: wrap it once")
        if loss not in LOSSES:
            raise ValueError(f"loss must be {' or '.join(LOSSES)}, not {checks.shown(loss)}")
        if not self._losses:
            self._passes.use(ddp)
            self._windows.use(clock_of(self._passes.device))
            if self._balance.measures or self._trace is not None:
                watch(self._windows)
        self._losses[ddp] = loss
        if self._trace is not None:
            self._trace.nbytes += sum(p.numel() * p.element_size() for p in ddp.module.parameters() if p.requires_grad)
        check = None if self._check is None else self._check.begin(ddp, loss, lambda: self._passes.present)
        register(ddp, Weighted(self._passes, hook, ddp.process_group if state is None else state, loss, check))
        ddp.register_forward_pre_hook(Own(self._begin_forward), with_kwargs=True)
        if self._balance.measures and receives_buffers(ddp):
            ddp.module.register_forward_pre_hook(Own(lambda *_: self._windows.begin_module()))
        return model

    def scale(self, loss: torch.Tensor, weight: float | torch.Tensor | None = None) -> torch.Tensor:
        """Scale a loss by N·b_i/R. The average of its gradients over the ranks is then the gradient of the mean over the whole batch.

        Use it for models that `wrap` refuses: FSDP2, SyncBatchNorm, losses over the samples of all ranks. With `loss="global"`, also use it
        for each term of the loss that is a mean over this rank's samples. Raises ValueError if the gradient could be wrong.

        Args:
            loss: the mean over this rank's samples. With weight 0 it may be non-finite.
            weight: the number of tokens that the loss averages over. The result is then loss · N·weight/Σ weight, and all ranks wait for
                one another.
        """
        leaves_steps = self._trace is not None or self._check is not None
        check_scaled(self._losses.values(), self._balance, self._schedule, leaves_steps=leaves_steps)
        self._agree()
        given = self._used.scaled(self._given(), varies=self._schedule is not None and not self._schedule.weighs_alike())
        self._passes.scaled = given.number
        with self._windows.waiting():
            return scaled(loss, weight, given.step, self._control)

    def count(self, weight: float | torch.Tensor) -> None:
        """Average this step's gradient over the tokens of the whole batch. Call it on all ranks, before `backward`.

        Args:
            weight: the number of this rank's tokens (or other units) in the mean of the loss. Ranks wait for one another only in the
                first step with `count`.
        """
        if MEAN not in self._losses.values():
            raise ValueError(
                "count weights the gradients of a wrapped model whose loss is a mean, and there is none: wrap it, or scale(loss, weight)"
            )
        given = self._given()
        step = given.step
        self._tokens.count(float(weight) if step.shares[self.rank] else 0.0, given.number)
        self._passes.check_window(given)
        if not self._tokens.known:
            with self._windows.waiting():
                self._tokens.agree(step.samples)

    def mean(self, value: T) -> T:
        """Σ b_i v_i / R over all ranks, such as the mean loss of the whole batch. All ranks wait for one another.

        Args:
            value: v_i, a number or a tensor of any shape. The mean has the same shape and device, and a floating-point dtype.
        """
        present = self._used.present
        step = present.step if present is not None and self._used.is_last_word else self._given().step
        with self._windows.waiting():
            return averaged(value, step, self._control)

    def own(self, number: T) -> T:
        """Return the number, or 0 if this rank's batch is a copy of another rank's sample, which must not count in any sum over ranks.

        Args:
            number: what the script sums up over all ranks and divides a `loss="global"` by, such as the boxes in this rank's batch.
        """
        given = self._given()
        self._passes.owned = given.number
        return number if given.step.shares[self.rank] else number * 0

    @property
    def samples(self) -> int:
        """The number of samples of this rank in this step; 0 if the rank's batch is one sample of weight 0."""
        return self._given().step.shares[self.rank]

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of each rank's samples in this step, or in the first step if the loop has not begun."""
        given = self._used.given()
        return self._balance.shares if given is None else given.step.shares

    @property
    def epoch(self) -> int:
        """The number of complete epochs, which is also the index of the current epoch. Valid after `load_state_dict`, too."""
        if self._schedule is None:
            return 0 if self._saved is None else int(self._saved["epoch"])
        return self._schedule.at(self._used.number)[0]

    @property
    def num_exchanges(self) -> int:
        """The number of exchanges of measured times."""
        return self._balance.num_exchanges

    def state_dict(self) -> dict[str, Any]:
        """The position of the run, as plain numbers, strings and lists. It is the same on all ranks.

        A resumed run begins with the step after the last one whose gradients were all-reduced, or with the first step of an unfinished
        window. For a model that is not wrapped, the run begins after the last step that the loop received.
        """
        if self._schedule is None:
            raise ValueError("the Team has no loader yet, so there is no position to save: call team.loader first")
        return save(self._schedule, self._used.number, self._balance, self._max_samples)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from the point where `state_dict` was called. Call this on all ranks before the first step.

        The number of ranks and the batch size may differ. If both are the same, and the allocation too, the run continues with the saved
        split. Otherwise, the Team measures again. Raises ValueError for a state of a different dataset, and at the first step if the ranks
        loaded different states.

        Args:
            saved: the result of `state_dict`.
        """
        if self.number:
            raise ValueError("the Team has begun its epoch already: load its state before the first step")
        check_saved(saved)
        self._saved = saved
        if self._schedule is not None:
            resume(self._schedule, self._balance, self._max_samples, saved)

    def waiting(self) -> AbstractContextManager[None]:
        """A context for work in the loop that does not count as this rank's own, such as an evaluation only on rank 0.

        Calls to torch.distributed need no such context: collectives, `send`, `recv`, `barrier`, and `wait` on their results.
        """
        return self._windows.waiting()

    def close(self) -> None:
        """Stop timing, and write the rest of a `trace`. Call it on all ranks. You need not call it if your loop exhausts the loader."""
        unwatch(self._windows)
        if self._trace is not None:
            self._trace.close()

    # What the loader calls

    def begin_loop(self) -> None:
        """Begin a new iterator. It draws again those batches of the previous iterator that the model has not used."""
        self._used.take_back()
        if self._schedule is not None and self._used.next_to_draw < self.number:
            self.number = self._schedule.back_to(self._used.next_to_draw)

    def begin_step(self, *, first: bool = False) -> None:
        """Start the clock when the loop asks for a batch. Then all ranks know the same measurements.

        The `first` step of a new iterator is not measured if any rank uses workers, because the workers start in this step.
        """
        if self._check is not None:
            self._check.end()
        shares = self._balance.decided()
        if shares is not None and self._schedule is not None:
            self._schedule.decided(shares, before=self.number)
        present = self._used.present
        if not self._used.computes and (present is None or present.step.ends_window):
            self._passes.begin_window()
        if first and self._schedule is not None and self._schedule.look_ahead:
            self._windows.measured = False

    def hand_over(self, step: Step, batch: Any) -> None:
        """Give the loop the batch of this step. Gather the trace before an epoch's last batch, because the loop may stop after it."""
        self._used.give(self.number, step, batch, is_used=not self._losses)
        self.number += 1
        if self._trace is not None and self._schedule is not None and self._schedule.is_over(self.number):
            with self._windows.waiting():
                self._trace.gather()

    def end_epoch(self) -> None:
        """End the epoch, after the loop has used all batches and has applied their gradients."""
        assert self._schedule is not None
        self._schedule.begin_epoch(self.number)
        self._used.end_loop(self.number)
        if self._trace is not None:
            self._trace.gather()

    def _agree(self) -> None:
        if not self._is_agreed:
            self._is_agreed = True
            self._control.check_same(
                digest(self._saved), "load_state_dict was not given the same state on all ranks: load it on each of them"
            )

    def _begin_forward(self, module: torch.nn.Module, *inputs: Any) -> None:
        if module in self._losses and torch.is_grad_enabled() and self._used.given() is not None:
            self._agree()
            self._passes.begin_forward(inputs, self._losses[module], is_kept=not module.require_backward_grad_sync)
        self._windows.begin_forward(receives=receives_buffers(module))

    def _given(self) -> Given:
        given = self._used.given()
        if given is None:
            raise ValueError("there is no step yet: iterate over team.loader(…)")
        if self._used.is_ambiguous:
            raise ValueError(ASKED_AHEAD)
        return given
