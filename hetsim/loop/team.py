"""A Team: the ranks of a process group that train the user's model by one of hetsim's methods."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from hetsim import checks
from hetsim.checkpoints.file import classes_of
from hetsim.distributed.pacing.padding import Pace
from hetsim.effects import Batch
from hetsim.gradcheck.turning import is_checked
from hetsim.loop.clock import clock_of
from hetsim.loop.followed import Gate, Multiples
from hetsim.loop.lanes import Lanes
from hetsim.loop.loader import DrawnBatches, StreamedBatches, check_options, is_stream
from hetsim.loop.method import (
    STEADY,
    check_allocation,
    check_num_ranks,
    experiment_of,
    experiment_of_words,
    with_allocation,
    with_uneven_shares,
    with_whole_batches,
)
from hetsim.loop.model import ModelTask, UsersOptimizer
from hetsim.loop.plan import EpochOrder, SampledOrder
from hetsim.loop.program import EpochPrograms
from hetsim.loop.shares import BY_TERMS, Terms
from hetsim.loop.watch import Watch
from hetsim.loop.world import Asked
from hetsim.loop.wrapped import Wrapped
from hetsim.policies.allocation.base import Allocation, Even
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import moved

T = TypeVar("T", float, torch.Tensor)
NOT_STEPPED = "the loop asks for the next batch, and there was no team.step() after the last one: call it once for each"
NOT_SHARED = (
    "the loop asks for the next batch, and no share was taken of the last one: take the share of each batch before you draw another one"
)
NO_BATCH = (
    "there is no batch to compute: take one share and one step for each batch of team.loader(…), and a smaller batch_size for smaller steps"
)
NO_OPTIMIZER = (
    "a step without an optimizer needs gradients that are reduced already: pass the optimizer, or take method=ddp and a model under "
    "DistributedDataParallel or fully_shard"
)
STREAM = "an IterableDataset has an order of its own, and no end that all ranks know: pass steps_per_epoch, and no sampler"
NO_LOADER = "the Team has no training set yet: call team.loader(…) first"
ONE_LOADER = "a Team divides one training set, and has it: make another Team for another one"
STATED = (
    "this loss may be no mean over the samples, as it has no numbers for each of them: pass unreduced losses (reduction='none') to "
    "team.share, with mask= if some do not count; or create the Team with verified=True if it is a mean over them, or over the number that "
    "you pass with it"
)
FIRST_TERMS = "the loss has another number of terms than samples for the first time: pass mask= or the number of terms in each step"


class Team:
    """The ranks of a process group, which train the user's model by a method of hetsim::

        team = Team(model, optimizer, method="diloco", batch_size=1024)
        for epoch in range(team.epoch, 10):
            for x, y in team.loader(dataset):
                team.share(cross_entropy(model(x), y, reduction="none")).backward()
                team.step()
                optimizer.zero_grad()

    All ranks make the same calls. A server's rank gets no batches: its loop only waits until the others have ended the epoch.
    """

    def __init__(
        self, model: nn.Module | Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, *, batch_size: int, method: str = "ddp",
        allocation: str | Allocation | None = None, seed: int = 0, accumulate: int = 1, max_samples: int | None = None,
        multiple_of: int = 1, verified: bool = False, group: Any = None, trace: str | Path | None = None, **keys: Any,
    ) -> None:  # fmt: skip
        """Create the Team on all ranks, after `init_process_group`. Raises ValueError if arguments are invalid or differ between ranks.

        Args:
            model: the model, or a list of all models that are trained on the loader's batches. Under DistributedDataParallel,
                method="ddp" reduces gradients during the backward pass.
            optimizer: the optimizer of the model's parameters. In methods whose workers train alone between two exchanges, it takes the
                local steps. None if the script steps itself after each `team.step()`, along the gradients that a model under
                DistributedDataParallel or FSDP2 has reduced: a trainer, or several optimizers.
            batch_size: the samples of one step of all ranks together.
            method: a name of `hetsim-methods`.
            allocation: a choice of the config group `allocation`, such as "dbs", or an object. By default, it is the method's. "dbs" and
                "omnilearn" decide every five steps here, and "dbs" is smoothed (`hetsim.loop.method.STEADY`).
            seed: seeds the shuffling of the samples.
            accumulate: the number of the loader's batches for each step.
            max_samples: the most samples that fit into this rank's memory at a time.
            multiple_of: the number of which each share is a multiple, such as 2 for batch norm or 8 for tensor cores.
            verified: whether each loss that is one number is the mean over the samples, or over the number that is passed with it.
            group: the process group; by default all ranks.
            trace: the folder of the files of a run, which rank 0 or the server writes in `close` or at its end, with all whole epochs.
            keys: further keys of the config, as for `hetsim.run`: coordination={"period": 50}.
        """
        from hetsim.config.typed import words_for

        lanes = Lanes(group)
        checks.whole("accumulate", accumulate)
        least = 0 if max_samples is None else checks.whole("max_samples", max_samples) * accumulate
        if is_checked() and lanes.everyone.size == 1:
            least = 0
        bounds = [int(bound) or batch_size for (bound,) in lanes.everyone.control.gather_numbers(float(least))]
        named = (f"allocation={allocation}", *STEADY.get(allocation, ())) if isinstance(allocation, str) else ()
        words = [*words_for({"method": method, "batch_size": batch_size, "seed": seed}), *named, *words_for(keys)]
        limited = bounds if min(bounds) < batch_size else None
        experiment = experiment_of_words(words, lanes.everyone.size, max_samples=limited)
        if isinstance(allocation, Allocation):
            experiment = with_allocation(experiment, allocation)
        options: dict[str, Any] = {"accumulate": accumulate, "multiple_of": multiple_of, "verified": verified, "trace": trace}
        self._set_up(model, optimizer, experiment, lanes, **options)

    @classmethod
    def from_config(
        cls, model: nn.Module | Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, *words: str,
        config_dir: str | Path | None = None, accumulate: int = 1, multiple_of: int = 1, verified: bool = False,
        trace: str | Path | None = None, group: Any = None, **keys: Any,
    ) -> Team:  # fmt: skip
        """The Team of a config that was simulated. Its cluster has one node for each worker.

        Args:
            model: as for a Team.
            optimizer: as for a Team. It replaces the config's.
            words: the words of the command, such as "method=diloco" and "batch_size=1024".
            config_dir: a folder of further choices, as the command's --config-dir.
            accumulate: as for a Team.
            multiple_of: as for a Team.
            verified: as for a Team.
            trace: as for a Team.
            group: as for a Team.
            keys: the same words as keywords.
        """
        from hetsim.config.typed import words_for

        experiment = experiment_of([*words, *words_for(keys)], config_dir)
        options: dict[str, Any] = {"accumulate": accumulate, "multiple_of": multiple_of, "verified": verified, "trace": trace}
        return cls._of(model, optimizer, experiment, group=group, **options)

    @classmethod
    def _of(
        cls, model: nn.Module | Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, experiment: Experiment, *,
        group: Any = None, **options: Any,
    ) -> Team:  # fmt: skip
        team = cls.__new__(cls)
        team._set_up(model, optimizer, experiment, Lanes(group), **options)
        return team

    def _set_up(
        self, model: nn.Module | Sequence[nn.Module], optimizer: torch.optim.Optimizer | None, experiment: Experiment, lanes: Lanes, *,
        accumulate: int = 1, multiple_of: int = 1, verified: bool = False, trace: str | Path | None = None,
    ) -> None:  # fmt: skip
        experiment = with_whole_batches(experiment)
        models = [model] if isinstance(model, nn.Module) else list(model)
        if is_checked():
            experiment, verified = with_uneven_shares(experiment, lanes.everyone.size, models), True
        check_num_ranks(experiment, lanes.everyone.size)
        check_allocation(experiment)
        self._accumulate = checks.whole("accumulate", accumulate)
        self._classes = classes_of(experiment)
        self._trace = None if trace is None else Path(trace)
        self._whole_batches = checks.whole("multiple_of", multiple_of) > 1
        if self._whole_batches:
            experiment = with_allocation(experiment, Multiples(experiment.coordination.allocation, multiple_of))
        self._checks_stated = True
        """Whether a share that is stated keeps the shares even."""
        self._gate: Gate | None = None
        if not (checks.flag("verified", verified) or isinstance(experiment.coordination.allocation, Even)):
            self._gate = Gate(experiment.coordination.allocation)
            experiment = with_allocation(experiment, self._gate)
        self._experiment = experiment
        self._lanes = lanes
        lanes.set_workers(experiment.num_workers)
        self.rank: int = lanes.everyone.rank
        self.size: int = lanes.everyone.size
        self._pace = Pace("none")
        self._clock = clock_of(next((parameter.device for model in models for parameter in model.parameters()), torch.device("cpu")))
        self._model = Wrapped(models, experiment, self._clock)
        self._is_timed = not self._model.reduces or trace is not None or experiment.coordination.allocation.has("observe")
        """Whether anything depends on the seconds of this rank's gradients. A GPU is not waited for otherwise."""
        if optimizer is None and not self._model.reduces:
            raise ValueError(NO_OPTIMIZER)
        self._optimizer = optimizer
        self._averages = not (experiment.coordination.needs_server or experiment.coordination.trains_locally)
        """Whether each step is along the mean over a batch of all workers."""
        self._programs: EpochPrograms | None = None
        self._saved: Mapping[str, Any] | None = None
        self._batches: DrawnBatches | StreamedBatches | None = None
        self._sampled: SampledOrder | None = None
        """The samples of this epoch, if a sampler draws them."""
        self._terms: Terms | None = None
        """The terms of the step that is under way; None if there is none."""
        self._num_parts = 0
        """The number of the loader's batches for this step that the loop has received."""
        self._is_shared = True
        """Whether the loop has taken a share of the last batch."""
        self._per_sample = 1.0
        """The terms of a sample in the last step."""
        self._kind: int | None = None
        """What all ranks' losses have a term for. None before the first step."""
        self._num_steps = 0
        self._watch: Watch | None = None
        if self.trains and experiment.num_workers > 1:
            self._watch = Watch(lanes.store, lanes.name, self.rank, experiment.num_workers, self._place)
        self._pass_began: Any = None
        """The mark of the beginning of the pass that is under way."""
        self._waited = 0.0

    # What a script calls

    def loader(
        self, dataset: Any, *, shuffle: bool = True, sampler: Any = None, drop_last: bool = False, steps_per_epoch: int | None = None,
        device: Any = None, **options: Any,
    ) -> TeamLoader:  # fmt: skip
        """A loader of this rank's batches. It replaces a DataLoader with a DistributedSampler, and shuffles each epoch by the seed.

        Each iteration goes to the end of the epoch, also after a `break` or a resume.

        Args:
            dataset: a Dataset. Of an IterableDataset, each rank draws as many samples as it needs from its own stream.
            shuffle: whether to shuffle each epoch. You do not need `set_epoch`.
            sampler: draws the samples of each epoch, on the first rank, for all: a WeightedRandomSampler, or one that sorts by length.
            drop_last: whether each epoch leaves out the samples that fill no whole batch of all ranks.
            steps_per_epoch: the steps of an epoch of an IterableDataset, which begins again at its end.
            device: the device to which batches are moved. By default, batches are not moved.
            options: further arguments of a DataLoader, such as `num_workers`.
        """
        if self._programs is not None:
            raise ValueError(ONE_LOADER)
        check_options(dataset, options)
        experiment, batch_size = self._experiment, self._experiment.batch_size
        streams = is_stream(dataset)
        if streams is (steps_per_epoch is None) or (streams and sampler is not None):
            raise ValueError(STREAM if streams else "steps_per_epoch is of an IterableDataset, and this dataset has a length: leave it out")
        if isinstance(sampler, DistributedSampler):
            raise ValueError("the Team divides the samples among the ranks: leave the DistributedSampler out")
        if streams:
            num_samples = checks.whole("steps_per_epoch", steps_per_epoch) * batch_size
        else:
            num_samples = len(dataset if sampler is None else sampler)
        per_epoch = num_samples // batch_size * batch_size if checks.flag("drop_last", drop_last) else num_samples
        if self._whole_batches and per_epoch % batch_size:
            raise ValueError("the last batch of an epoch has other shares than multiples of multiple_of: pass drop_last=True to the loader")
        if per_epoch < experiment.num_workers:
            raise ValueError(
                f"the {num_samples} samples make no batch of {batch_size} for {experiment.num_workers} workers: lower batch_size"
            )
        order = EpochOrder(num_samples, per_epoch, seed=experiment.seed, shuffle=checks.flag("shuffle", shuffle))
        described = repr((num_samples, per_epoch, streams, sampler is None, order.indices(Batch(0, min(1000, per_epoch)))))
        self._lanes.check_agreed("the dataset, shuffle and drop_last", zlib.crc32(described.encode()))
        task = ModelTask(self._model.module, num_samples=per_epoch, reduces=self._model.reduces, counts=self._averages)
        self._users = UsersOptimizer(self._optimizer, task)
        self._programs = EpochPrograms(experiment, self._lanes, task, self._users, self._pace, classes=self._classes, trace=self._trace)
        if self._saved is not None:
            self._programs.resume(self._saved["content"])
        self._sampled = None if sampler is None else SampledOrder(sampler, self._lanes.workers, per_epoch)
        if self._sampled is not None and self._saved is not None:
            self._sampled.drawn = self._saved["drawn"]
        return TeamLoader(self, self._programs, dataset, None if streams else self._sampled or order, device, options)

    def share(self, losses: torch.Tensor, number: Any = None, *, mask: torch.Tensor | None = None, divided: bool = False) -> torch.Tensor:
        """This rank's share of the loss, for `backward`: the sum of its terms divided by the number of terms of all ranks.

        Args:
            losses: unreduced losses of any shape, one for each sample, token or box. A single number is a mean over this rank's samples;
                unless the Team is `verified`, the shares of all ranks then stay even.
            number: the number of terms of which a single number is the mean, if these are not the samples.
            mask: the weight of each of the losses, such as 1 for a token that counts and 0 for one that does not.
            divided: whether the loss is one number that is already divided by the mean number of terms of a rank, as in DETR or in
                transformers' Trainer, so that the mean of all ranks' losses is the loss of the whole batch.
        """
        _, terms = self._present()
        was_stated = terms.stated
        samples = self._samples_of_part(self._num_parts - 1)
        share = terms.divided(losses, samples) if divided else terms.share(losses, number, mask, samples)
        self._is_shared = True
        if terms.stated and not was_stated and self._checks_stated:
            self._keep_even(STATED)
        return share

    def step(self, *, max_norm: float | None = None, scaler: Any = None) -> None:
        """Instead of `optimizer.step()`: exchange what the method exchanges, and take its steps.

        Args:
            max_norm: clip the norm of each gradient that your optimizer steps along, instead of `clip_grad_norm_`.
            scaler: the GradScaler of the loss, instead of its `step` and `update`.
        """
        now = self._clock.mark()
        if self._optimizer is None and (scaler is not None or max_norm is not None):
            raise ValueError(
                "max_norm and scaler are of the Team's own step, and this Team has no optimizer: clip and unscale after team.step()"
            )
        if scaler is not None and self._experiment.coordination.needs_server:
            raise ValueError(
                f"method={self._experiment.method} sends gradients to a server, which does not know this rank's scale: train in bfloat16, "
                "which needs no GradScaler"
            )
        asked, terms = self._present()
        if self._num_parts < self._accumulate:
            raise ValueError(
                f"team.step() after {self._num_parts} of accumulate={self._accumulate} batches: take one step after all of them"
            )
        if terms.kind is None:
            raise ValueError("team.step() without a share: pass the loss of each batch through team.share(…) before backward()")
        self._time_pass(asked, now)
        task = self._users.task
        if task.reduces:
            task.scale_gradients(self._correction(terms))
        elif terms.kind == BY_TERMS and not self._averages:
            self._per_sample = terms.number / terms.samples or self._per_sample
        asked.gradient = task.collected_gradient(terms.relative_number)
        self._users.max_norm, self._users.scaler = max_norm, scaler
        self._terms = None
        assert self._programs is not None
        self._programs.advance()

    def mean(self, value: T, number: float | None = None) -> T:
        """Σ b_i v_i / Σ b_i over all workers, which wait for each other, such as the loss of the whole batch for a log.

        Args:
            value: v_i, a number or a tensor.
            number: b_i; by default, this rank's samples in this step.
        """
        weight = float(self.samples if number is None else number)
        given = torch.as_tensor(value).detach()
        own = given.to("cpu", torch.float64).flatten()
        if not self.trains:
            raise ValueError(f"rank {self.rank} serves, and has no values: call team.mean only where team.trains")
        with self.waiting():
            total = self._lanes.workers.sum(torch.cat([own * weight if weight else own * 0, own.new_tensor([weight])]))
        mean = total[:-1] / total[-1]
        if isinstance(value, torch.Tensor):
            dtype = given.dtype if given.is_floating_point() else torch.get_default_dtype()
            return mean.reshape(given.shape).to(given.device, dtype)
        return float(mean)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this context, the loop waits for other ranks: its seconds do not count as this rank's work."""
        began = self._pace.clock()
        try:
            yield
        finally:
            self._waited += self._pace.clock() - began

    @property
    def samples(self) -> int:
        """The number of samples of this rank in this step, or in the one before if there is none now."""
        return self._samples

    @property
    def shares(self) -> tuple[int, ...]:
        """The number of each worker's samples in a whole batch, by the newest measurements."""
        if self._programs is None:
            raise ValueError(NO_LOADER)
        return self._programs.shares

    @property
    def epoch(self) -> int:
        """The number of complete epochs, which is also the index of the current epoch."""
        if self._programs is None and self._saved is not None:
            return int(self._saved["epoch"])
        return 0 if self._programs is None else self._programs.epoch

    @property
    def trains(self) -> bool:
        """Whether this rank trains. A server's rank does not."""
        return self.rank < self._experiment.num_workers

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume, besides the states of the model and the optimizer.

        Save it on each rank. Methods without a server may also resume all ranks from the state of one, or any number of ranks, without
        what belongs to one rank, such as the residual of a compression.
        """
        if self._programs is None:
            raise ValueError(NO_LOADER)
        drawn = None if self._sampled is None else self._sampled.drawn
        return {"epoch": self._programs.epoch, "content": self._programs.saved(), "drawn": drawn}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from the last commit before `state_dict` was called. Call it on each rank, before `loader`.

        Args:
            saved: the result of `state_dict` on this rank, or on another one.
        """
        if self._programs is not None:
            raise ValueError("the loop has begun: call load_state_dict before team.loader(…)")
        self._saved = saved

    def close(self) -> None:
        """End the Team and its loader's workers. A DistributedDataParallel is as it was."""
        if self._batches is not None:
            self._batches.close()
        if self._watch is not None:
            self._watch.close()
        if self._programs is not None:
            self._programs.close()
        self._model.close()
        self._lanes.close()

    # The step that is under way

    _samples = 0

    def _place(self) -> str:
        """Where the loop is."""
        return f"is in step {self._num_steps} of epoch {self.epoch}" if self._terms is not None else f"is after step {self._num_steps}"

    def _present(self) -> tuple[Asked, Terms]:
        """The gradient whose batch the loop has, and its terms."""
        if self._programs is None:
            raise ValueError(NO_LOADER)
        asked, terms = self._programs.asked, self._terms
        if asked is None or terms is None:
            raise ValueError(NO_BATCH)
        return asked, terms

    def _begin_pass(self, part: int) -> None:
        """The loop computes one of the parts of what the program asks for."""
        programs = self._programs
        assert programs is not None
        asked = programs.asked
        assert asked is not None
        batch = asked.batch
        self._num_parts = part + 1
        if part == 0:
            self._num_steps += 1
            split = programs.split_of(batch) if self._averages else None
            whole = self._experiment.batch_size if split is None else split.num_samples
            self._terms = Terms(batch.samples, whole, self._experiment.num_workers, self._per_sample, averaged=self._model.reduces)
            self._samples = batch.samples
            asked.seconds = 0.0
        assert self._terms is not None
        self._terms.in_pass = None
        self._is_shared = False
        self._model.begin_pass(reduces=self._num_parts == self._accumulate)
        self._waited = 0.0
        self._pass_began = self._clock.mark()

    def _end_pass(self) -> None:
        """The loop continues after a part that is not the last one."""
        if not self._is_shared:
            raise ValueError(NOT_SHARED)
        if self._num_parts < self._accumulate:
            asked, _ = self._present()
            self._time_pass(asked, self._clock.mark())

    def _time_pass(self, asked: Asked, now: Any) -> None:
        """Add the seconds of a pass to the gradient's, without those in which it waited."""
        ended, waited = self._model.end_of_pass(now)
        if not self._is_timed:
            asked.ended = asked.reduced = self._pace.clock()
        else:
            asked.ended, asked.reduced = self._clock.seconds(ended), self._clock.seconds(now)
            asked.seconds += asked.ended - self._clock.seconds(self._pass_began) - self._waited - waited()

    def _samples_of_part(self, part: int) -> int:
        """The number of samples of this part of the step's batch."""
        return self._samples * (part + 1) // self._accumulate - self._samples * part // self._accumulate

    def _correction(self, terms: Terms) -> float:
        """The factor for gradients that the model has added up, whose losses were divided by a guess of the number of terms."""
        if self._kind is None:
            with self.waiting():
                self._kind = int(max(kind for (kind,) in self._lanes.workers.gather_numbers(float(terms.kind or 0))))
        if self._kind != BY_TERMS:
            if terms.kind == BY_TERMS:
                raise ValueError(FIRST_TERMS)
            return 1.0
        with self.waiting():
            total = float(self._lanes.workers.sum(torch.tensor([terms.number], dtype=torch.float64)))
        guess, self._per_sample = terms.batch_size * self._per_sample, total / terms.batch_size or self._per_sample
        return guess / total if total else 0.0

    def _keep_even(self, why: str) -> None:
        """Keep even shares from now on, unless the Team is `verified`. Raises ValueError if they are uneven."""
        if self._gate is None or not self._gate.is_open:
            return
        if max(self.shares) - min(self.shares) > 1:
            raise ValueError(f"the shares are uneven, and {why}")
        self._gate.is_open = False
        if self.rank == 0:
            warnings.warn(f"all ranks keep even shares, because {why}", stacklevel=3)


class TeamLoader:
    """The batches of this rank, from where the loop is to the end of the epoch."""

    def __init__(
        self, team: Team, programs: EpochPrograms, dataset: Any, order: EpochOrder | SampledOrder | None, device: Any,
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.dataset = dataset
        self._team = team
        self._programs = programs
        self._device = device
        self._batches: DrawnBatches | StreamedBatches
        if order is None:
            self._batches = StreamedBatches(dataset, options)
        else:
            self._batches = DrawnBatches(dataset, order.indices, self._foresee, options)
        team._batches = self._batches

    def __len__(self) -> int:
        """The number of batches of a whole epoch, if the shares do not change."""
        return self._programs.num_steps() * self._team._accumulate

    def __iter__(self) -> Iterator[Any]:
        team = self._team
        for batches in self.steps():
            for part, batch in enumerate(batches):
                team._begin_pass(part)
                yield batch
                team._end_pass()

    def steps(self) -> Iterator[Iterator[Any]]:
        """The batches of each step."""
        programs, sampled = self._programs, self._team._sampled
        if sampled is not None and self._team.trains:
            sampled.begin(programs.epoch)
        programs.begin_epoch()
        while (asked := programs.asked) is not None:
            yield map(self._drawn, self._parts(asked.batch))
            if programs.asked is asked:
                raise ValueError(NOT_STEPPED)
        self._batches.end_epoch()

    def _drawn(self, part: Batch) -> Any:
        batch = self._batches.get(part)
        return batch if self._device is None else moved(batch, self._device)

    def _parts(self, batch: Batch) -> Sequence[Batch]:
        """The ranges of the loader's batches for this range. One without samples gets a sample whose loss does not count."""
        parts = self._team._accumulate
        epoch = self._programs.epoch * self._programs.plan.per_epoch
        edges = [batch.start + batch.samples * part // parts for part in range(parts + 1)]
        return [
            Batch(start, stop - start, batch.pool) if stop > start else Batch(max(start - 1, epoch), 1, batch.pool)
            for start, stop in pairwise(edges)
        ]

    def _foresee(self, part: Batch) -> Iterator[Batch]:
        """This range of a batch, and those that will probably be asked for after it."""
        asked = self._programs.asked
        assert asked is not None
        following = (ahead for batch in self._programs.foresee(asked.batch) for ahead in self._parts(batch))
        for ahead in following:
            if ahead == part:
                break
        yield part
        yield from following
