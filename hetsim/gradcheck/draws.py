"""The batches that a script's DataLoaders yield: recorded in several processes, and those of all ranks together in one."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from hetsim.gradcheck.samples import loaded, merged, packed


class Draws:
    """What this process' DataLoaders have yielded. `plan` is what they yield in a single process; None in several.

    A loader's name is its number, in the order of the first iterations, and the number of this iteration.
    """

    def __init__(self, folder: Path, rank: int, plan: dict[str, Any] | None, leave: Callable[[], None]) -> None:
        self._folder, self._rank, self._plan, self._leave = folder, rank, plan, leave
        self.loaders: dict[str, list[list[str]]] = {}
        """By a loader's name: a digest of each sample of each of its batches."""
        self.unbatched: list[str] = []
        """The loaders that do not collate samples."""
        self.ended: list[str] = []
        """The loaders whose last batch was drawn."""
        self.divided: list[str] = []
        """The loaders that yield the batches of all ranks together if there is a single one."""
        self.number = 0
        """The batches so far."""
        self.latest: str | None = None
        """The loader of the latest one."""
        self._iterations: dict[int, tuple[int, Any, list[int]]] = {}
        self._state = 0

    @property
    def random(self) -> bool:
        """Whether random numbers were drawn since the latest batch."""
        return self.number > 0 and self._state != random_state()

    def intercept(self) -> None:
        """From now on, each DataLoader of this process yields what `_batches` yields."""
        whole = DataLoader.__iter__

        def batches(loader: DataLoader[Any]) -> Iterator[Any]:
            return self._batches(loader) if torch.is_grad_enabled() else iter(whole(loader))  # evaluations need not be compared

        DataLoader.__iter__ = batches  # type: ignore[assignment, method-assign]

    def _batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        number, _, count = self._iterations.setdefault(id(loader), (len(self._iterations), loader, [0]))
        name = f"{number}.{count[0]}"
        count[0] += 1
        self.loaders[name] = []
        divided = getattr(loader.batch_sampler, "is_divided", False)
        if divided:
            self.divided.append(name)
        if loader.batch_sampler is None:
            self.unbatched.append(name)
        source = self._recorded(loader, name) if self._plan is None or divided else self._planned(loader, name)
        for batch in source:
            self.number += 1
            self.latest = name
            self._state = random_state()
            yield batch
        self.ended.append(name)

    def _recorded(self, loader: DataLoader[Any], name: str) -> Iterator[Any]:
        for samples in loaded(loader):
            contents = [packed(sample) for sample in samples]
            if self._plan is None:
                path = self._folder / f"samples-{self._rank}-{name}-{len(self.loaders[name])}"
                path.write_bytes(pickle.dumps(contents))
            self.loaders[name].append([hashlib.sha1(content, usedforsecurity=False).hexdigest() for content in contents])
            yield loader.collate_fn(samples if loader.batch_sampler is not None else samples[0])

    def _planned(self, loader: DataLoader[Any], name: str) -> Iterator[Any]:
        assert self._plan is not None
        folder = Path(self._plan["folder"])
        for places in self._plan["loaders"].get(name, ()):
            files = {(rank, batch): pickle.loads((folder / f"samples-{rank}-{name}-{batch}").read_bytes()) for rank, batch, _ in places}
            samples = [pickle.loads(files[rank, batch][index]) for rank, batch, index in places]
            self.loaders[name].append([""] * len(samples))
            if loader.batch_sampler is None:
                yield merged([loader.collate_fn(sample) for sample in samples])
            else:
                yield loader.collate_fn(samples)
        if name not in self._plan["ended"]:
            self._leave()


def random_state() -> int:
    """A number that changes if the process draws random numbers from one of the usual generators."""
    _, keys, place, *_ = np.random.get_state()
    states = [torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(keys).tobytes(), place]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return hash(tuple(states))
