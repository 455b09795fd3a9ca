"""What the ranks of `test_ddp_order.py` do: loops that draw batches ahead, leave some out, or look at one before they train."""

from __future__ import annotations

import contextlib
import copy
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from ddp_laws import BATCH_SIZE, UNEVEN, Changing, Samples, farthest, gradients, mlp
from ranks import found_by
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from hetsim.ddp import Team

NUMBER = 3 * BATCH_SIZE + 10
"""Samples of four steps, of which the last is short, so that its gradients have a different weight."""
Pair = tuple[Any, bool]
"""A batch, and whether the loop trains on it."""


def plain(loader: Any) -> Iterator[Pair]:
    for batch in loader:
        yield batch, True


def prefetched(loader: Any) -> Iterator[Pair]:
    """One batch ahead, as apex's data_prefetcher and timm's PrefetchLoader."""
    ahead = None
    for batch in loader:
        if ahead is not None:
            yield ahead, True
        ahead = batch
    yield ahead, True


def peeking(loader: Any) -> Iterator[Pair]:
    """It looks at a batch, and then trains on all."""
    next(iter(loader))
    yield from plain(loader)


def peeking_alone(loader: Any) -> Iterator[Pair]:
    """Rank 0 does so, and the others do not."""
    if torch.distributed.get_rank() == 0:
        next(iter(loader))
    yield from plain(loader)


def in_a_thread(loader: Any) -> Iterator[Pair]:
    """Another thread draws, as a background generator does."""
    drawn: queue.Queue[Any] = queue.Queue(maxsize=2)

    def draw() -> None:
        for batch in loader:
            drawn.put(batch)
        drawn.put(None)

    threading.Thread(target=draw, daemon=True).start()
    while (batch := drawn.get()) is not None:
        yield batch, True


def leaving_out(loader: Any) -> Iterator[Pair]:
    """Every second batch is not trained on."""
    for place, batch in enumerate(loader):
        yield batch, place % 2 == 1


def fetched_between(loader: Any) -> Iterator[Pair]:
    """As nanoGPT: the next batch is drawn between the forward and the backward pass (`trained` draws it)."""
    yield from plain(loader)


def teed(loader: Any) -> Iterator[Pair]:
    """One copy of an iterator is a batch ahead of the other."""
    ahead, batches = itertools.tee(loader)
    next(ahead)
    for batch, _ in itertools.zip_longest(batches, ahead):
        yield batch, True


def in_pairs(loader: Any) -> Iterator[Pair]:
    """Two batches are drawn at a time, and trained on one after the other."""
    batches = iter(loader)
    for pair in zip(batches, batches, strict=True):
        yield from ((batch, True) for batch in pair)


def zipped(loader: Any) -> Iterator[Any]:
    """Two iterators, of which the first one's batches are trained on."""
    return (batch for batch, _ in zip(loader, loader, strict=False))


def zipped_copies(loader: Any) -> Iterator[Any]:
    """The model gets copies, in which no batch is recognised."""
    return ((x.clone(), y, places) for (x, y, places), _ in zip(loader, loader, strict=False))


def in_turns(loader: Any) -> Iterator[Any]:
    """Another iterator begins after the first one's first batch."""
    for batch in loader:
        yield batch
        yield next(iter(loader))


def evaluating(loader: Any) -> Iterator[Any]:
    """A whole pass over the samples within the epoch, such as for an accuracy."""
    for batch in loader:
        yield batch
        assert sum(len(x) for x, _, _ in loader)


def cycled(loader: Any) -> Iterator[Any]:
    """The batches of the first epoch again and again."""
    return itertools.islice(itertools.cycle(loader), 6)


def listed(loader: Any) -> Iterator[Any]:
    """They are drawn once."""
    batches = list(loader)
    yield from batches + batches


def replayed(loader: Any) -> Iterator[Any]:
    """The first batch, after another one."""
    batches = iter(loader)
    first = next(batches)
    yield from (first, next(batches), next(batches), first)


def of_copies(loader: Any) -> Iterator[Any]:
    """Copies of them, as `cuda` makes."""
    return ((x.clone(), y, places) for x, y, places in cycled(loader))


KEPT = (cycled, listed, replayed, of_copies)
"""Loops that train on batches which the loader has given long before."""
LOOPS = (plain, prefetched, peeking, peeking_alone, in_a_thread, leaving_out, fetched_between, teed, in_pairs)
TWO_ITERATORS = {zipped: 0, zipped_copies: 1, in_turns: 2, evaluating: 1}
"""Loops over two iterators at a time, and the steps that they train."""


def from_serial(samples: Samples, model: DDP, places: torch.Tensor) -> tuple[float, list[int]]:
    """How far the model's gradients are from those of one process over the samples of all ranks, and these samples."""
    serial, everything = serial_gradients(samples, model, places)
    return farthest(gradients(model.module), serial), everything


def serial_gradients(samples: Samples, model: DDP, places: torch.Tensor) -> tuple[list[torch.Tensor], list[int]]:
    """The gradients of one process over the samples of all ranks, and these samples."""
    of_all: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(of_all, places.tolist())
    everything = [place for each in of_all for place in each]
    serial = copy.deepcopy(model.module)
    serial.zero_grad()
    mse_loss(serial(samples.x[everything]), samples.y[everything]).backward()
    return gradients(serial), everything


def trained(loop: Any) -> dict[str, Any]:
    """Two epochs: how far each gradient is from the serial one, the samples of each epoch, and a state in the middle of the second."""
    samples = Samples(NUMBER)
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model = team.loader(samples), team.wrap(DDP(mlp()))
    worst, epochs, state = 0.0, [], None
    for epoch in range(2):
        used: list[int] = []
        batches = loop(loader)
        pair = next(batches, None)
        while pair is not None:
            (x, y, places), is_trained = pair
            if is_trained:
                model.zero_grad()
                loss = mse_loss(model(x), y)
            pair = next(batches, None) if loop is fetched_between else ()
            if is_trained:
                loss.backward()
                off, everything = from_serial(samples, model, places)
                worst = max(worst, off)
                used += everything
                if epoch == 1 and len(used) >= 2 * BATCH_SIZE and state is None:
                    state = team.state_dict()["position"], len(used)
            if loop is not fetched_between:
                pair = next(batches, None)
        epochs.append(sorted(used))
    return {"worst": worst, "epochs": epochs, "state": state}


def copied() -> str:
    """Batches drawn ahead whose copies go into the model: the sentence."""
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model = team.loader(Samples(NUMBER)), team.wrap(DDP(mlp()))
    try:
        for (x, y, _), _ in prefetched(loader):
            mse_loss(model(x.clone()), y).backward()
    except ValueError as error:
        return str(error)
    return ""


def kept(loop: Any) -> tuple[str, int]:
    """The sentence, and how many steps were trained before it."""
    team, steps = Team(BATCH_SIZE, UNEVEN), 0
    loader, model = team.loader(Samples(NUMBER)), team.wrap(DDP(mlp()))
    try:
        for x, y, _ in loop(loader):
            mse_loss(model(x), y).backward()
            steps += 1
    except ValueError as error:
        return str(error), steps
    return "", steps


def released() -> int:
    """How many batches are still in memory after an epoch that nothing is trained on, such as one of `update_bn`."""
    team, batches = Team(BATCH_SIZE, UNEVEN), list[StorageWeakRef]()
    loader, model = team.loader(Samples(NUMBER)), team.wrap(DDP(mlp()))
    with torch.no_grad():
        for batch in loader:
            model(batch[0])
            batches.append(StorageWeakRef(batch[0].untyped_storage()))
    del batch
    return sum(not storage.expired() for storage in batches)


def filtered(*, is_counted: bool) -> Any:
    """A collate function drops samples: the sentence, or the samples of the first step's gradient and how far it is from theirs."""
    samples = Samples(NUMBER)
    team = Team(BATCH_SIZE, UNEVEN)

    def collate(rows: list[Any]) -> Any:
        return torch.utils.data.default_collate([row for row in rows if row[2] % 3])

    loader, model = team.loader(samples, collate_fn=collate), team.wrap(DDP(mlp()))
    x, y, places = next(iter(loader))
    try:
        if is_counted:
            team.count(len(x))
        mse_loss(model(x), y).backward()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return from_serial(samples, model, places)[0]


def left_in_a_window() -> list[int]:
    """A loop of windows of two steps is left within one and goes on by a new iterator: this rank's places in an epoch of four steps."""
    team = Team(BATCH_SIZE, UNEVEN, accumulate=2)
    loader, model = team.loader(Samples(4 * BATCH_SIZE), drop_last=True), team.wrap(DDP(mlp()))
    taken: list[int] = []
    for numbers in (range(3), range(3, 4)):
        for number, (x, y, places) in zip(numbers, loader, strict=False):
            with model.no_sync() if number % 2 == 0 else contextlib.nullcontext():
                mse_loss(model(x), y).backward()
            taken += places.tolist()
    return taken


def ahead_in_windows() -> float:
    """As transformers' Trainer: a window's batches are drawn, and copies of them go into the model; the split changes between windows."""
    samples = Samples(16 * BATCH_SIZE)
    team = Team(BATCH_SIZE, Changing(), accumulate=2, warmup_steps=0)
    loader, model, worst, splits = team.loader(samples, drop_last=True), team.wrap(DDP(mlp())), 0.0, set()
    batches = iter(loader)
    for _ in range(8):
        drawn = [next(batches) for _ in range(2)]
        model.zero_grad()
        for place, (x, y, _) in enumerate(drawn):
            with model.no_sync() if place == 0 else contextlib.nullcontext():
                (mse_loss(model(x.clone()), y) / 2).backward()
        worst = max(worst, from_serial(samples, model, torch.cat([places for *_, places in drawn]))[0])
        splits.add(team.shares)
    assert len(splits) > 2
    return worst


def two_at_once(number: int) -> Any:
    """Two batches under one backward pass, of so many samples: the sentence, or how far the sums of gradients are from the serial ones."""
    samples = Samples(number)
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model, worst = team.loader(samples), team.wrap(DDP(mlp())), 0.0
    batches = iter(loader)
    try:
        for (x, y, places), (other_x, other_y, others) in zip(batches, batches, strict=True):
            model.zero_grad()
            (mse_loss(model(x), y) + mse_loss(model(other_x), other_y)).backward()
            summed = gradients(model.module)
            model.module.zero_grad()
            singles = [serial_gradients(samples, model, each)[0] for each in (places, others)]
            worst = max(worst, farthest(summed, [one + other for one, other in zip(*singles, strict=True)]))
    except ValueError as error:
        return str(error)
    return worst


def in_parts(size: int, *, is_counted: bool = False) -> Any:
    """The model gets parts of at most so many samples, weighted by these: the sentence, or the distance from the serial gradient."""
    samples = Samples(BATCH_SIZE)
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model = team.loader(samples), team.wrap(DDP(mlp()))
    x, y, places = next(iter(loader))
    parts = list(zip(x.split(size), y.split(size), strict=True))
    try:
        for place, (part, target) in enumerate(parts):
            with model.no_sync() if place < len(parts) - 1 else contextlib.nullcontext():
                loss = mse_loss(model(part), target) * len(part) / len(x)
                if is_counted:
                    team.count(len(x))
                loss.backward()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return from_serial(samples, model, places)[0]


def with_earlier_samples() -> str:
    """Copies of two earlier samples are added to the batch, as from a replay buffer: the sentence."""
    team = Team(BATCH_SIZE, UNEVEN)
    loader, model = team.loader(Samples(NUMBER)), team.wrap(DDP(mlp()))
    x, y, _ = next(iter(loader))
    try:
        mse_loss(model(torch.cat([x, x[:1].clone(), y.new_ones(1, 6)])), torch.cat([y, y[:1], y[:1]])).backward()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def all_orders(rank: int) -> dict[str, Any]:
    """Each loop in turn; a loop that raises returns its traceback."""
    laws = {loop.__name__: lambda loop=loop: trained(loop) for loop in LOOPS}
    laws |= {loop.__name__: lambda loop=loop: kept(loop) for loop in (*KEPT, *TWO_ITERATORS)}
    laws |= {
        "released": released,
        "ahead_in_windows": ahead_in_windows,
        "copied": copied,
        "left_in_a_window": left_in_a_window,
        "counted": lambda: filtered(is_counted=True),
        "filtered": lambda: filtered(is_counted=False),
        "two_at_once": lambda: two_at_once(4 * BATCH_SIZE),
        "two_of_other_weights": lambda: two_at_once(NUMBER),
        "unequal_parts": lambda: in_parts(3),
        "equal_parts": lambda: in_parts(2),
        "counted_parts": lambda: in_parts(3, is_counted=True),
        "with_earlier_samples": with_earlier_samples,
    }
    return found_by(laws)
