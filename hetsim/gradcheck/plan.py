"""The plan of a single process: for each batch of its DataLoaders, the samples that all ranks had.

A step may take several batches. A mean over samples or tokens does not depend on which sample is in which of them, so the plan mixes them.
In the last step, the process gets only the samples of the first rank. If the gradients of that step agree, too, they prove nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Windows:
    """The batches of each step: `size` of them, after those that a loop draws `ahead` or drops at the beginning."""

    size: int = 1
    ahead: int = 0
    loader: str | None = None
    """The loader of the last step; None if the windows are not regular."""
    stop: int = 0
    """Its batches until then."""

    @property
    def of_one_rank(self) -> range:
        """The loader's last batches, which contain only the first rank's samples, so that all of those of the last step do."""
        return range(max(0, self.stop - self.ahead - self.size), self.stop)

    def may_contain_one_rank(self, step: Record) -> bool:
        """Whether some of the step's batches may be `of_one_rank`."""
        return bool(step["loader"] == self.loader and step["batches"] > self.of_one_rank.start)


def windows(record: Record) -> Windows:
    """What the steps of the first rank show."""
    loader, last = record["steps"][0]["loader"], record["steps"][-1]
    if loader is None or loader in record["divided"]:
        return Windows()
    ends = [step["batches"] for step in record["steps"] if step["loader"] == loader]
    num_batches = len(record["loaders"][loader])
    if ends == [num_batches]:  # one step an epoch
        return Windows(num_batches, 0, last["loader"], last["batches"])
    for steps in (sorted(set(ends)), sorted(set(ends) - {num_batches})):  # the last step of an epoch may be smaller
        gaps = {later - earlier for earlier, later in pairwise(steps)}
        if len(gaps) == 1 and (size := min(gaps)) <= steps[0]:
            return Windows(size, steps[0] - size, last["loader"], last["batches"])
    return Windows()


def plan(ranks: Sequence[Record], *, folder: str, mixed: bool) -> dict[str, Any]:
    """What one process follows.

    Args:
        ranks: the records of several processes.
        folder: where their samples and weights are.
        mixed: whether to mix the samples of a step, and to leave out other ranks' samples in the last one.
    """
    shape = windows(ranks[0])
    loaders = {}
    for name in dict.fromkeys(name for record in ranks for name in record["loaders"]):
        by_rank = [record["loaders"].get(name, []) for record in ranks]
        batches = [
            [(rank, number, index) for rank, drawn in enumerate(by_rank) if number < len(drawn) for index in range(len(drawn[number]))]
            for number in range(max(map(len, by_rank)))
        ]
        if mixed and name not in ranks[0]["unbatched"]:
            is_first = name == ranks[0]["steps"][0]["loader"]
            batches = mix(batches, shape.size) if is_first or len(batches) % shape.size == 0 else batches
        if mixed and name == shape.loader and not all(map(shape.may_contain_one_rank, ranks[0]["steps"])):
            for number in shape.of_one_rank:
                batches[number] = [(0, number, index) for index in range(len(by_rank[0][number]))]
        loaders[name] = batches
    keys = [step["key"] for step in ranks[0]["steps"]]
    following = {key: later for at, key in enumerate(keys) for later in range(len(keys) - 1, at, -1) if keys[later][0] == key[0]}
    return {"folder": folder, "loaders": loaders, "ended": ranks[0]["ended"], "following": following}


def mix(batches: Sequence[Sequence[Any]], size: int) -> list[list[Any]]:
    """The same samples in each `size` batches, and as many in each batch, but others."""
    mixed = []
    for start in range(0, len(batches), size):
        group = batches[start : start + size]
        samples = [sample for batch in group for sample in batch]
        if len(group) == size > 1:
            random.Random(start).shuffle(samples)
        mixed += [[samples.pop() for _ in batch] for batch in group] if size > 1 else [list(batch) for batch in group]
    return mixed
