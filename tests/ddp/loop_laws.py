"""What the ranks of `test_ddp_loops.py` do: loops that stop where they like, and runs that go on from what was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ddp_laws import BATCH_SIZE, PARTS, UNEVEN, WORKERS, Samples, mlp
from ranks import found_by
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team
from hetsim.policies.allocation import Fixed, SpeedProportional

NUMBER = 2 * BATCH_SIZE + 4
"""Samples of three steps, of which the last is short."""


def whole(loader: Any) -> Iterator[Any]:
    """A loop that asks until there is no more."""
    return iter(loader)


def zipped(loader: Any) -> Iterator[Any]:
    """A loop that never asks for a batch after the last one."""
    return (batch for _, batch in zip(range(len(loader)), loader, strict=False))


def broken(loader: Any) -> Iterator[Any]:
    """A loop that breaks at the last batch."""
    for place, batch in enumerate(loader):
        yield batch
        if place == len(loader) - 1:
            break


def sized(loader: Any) -> Iterator[Any]:
    """As Lightning does: an iterator of each epoch is kept until the next one, and asked at most as often as `__len__` says."""
    KEPT.append(iter(loader))
    yield from islice(KEPT[-1], len(loader))


KEPT: list[Iterator[Any]] = []
WITH_WORKERS = "zipped, with workers"
LOOPS = {"whole": whole, "zipped": zipped, "broken": broken, "sized": sized}


def taken(batches: Iterable[Any]) -> list[int]:
    """The places of this rank's samples, which all count, as every step has enough for all ranks."""
    return [place for _, _, places in batches for place in places.tolist()]


def epochs(rank: int) -> dict[str, Any]:
    """Four epochs by each kind of loop, and by one with workers: the steps, this rank's places, and `team.epoch` after each."""
    found = {}
    for name, loop in {**LOOPS, WITH_WORKERS: zipped}.items():
        team = Team(BATCH_SIZE, UNEVEN)
        loader = team.loader(Samples(NUMBER), **({**WORKERS, "persistent_workers": True} if name == WITH_WORKERS else {}))
        found[name] = []
        for _ in range(4):
            batches = list(loop(loader))
            found[name].append((len(batches), taken(batches), team.epoch))
    return found


def saved_at(step: int, loop: Callable[[Any], Iterator[Any]]) -> tuple[dict[str, Any], list[int]]:
    """The state in the body of this step, and this rank's places up to it."""
    team = Team(BATCH_SIZE, UNEVEN)
    places: list[int] = []
    for number, (_, _, each) in enumerate(loop(team.loader(Samples(NUMBER)))):
        places += each.tolist()
        if number == step:
            return team.state_dict(), places
    raise AssertionError(step)


def resumed(rank: int) -> dict[str, Any]:
    """Stopped in the body of each of three steps of the first epoch, and resumed by `for epoch in range(team.epoch, 3)`."""
    found = {}
    for step in range(3):
        for name, loop in LOOPS.items():
            state, places = saved_at(step, loop)
            team = Team(BATCH_SIZE, UNEVEN)
            team.load_state_dict(state)
            early = team.epoch
            loader = team.loader(Samples(NUMBER))
            each = {0: places}
            for epoch in range(team.epoch, 3):
                each[epoch] = each.get(epoch, []) + taken(loop(loader))
            found[f"{step} {name}"] = {"places": each, "begun": early, "ended": team.epoch}
    return found


def resumed_otherwise(rank: int) -> dict[str, Any]:
    """Stopped after two of four steps, and resumed with another batch size and another rule."""
    found = {}
    for name, other in {
        "batch size": lambda: Team(13, UNEVEN),
        "rule": lambda: Team(BATCH_SIZE, SpeedProportional(reallocate_every=2)),
        "parts": lambda: Team(BATCH_SIZE, Fixed(parts=PARTS[::-1])),
    }.items():
        state, places = saved_at(1, whole)
        team = other()
        team.load_state_dict(state)
        batches = team.loader(Samples(NUMBER))
        found[name] = {"shares": team.shares, "places": places + taken(batches)}
    return found


def rest(rank: int, state: dict[str, Any]) -> list[int]:
    """What is left of the epoch of a run of other ranks."""
    size = {2: [1, 2], 4: [1, 2, 3, 1]}
    from torch import distributed as dist

    team = Team(BATCH_SIZE, Fixed(parts=size[dist.get_world_size()]))
    team.load_state_dict(state)
    return taken(team.loader(Samples(NUMBER)))


def traced(rank: int, folder: Path) -> None:
    """Two epochs by each kind of loop, with and without `close`."""
    for name, loop in LOOPS.items():
        for closed in (True, False):
            team = Team(BATCH_SIZE, UNEVEN, trace=folder / f"{name} {closed}")
            model, loader = team.wrap(DDP(mlp())), team.loader(Samples(NUMBER))
            for _ in range(2):
                for x, y, _ in loop(loader):
                    mse_loss(model(x), y).backward()
            if closed:
                team.close()


def accumulated(rank: int, folder: Path) -> None:
    """Windows of two steps, in each of which gradients are reduced."""
    team = Team(BATCH_SIZE, UNEVEN, accumulate=2, trace=folder / "accumulated")
    model, loader = team.wrap(DDP(mlp())), team.loader(Samples(5 * BATCH_SIZE), drop_last=True)
    for _ in range(2):
        for x, y, _ in loader:
            mse_loss(model(x), y).backward()


def all_loops(rank: int, folder: str) -> dict[str, Any]:
    """Each by its name."""
    loops: dict[str, Callable[[], Any]] = {
        "epochs": lambda: epochs(rank),
        "resumed": lambda: resumed(rank),
        "resumed_otherwise": lambda: resumed_otherwise(rank),
        "saved": lambda: saved_at(1, whole),
        "traced": lambda: traced(rank, Path(folder)),
        "accumulated": lambda: accumulated(rank, Path(folder)),
    }
    return found_by(loops)
