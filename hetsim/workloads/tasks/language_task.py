"""Prediction of a text's next character, computed by torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch

from hetsim.effects import Batch
from hetsim.workloads.data.part import part_of
from hetsim.workloads.data.text import TRAINING_SHARE, sequences, sonnets, tokens_of
from hetsim.workloads.device import Device
from hetsim.workloads.models.transformer import Transformer, loss
from hetsim.workloads.task import Evaluation
from hetsim.workloads.tasks.flat_model import FlatModel, FlatTask
from hetsim.workloads.tasks.rows import Rows
from hetsim.workloads.tasks.sequence import Indices, Sequence

MAX_SCORED_SEQUENCES = 512
"""The maximum number of training sequences over which the training loss is averaged."""
SCORED_TOGETHER = 64
"""The number of sequences to evaluate together."""


class LanguageTask(FlatTask):
    """The mean cross entropy of each character of a sequence, given the earlier characters."""

    def __init__(
        self, *, context_length: int, model_options: Mapping[str, int], num_samples: int | None, seed: int, dtype: str, device: Device
    ) -> None:
        self.device = device
        tokens, self.vocabulary = tokens_of(sonnets())
        split = round(TRAINING_SHARE * len(tokens))
        train, test = (sequences(part, context_length) for part in (tokens[:split], tokens[split:]))
        if num_samples is not None:
            train = train[part_of(len(train), num_samples, None)]
        self._train, self._test = (Rows(torch.from_numpy(rows), device) for rows in (train, test))
        self.num_samples = len(train)
        self.sequence = Sequence(self.num_samples, seed=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Transformer(vocabulary=len(self.vocabulary), context_length=context_length, **model_options)
        self.model = device.place(model.to(getattr(torch, dtype)))
        self.flat = FlatModel(self.model, [], seed=seed, device=device)
        self.num_parameters: int = self.flat.num_parameters

    def gradient(self, at: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        rows = self._train.take(self.sequence.indices(batch)).long()
        return self.flat.gradient(at, batch, lambda: _loss(self.model, rows))

    def gradients(self, at: Iterable[torch.Tensor], batches: Iterable[Batch]) -> list[tuple[torch.Tensor, float]]:
        rows = torch.stack([self._train.take(self.sequence.indices(batch)).long() for batch in batches])
        return self.flat.gradients(list(at), (rows,), _loss)

    def loss_at(self, at: torch.Tensor, batch: Batch) -> float:
        self.flat.place(at, training=False)
        return self._score(self._train, self.sequence.indices(batch))[0]

    def evaluate(self, at: torch.Tensor) -> Evaluation:
        self.flat.place(at, training=False)
        count = min(self.num_samples, MAX_SCORED_SEQUENCES)
        train_loss, _ = self._score(self._train, np.arange(count) * self.num_samples // count)
        test_loss, accuracy = self._score(self._test, np.arange(len(self._test)))
        metrics = {"test_loss": test_loss, "test_bits_per_character": test_loss / math.log(2)}
        return Evaluation(train_loss=train_loss, test_accuracy=accuracy, metrics=metrics)

    def _score(self, data: Rows, indices: Indices) -> tuple[float, float]:
        """The mean loss of each character in nats, and the share of characters that were predicted as the likeliest."""
        total, right, count = 0.0, 0, len(indices) * (data.shape[0] - 1)
        with torch.no_grad():
            for some in np.split(indices, range(SCORED_TOGETHER, len(indices), SCORED_TOGETHER)):
                rows = data.take(some).long()
                with self.device.forward():
                    outputs = self.model(rows[:, :-1])
                    total += loss(outputs, rows[:, 1:], reduction="sum").item()
                right += int((outputs.argmax(-1) == rows[:, 1:]).sum())
        return total / count, right / count


def _loss(model: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    return loss(model(rows[:, :-1]), rows[:, 1:])
