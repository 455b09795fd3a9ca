"""The samples of a user's own Dataset, one by one, read by the rank itself or by its loader workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset

from hetsim.workloads.own.chance import seed_everything
from hetsim.workloads.tasks.sequence import Indices, Words


def underlying_dataset(dataset: Any) -> Any:
    """The Dataset that this one is a part of, if it was made by `random_split` or as a Subset; else the Dataset itself."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def indices_of(dataset: Any) -> Indices:
    """For all samples of a Dataset, their indices in the `underlying_dataset`."""
    chosen = np.arange(len(dataset), dtype=np.int64)
    while type(dataset) is Subset:
        chosen, dataset = np.asarray(dataset.indices, dtype=np.int64)[chosen], dataset.dataset
    return chosen


def takes_lists(dataset: Any) -> bool:
    """Whether the Dataset returns all samples of a batch at once. These are seeded together."""
    return hasattr(dataset, "__getitems__")


def read_samples(dataset: Any, chosen: Indices, drawn: Words) -> list[Any]:
    """The samples with these indices, each seeded by its word. If the Dataset takes lists, the first word seeds all of them."""
    if takes_lists(dataset):
        seed_everything(int(drawn[0]) >> 32)
        return list(dataset.__getitems__(chosen.tolist()))
    samples = []
    for index, word in zip(chosen.tolist(), drawn.tolist(), strict=True):
        seed_everything(word >> 32)
        samples.append(dataset[index])
    return samples
