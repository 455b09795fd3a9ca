"""A Team in Hugging Face's Trainer: `class BalancedTrainer(Balanced, Trainer)`. This module does not import transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from hetsim import checks
from hetsim.ddp.hook import GLOBAL, LOSSES, MEAN
from hetsim.ddp.team import Team
from hetsim.policies.allocation import Allocation

SAVED = "hetsim.ddp.Team"
"""The Team's state in a checkpoint's trainer_state.json, under `stateful_callbacks`."""
OPTIONS = (
    "collate_fn", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context", "worker_init_fn",
    "in_order",
)  # fmt: skip
"""The options of the Trainer's loader that the Team's loader uses."""
IGNORED = -100
"""The label of a token without a loss."""


class Balanced:
    """A mixin that balances transformers' Trainer, or a subclass of it: `class BalancedTrainer(Balanced, Trainer)`.

    Each step's gradient is that of one process over the whole batch of `per_device_train_batch_size` times the number of ranks. A Team
    divides this batch, and shuffles the samples by `data_seed` or `seed`. Everything else stays the Trainer's: evaluation, accumulation,
    checkpoints. Without torchrun, the class is the Trainer itself.
    """

    args: Any
    state: Any
    accelerator: Any
    model_wrapped: Any
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any
    label_names: Sequence[str]
    """These are the Trainer's."""
    team: Team | None
    """The Team of the run; None before `train`, and without torchrun."""

    def __init__(
        self, *arguments: Any, allocation: str | Allocation = "dbs", max_samples: int | Sequence[int] | None = None,
        loss: str | None = None, trace: str | Path | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Create the Trainer from its own arguments. Raises ValueError if an argument is invalid.

        Args:
            arguments: the Trainer's.
            allocation: how shares are decided, as for a Team.
            max_samples: the most samples of one step that fit into this rank's memory, or a list for all ranks.
            loss: "global" if `compute_loss` divides by `num_items_in_batch`, "mean" if it is the mean over the rank's samples. By default,
                it is what the Trainer's own `compute_loss` does.
            trace: the folder to which rank 0 writes the files of a run.
            options: the Trainer's.
        """
        super().__init__(*arguments, **options)
        if loss not in (None, *LOSSES):
            raise ValueError(f"loss must be {' or '.join(LOSSES)}, not {checks.shown(loss)}")
        self.team = None
        self._loader: Any = None
        self._loss, self._is_given, self._is_wrapped, self._is_divided = loss, loss is not None, False, False
        self._team_options: dict[str, Any] = {"allocation": allocation, "max_samples": max_samples, "trace": trace}

    def get_train_dataloader(self) -> Any:
        """The Team's loader, with the dataset, collate function and workers of the Trainer's own loader."""
        of_trainer = super().get_train_dataloader()  # type: ignore[misc]
        if not dist.is_initialized():
            return of_trainer
        if self.team is not None and (self._is_wrapped or self.team.number):
            raise ValueError("the Team of this Trainer has drawn batches already: create another Trainer to train")
        if self.team is not None:
            return self._loader
        args = self.args
        if args.auto_find_batch_size:
            raise ValueError("auto_find_batch_size would change the batch of all ranks: leave it out, and pass max_samples to the Trainer")
        size, window = args.world_size, args.gradient_accumulation_steps
        batch_size = args.per_device_train_batch_size * size
        drops = args.dataloader_drop_last or window > 1
        self.team = Team(
            batch_size, seed=args.data_seed if args.data_seed is not None else args.seed, accumulate=window, **self._team_options
        )
        self._loss = self._loss or self._kind_of_loss()
        options = {name: getattr(of_trainer, name) for name in OPTIONS if hasattr(of_trainer, name)}
        loader = self.team.loader(of_trainer.dataset, shuffle=shuffles(of_trainer), drop_last=drops, **options)
        if self._loss == GLOBAL and not drops and 0 < len(loader.dataset) % batch_size < size:
            raise ValueError(
                f"the last step of an epoch has fewer samples than the {size} ranks, and the Trainer would count the tokens of a sample of "
                "weight 0: set dataloader_drop_last=True"
            )
        args.ignore_data_skip = True  # when a run resumes, the Team knows its position in the epoch
        self._loader = loader
        return loader

    def get_batch_samples(self, epoch_iterator: Any, *arguments: Any, **options: Any) -> Any:
        """The batches of a window, and the number of tokens that the Trainer counts in them. The first call wraps the model.

        Args:
            epoch_iterator: the batches of the epoch.
            arguments: the Trainer's own.
            options: the Trainer's own.
        """
        if self.team is not None and not self._is_wrapped:
            self._begin(self.team)
        batches, num_items = super().get_batch_samples(epoch_iterator, *arguments, **options)  # type: ignore[misc]
        if self.team is not None and batches and not self._is_given:
            self._check_batches(batches, num_items)
        return batches, num_items

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Compute the gradients of a batch. Raises ValueError if a part of the loss ignores the number of tokens.

        Args:
            model: the wrapped model.
            inputs: the batch.
            num_items_in_batch: the number of tokens of all ranks in the window, or None if the Trainer does not count them.
        """
        probe = None
        if self.team is not None and not self._is_given and num_items_in_batch is not None:
            probe = num_items_in_batch = torch.as_tensor(num_items_in_batch).to(torch.float32, copy=True).requires_grad_()
        loss = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        if probe is not None:
            self._check_divided(loss, probe)
        return loss

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Train, and write the rest of the trace.

        Args:
            arguments: the Trainer's own.
            options: the Trainer's own.
        """
        output = super().train(*arguments, **options)  # type: ignore[misc]
        if self.team is not None:
            self.team.close()
        return output

    def _maybe_log_save_evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Log, evaluate and save with the Team's epoch, because the Trainer counts from the first step after a resume."""
        if self.team is not None:
            steps = len(self._loader) // self.args.gradient_accumulation_steps
            self.state.epoch = self.state.global_step // steps + self.state.global_step % steps / steps
        return super()._maybe_log_save_evaluate(*arguments, **options)  # type: ignore[misc]

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Save a checkpoint with the Team's state."""
        if self.team is not None:
            self.state.stateful_callbacks[SAVED] = self.team.state_dict()
        super()._save_checkpoint(*arguments, **options)  # type: ignore[misc]

    def _begin(self, team: Team) -> None:
        """Wrap the model that the Trainer has prepared, and resume the Team if the Trainer resumes."""
        if self.state.global_step:
            if SAVED not in self.state.stateful_callbacks:
                raise ValueError(
                    "the checkpoint has no state of a Team, as another Trainer saved it: resume it with that Trainer, or begin with its "
                    "weights, without resume_from_checkpoint"
                )
            saved = self.state.stateful_callbacks[SAVED]
            team.load_state_dict(saved)
            steps = [(state["accumulate"], state["batch_size"]) for state in (team.state_dict(), saved)]
            if steps[0] != steps[1]:
                here, there = (f"{window} times {samples}" if window > 1 else str(samples) for window, samples in steps)
                raise ValueError(
                    f"the checkpoint is of steps of {there} samples, and here they have {here}, so the Trainer would miscount its epochs: "
                    "set gradient_accumulation_steps, and per_device_train_batch_size times the number of ranks, to what they were"
                )
        team.wrap(self.model_wrapped, loss=self._loss or MEAN)
        self._is_wrapped = True

    def _kind_of_loss(self) -> str:
        """The kind of loss that the Trainer's `compute_loss` returns. Raises ValueError for the user's own function."""
        owner = next(of for of in type(self).__mro__ if "compute_loss" in vars(of))
        if owner.__module__.partition(".")[0] != "transformers":
            raise ValueError(
                f"{owner.__name__} has a compute_loss of its own: pass loss='global' to the Trainer if it divides by num_items_in_batch, "
                "as Trainer.compute_loss does, or loss='mean' if it is the mean over the rank's samples"
            )
        counts = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if counts and self.args.world_size > 1 and not self.args.average_tokens_across_devices:
            raise ValueError(
                "each rank would average over its own tokens, and unequal shares would change the gradient: set "
                "average_tokens_across_devices=True"
            )
        return GLOBAL if counts and "labels" in self.label_names else MEAN

    def _check_divided(self, loss: torch.Tensor, count: torch.Tensor) -> None:
        """Raise ValueError unless the loss is f/n, with the derivative −f/n² by the number of tokens n."""
        scaler = getattr(self.accelerator, "scaler", None)
        if count.grad is not None and not self._is_divided:  # once, as a GPU waits for it
            whole = loss.double() * (1.0 if scaler is None else scaler.get_scale())
            rounding = 64 * max(torch.finfo(loss.dtype).eps, torch.finfo(count.dtype).eps)
            self._is_divided = not bool((count.grad * count.detach() + whole).abs() > rounding * whole.abs())
        if self._is_divided and count.grad is not None:
            return
        if self.compute_loss_func is not None:
            remedy = "divide what compute_loss_func returns by it, or pass loss='global' to the Trainer if it does so by a plain number"
        elif count.grad is None:
            remedy = "set model.accepts_loss_kwargs = False before you create the Trainer"
        else:
            remedy = "leave the other part out, or pass loss='global' to the Trainer to train as it does without a Team"
        raise ValueError(
            f"{'a part of ' if count.grad is not None else ''}the loss is not divided by num_items_in_batch, which the Trainer takes for "
            f"granted and multiplies by the number of ranks: {remedy}"
        )

    def _check_batches(self, batches: Sequence[Any], num_items: Any) -> None:
        """Raise ValueError if the loss of these batches is of the other kind, or a mean over tokens."""
        if (num_items is not None) != (self._loss == GLOBAL):
            remedy = (
                "pass loss='mean' to the Trainer"
                if num_items is None
                else "pass loss='global' to the Trainer if it is divided by num_items_in_batch, or set model.accepts_loss_kwargs = False"
            )
            raise ValueError(
                f"the batches have {'no labels' if num_items is None else 'labels'}, unlike label_names={self.label_names}: {remedy}"
            )
        labels = [batch["labels"] for batch in batches if "labels" in batch] if self._loss == MEAN else []
        if any(bool((each == IGNORED).any()) for each in labels):
            raise ValueError(
                "the loss is the mean over the labels that are not -100, whose number differs between ranks, and the model takes no "
                "num_items_in_batch: give the Trainer a compute_loss_func that divides by it"
            )


def shuffles(loader: Any) -> bool:
    """Whether this DataLoader shuffles its samples. Raises ValueError if it draws them in its own order."""
    inner = loader.batch_sampler
    while hasattr(inner, "batch_sampler"):  # one that Accelerate has divided among the ranks
        inner = inner.batch_sampler
    sampler = getattr(inner, "sampler", inner)
    if isinstance(loader.dataset, IterableDataset) or isinstance(sampler, RandomSampler | SequentialSampler):
        return not isinstance(sampler, SequentialSampler)
    raise ValueError(
        f"a Team draws samples at random or in order, and not by {type(sampler).__name__}: set train_sampling_strategy to 'random' or "
        "'sequential'"
    )
