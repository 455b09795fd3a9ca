"""A Team in Hugging Face's Trainer: `class BalancedTrainer(Balanced, Trainer)`. This module does not import transformers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from hetsim.gradcheck.turning import is_checked
from hetsim.loop.plan import num_steps
from hetsim.loop.team import Team, TeamLoader
from hetsim.policies.allocation.base import Allocation

SAVED = "hetsim.Team"
"""The Team's state in a checkpoint's trainer_state.json, under `stateful_callbacks`."""
OPTIONS = ("collate_fn", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context", "worker_init_fn")
"""The options of the Trainer's loader that the Team's loader uses."""
ROUNDING = 1e-5
"""The relative difference between two losses that may be due to rounding."""
NO_SUM = (
    "the values of the loss are not those of a sum that is divided by num_items_in_batch: divide it so, for example in a "
    "compute_loss_func; or set model.accepts_loss_kwargs = False before you create the Trainer, if the loss is a mean over samples; "
    "or pass verified=True to the Trainer"
)
NO_MEAN = (
    "the values of the loss are not those of a mean over samples: give the Trainer a compute_loss_func that divides a sum by "
    "num_items_in_batch, or pass verified=True to the Trainer"
)
_Trainer: Any = object
"""The class after the mixin."""


class Balanced(_Trainer):  # type: ignore[misc]
    """A mixin that balances transformers' Trainer, or a subclass of it: `class BalancedTrainer(Balanced, Trainer)`.

    Each step's gradient is that of one process over the whole batch of `per_device_train_batch_size` times the number of ranks. A Team
    divides this batch, and shuffles the samples by `data_seed` or `seed`. Everything else stays the Trainer's: evaluation, accumulation,
    checkpoints. Without torchrun, the class is the Trainer itself.

    In the steps 0, 1, 2, 4, 8, …, the loss of a batch is compared with those of its halves, and with that for twice the number of tokens.
    If it is neither a sum that is divided by `num_items_in_batch`, nor a mean over samples, all ranks keep even shares, with a remark.
    """

    team: Team | None = None
    """The Team of the last run; None before `train`, and without torchrun."""

    def __init__(
        self, *arguments: Any, allocation: str | Allocation = "dbs", max_samples: int | None = None, verified: bool = False,
        trace: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        """Create the Trainer from its own arguments.

        Args:
            arguments: the Trainer's.
            allocation: how shares are decided, as for a Team.
            max_samples: the most samples that fit into this rank's memory at a time.
            verified: whether the loss is known to be a sum that is divided by `num_items_in_batch`, or without it a mean over samples.
            trace: the folder of the files of a run, as for a Team.
            options: the Trainer's.
        """
        super().__init__(*arguments, **options)
        self._team_options: Any = {"allocation": allocation, "max_samples": max_samples, "verified": verified, "trace": trace}
        self._is_divided: bool | None = None
        """In a training step: whether the Trainer takes the loss to be divided by a number of terms of the whole step."""
        self._is_measured = False
        self._num_passes = 0
        """The batches of this step whose gradients are computed."""

    def get_train_dataloader(self) -> Any:
        """The Team's loader, with the dataset, collate function and workers of the Trainer's own loader."""
        plain = super().get_train_dataloader()
        dist: Any = torch.distributed
        if is_checked() and not dist.is_initialized():  # one process trains on the batches of several
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if not dist.is_initialized():
            return plain
        if self.args.auto_find_batch_size:
            raise ValueError("auto_find_batch_size would change the batch of all ranks: leave it out, and pass max_samples to the Trainer")
        self.args.ignore_data_skip = True  # when a run resumes, the Team knows its position in the epoch
        return WindowLoader(self, plain)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute the gradients of a batch. After the last one of a step, they are those of all ranks.

        Args:
            model: the wrapped model.
            inputs: the batch.
            num_items_in_batch: the number of tokens of all ranks in the step; None if the Trainer does not count them.
        """
        team, step = self.team, self.state.global_step
        if team is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if not self._num_passes and not (self._is_measured and step & (step - 1)):
            self._measure(team, inputs, num_items_in_batch)
        team._begin_pass(self._num_passes)
        self._is_divided = num_items_in_batch is not None or self._divides_alone
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._is_divided = None
        self._num_passes += 1
        if self.accelerator.sync_gradients:
            team.step()
            self._num_passes = 0
        else:
            team._end_pass()
        return loss

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """The Trainer's loss, or in a training step this rank's share of it.

        Args:
            model: the model.
            inputs: the batch.
            arguments: the Trainer's.
            options: the Trainer's.
        """
        loss = super().compute_loss(model, inputs, *arguments, **options)
        if self._is_divided is None or self.team is None:
            return loss
        if self._is_divided:
            return self.team.share(loss, divided=True)
        return self.team.share(loss) * self.args.gradient_accumulation_steps  # by which the Trainer divides it

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Train, and write the trace.

        Args:
            arguments: the Trainer's.
            options: the Trainer's.
        """
        output = super().train(*arguments, **options)
        if self.team is not None:
            self.team.close()
        return output

    def _maybe_log_save_evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Log, evaluate and save with the Team's epoch, because the Trainer counts from the first step after a resume."""
        if self.team is not None:
            epoch, step = divmod(self.state.global_step, self._steps_per_epoch)
            self.state.epoch = epoch + step / self._steps_per_epoch
        return super()._maybe_log_save_evaluate(*arguments, **options)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Save a checkpoint with the Team's state, from which each rank resumes."""
        if self.team is not None:
            state = self.team.state_dict()
            self.state.stateful_callbacks[SAVED] = state | {"content": bytes(state["content"].tolist()).hex()}
        super()._save_checkpoint(*arguments, **options)

    @property
    def _batch_size(self) -> int:
        """The samples of a step of all ranks."""
        args = self.args
        return int(args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps)

    @property
    def _steps_per_epoch(self) -> int:
        samples, batch_size = len(self.train_dataset), self._batch_size
        per_epoch = samples // batch_size * batch_size if self.args.dataloader_drop_last else samples
        return num_steps(per_epoch, batch_size, self.args.world_size)

    @property
    def _divides_alone(self) -> bool:
        """Whether the Trainer takes a loss to be divided by a number of terms of the whole step, without num_items_in_batch."""
        stated = getattr(self, "loss_is_scaled_for_ga", None)
        return self.compute_loss_func is not None if stated is None else bool(stated)

    def _begin(self) -> Team:
        """A Team of the model that the Trainer has wrapped, from where the Trainer resumes."""
        args = self.args
        seed, window = args.seed if args.data_seed is None else args.data_seed, args.gradient_accumulation_steps
        team = Team(self.model_wrapped, None, batch_size=self._batch_size, accumulate=window, seed=seed, **self._team_options)
        team._checks_stated = False
        self.team, self._is_measured, self._num_passes = team, False, 0
        if self.state.global_step:
            saved = self.state.stateful_callbacks.get(SAVED)
            if saved is None:
                raise ValueError(
                    "the checkpoint has no state of a Team, as another Trainer saved it: resume it with that Trainer, or begin with its "
                    "weights, without resume_from_checkpoint"
                )
            team.load_state_dict(saved | {"content": torch.tensor(list(bytes.fromhex(saved["content"])), dtype=torch.uint8)})
        return team

    def _measure(self, team: Team, inputs: Any, number: Any) -> None:
        """Keep even shares if the loss is not the sum over a number of tokens, or without such a number not the mean over samples."""
        inputs = self._prepare_inputs(inputs)
        samples = team._samples_of_part(0)
        parts = halves(inputs, samples)
        first, second = parts or (inputs, inputs)
        cases = ((inputs, number), (inputs, None if number is None else number * 2), (first, number), (second, number))
        compute = super().compute_loss
        self.model.eval()
        with torch.no_grad(), self.compute_loss_context_manager():
            losses = [compute(self.model, dict(part), num_items_in_batch=divisor).reshape(()) for part, divisor in cases]
        values = torch.stack(losses).cpu().double()
        whole, halved, of_first, of_second = (values / values.abs().max().clamp(min=sys.float_info.min)).tolist()
        if number is not None:
            difference = abs(whole - 2 * halved) + (abs(whole - of_first - of_second) if parts else 0.0)
            is_stated, tells = self.args.average_tokens_across_devices, whole != 0
        else:
            fraction = samples // 2 / max(samples, 1)
            difference = abs(whole - fraction * of_first - (1 - fraction) * of_second)
            is_stated, tells = not self._divides_alone, parts is not None
        of_all = team.mean(difference, int(tells))
        if not is_stated or of_all >= ROUNDING or (math.isnan(of_all) and not self._is_measured):
            team._keep_even(NO_MEAN if number is None else NO_SUM)
        self._is_measured = True


class WindowLoader:
    """The batches of a Team. The Trainer draws all batches of a step before the first pass, so the Trainer begins the passes.

    The Team begins with the first epoch, when the Trainer has wrapped the model.
    """

    def __init__(self, trainer: Balanced, plain: Any) -> None:
        self.dataset = plain.dataset
        self._trainer, self._plain, self._shuffles = trainer, plain, shuffles(plain)
        self._loader: TeamLoader | None = None

    def __len__(self) -> int:
        return self._trainer._steps_per_epoch * int(self._trainer.args.gradient_accumulation_steps)

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            options: Any = {name: getattr(self._plain, name) for name in OPTIONS if hasattr(self._plain, name)}
            drop_last = bool(self._trainer.args.dataloader_drop_last)
            self._loader = self._trainer._begin().loader(self.dataset, shuffle=self._shuffles, drop_last=drop_last, **options)
        team = self._trainer.team
        assert team is not None
        for batches in self._loader.steps():
            for part, batch in enumerate(batches):
                team._begin_pass(part)
                yield batch if team._samples_of_part(part) else without_labels(batch)


def without_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of a rank without samples, in which the Trainer counts no tokens."""
    return {name: torch.full_like(value, -100) if name in ("labels", "shift_labels") else value for name, value in batch.items()}


def halves(inputs: Mapping[str, Any], samples: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The inputs of each half of the samples. None if there are no halves, or if an input has no entry for each sample."""
    sized = {name for name, value in inputs.items() if isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0}
    shared = (value for name, value in inputs.items() if name not in sized)
    if samples < 2 or {len(inputs[name]) for name in sized} != {samples} or any(isinstance(value, Mapping) for value in shared):
        return None
    first, second = (
        {**inputs, **{name: inputs[name][part] for name in sized}} for part in (slice(samples // 2), slice(samples // 2, None))
    )
    return first, second


def shuffles(loader: Any) -> bool:
    """Whether this DataLoader shuffles its samples. Raises ValueError if it draws them in its own order."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("a Team divides no IterableDataset of the Trainer, whose epochs have no length: take a Dataset with indices")
    inner = loader.batch_sampler
    while hasattr(inner, "batch_sampler"):  # one that Accelerate has divided among the ranks
        inner = inner.batch_sampler
    sampler = getattr(inner, "sampler", inner)
    if isinstance(sampler, RandomSampler | SequentialSampler):
        return not isinstance(sampler, SequentialSampler)
    raise ValueError(
        f"a Team draws samples at random or in order, and not by {type(sampler).__name__}: set train_sampling_strategy to 'random' or "
        "'sequential'"
    )
