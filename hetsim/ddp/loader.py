"""A data loader whose batches are this rank's shares. It replaces a DataLoader with a DistributedSampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from hetsim.ddp.schedule import Schedule, Step
from hetsim.ddp.used import TWO_ITERATORS
from hetsim.workloads.device import keep_kernels, moved

OWN = ("batch_size", "batch_sampler", "sampler")
OTHER = ("batch_size", "drop_last")
"""Attributes of the inner DataLoader that differ from the Team's."""
DEFAULT_PREFETCH = 2
"""The number of batches that each worker of a DataLoader draws ahead."""


class Loop(Protocol):
    """The training loop that asks for batches."""

    number: int
    """The number of the next step."""

    def begin_loop(self) -> None:
        """A new iterator begins."""

    def begin_step(self, *, first: bool = False) -> None:
        """The loop asks for the next batch."""

    def hand_over(self, step: Step, batch: Any) -> None:
        """The loop receives the batch of this step."""

    def end_epoch(self) -> None:
        """The epoch has no further batch."""


def look_ahead(options: Mapping[str, Any]) -> int:
    """How many steps ahead of the returned batch a DataLoader with these options draws."""
    workers = options.get("num_workers") or 0
    return workers * (options.get("prefetch_factor") or DEFAULT_PREFETCH) if workers else 0


def check_options(dataset: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a dataset or options with which ranks would not get their shares."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise ValueError("an IterableDataset has its own order of samples, so no rank can get its share: take a Dataset with indices")
    if not hasattr(dataset, "__len__"):
        raise ValueError("the dataset has no __len__, by which an epoch is divided: add it")
    for name in OWN:
        if name in options:
            raise ValueError(f"{name} is decided by the Team, whose batch_size is that of all ranks together: leave it out of the loader")
    if options.get("in_order") is False:
        raise ValueError("in_order=False hands batches out in any order, and their samples would get the weights of others: leave it out")


class TeamLoader:
    """The batches of this rank. It is no DataLoader, so frameworks that divide a DataLoader among ranks do not divide it.

    Iterating continues where the last iteration stopped: to the end of the epoch after a `break` or a resume. If the last batch of an epoch
    has been returned, the next iteration goes through the next epoch, even if the loop did not ask for another batch.
    """

    def __init__(self, dataset: Any, schedule: Schedule, loop: Loop, rank: int, device: Any, options: Mapping[str, Any]) -> None:
        self.dataset, self.schedule = dataset, schedule
        self._loop, self._rank, self._device = loop, rank, device
        self.sampler = self.batch_sampler = Reshuffled()
        self._drawn: deque[Step] = deque()
        """The steps of the last iterator whose batches are not returned yet."""
        keep_kernels()  # before the first batch; their sizes change
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=_Batches(self), **options)

    def __len__(self) -> int:
        """The number of steps of a whole epoch."""
        return self.schedule.data.num_steps()

    def __getattr__(self, name: str) -> Any:
        """Further attributes of a DataLoader that scripts read, such as `num_workers`."""
        if name in OTHER:
            raise AttributeError(f"a Team's loader has no {name}, as shares change: team.samples is that of this rank in this step")
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def draw(self) -> Iterator[list[int]]:
        """The samples of this rank in each remaining step of the epoch."""
        schedule = self.schedule
        order = schedule.data.order(schedule.epoch)
        for step in schedule.steps(self._loop.number):
            self._drawn.append(step)
            places = step.range_of(self._rank)
            yield order[places.start : places.stop].tolist()

    def __iter__(self) -> Iterator[Any]:
        self._loop.begin_loop()
        # the last iteration may have stopped at the last batch, as `zip(range(len(loader)), loader)` does
        if self.schedule.is_over(self._loop.number):
            self._loop.begin_step()
            self._loop.end_epoch()
        self._loop.begin_step(first=True)
        drawn: deque[Step] = deque()
        self._drawn = drawn
        batches = iter(self._loader)
        for batch in batches:
            given = batch if self._device is None else moved(batch, self._device)
            self._loop.hand_over(drawn.popleft(), given)
            yield given
            if self._drawn is not drawn:
                raise ValueError(TWO_ITERATORS)
            self._loop.begin_step()
        self._loop.end_epoch()


class Reshuffled:
    """The sampler of a TeamLoader, for loops that call its `set_epoch`. Epochs have different orders without this call."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def __iter__(self) -> Iterator[Any]:
        raise ValueError(
            "another DataLoader cannot draw the Team's samples: iterate over team.loader(…); team.load_state_dict resumes an epoch"
        )


class _Batches:
    """The batch sampler of a TeamLoader."""

    is_divided = True
    """Whether the batches of a single process are those of several together. `hetsim-ddp-check` reads it."""

    def __init__(self, loader: TeamLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader.draw()

    def __len__(self) -> int:
        return self._loader.schedule.num_steps()
