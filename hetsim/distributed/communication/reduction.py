"""Add the vectors of an all-reduce: by gloo in the CPU's memory, or by NCCL on the GPUs.

NCCL is used only for these sums, and gloo for everything else. NCCL cannot receive from any source, its sends block without a matching
receive, and its collectives wait for a killed rank until their timeout. gloo detects a loss at once. So each rank waits in a thread for a
gloo message from the previous rank, which comes at the end of that rank's program (`PeerWatch`). If the rank is lost instead, this process
ends. The next rank detects that, and so on around the ring.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Thread
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist

from hetsim.distributed.communication.gloo import TIMEOUT
from hetsim.distributed.communication.transport import Sums, Transport, as_tensor
from hetsim.distributed.pacing.padding import clock
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.workloads.device import Device


class PeerWatch:
    """Within this context, `report(error)` is called in a thread if the previous rank is lost.

    The context's end waits for the end of that rank. No other code may use the transport's messages.
    """

    def __init__(self, transport: Transport, report: Callable[[PeerLost], None]) -> None:
        self._transport = transport
        self._report = report
        self._cancelled = False
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeerWatch:
        if self._transport.size > 1:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._transport.size > 1:
            self._transport.send(torch.zeros(1), (self._transport.rank + 1) % self._transport.size)
            self._thread.join()

    def cancel(self) -> None:
        """Report nothing from now on, because this rank's own error is nearer to the cause."""
        self._cancelled = True

    def _watch(self) -> None:
        try:
            self._transport.receive(torch.empty(1), (self._transport.rank - 1) % self._transport.size)
        except PeerLost as error:
            if not self._cancelled:
                self._report(error)


class Add(Protocol):
    """A function that sums a vector on each rank's device over all ranks. The result is on this rank's device."""

    def __call__(self, value: Any, /, *, in_place: bool = False) -> torch.Tensor:
        """With `in_place`, the sum may overwrite the value."""


AddUp = Callable[[Any], Callable[[], None]]
"""A function of entries on each rank's device, called by the thread that made them.

It returns a function that replaces them by the sum over all ranks, for the second thread.
"""
Report = Callable[[RunFailed | PeerLost], None]
Library = Literal["gloo", "nccl"]
ABORT_SECONDS = 2.0
"""The time within which NCCL's groups must be aborted."""


class Reduction(NamedTuple):
    """The order and library of the ranks' sums. Each of a rank's threads has its own process group."""

    library: Library
    main: Add
    second: Add
    order: str
    """The value of the key `backend.reduction`."""
    bucket: AddUp
    """Replaces a part of a vector by its sum, in the second thread's group."""

    @classmethod
    def by_gloo(cls, transport: Transport, device: Device, order: str) -> Reduction:
        """Sums in the CPU's memory."""

        def add_in_cpu_memory(sums: Sums) -> Add:
            add = add_function(sums, order)

            def total(value: Any, *, in_place: bool = False) -> torch.Tensor:
                if sums.size == 1:
                    tensor = as_tensor(value)
                    return tensor if in_place else tensor.clone()
                fetched = device.fetch(value)
                return device.place(add(as_tensor(fetched), in_place=in_place or fetched is not value))

            return total

        add_up = add_function(transport.background, order)

        def bucket(part: Any) -> Callable[[], None]:
            fetched, wait_for_part = device.begin_fetch(as_tensor(part)), device.mark()

            def reduce() -> None:
                numbers = fetched()
                add_up(numbers, in_place=True)
                if isinstance(part, torch.Tensor) and numbers is not part:
                    wait_for_part()
                    part.copy_(numbers)

            return reduce

        return cls("gloo", add_in_cpu_memory(transport), add_in_cpu_memory(transport.background), order, bucket)

    @classmethod
    def on_device(cls, sums: Sums, background: Sums, device: Device, order: str) -> Reduction:
        """Sums on the devices, by a library that adds there."""

        def add_on_devices(sums: Sums) -> Add:
            add = add_function(sums, order)

            def total(value: Any, *, in_place: bool = False) -> torch.Tensor:
                placed = device.place(as_tensor(value))
                return add(placed, in_place=in_place or placed is not value)

            return total

        add_up = add_function(background, order)

        def bucket(part: Any) -> Callable[[], None]:
            numbers = part if isinstance(part, torch.Tensor) else device.place(as_tensor(part))
            wait_for_part = device.mark()

            def reduce() -> None:
                wait_for_part()
                add_up(numbers, in_place=True)

            return reduce

        return cls("nccl", add_on_devices(sums), add_on_devices(background), order, bucket)


def add_function(sums: Sums, order: str) -> Add:
    """The sum by the key `backend.reduction`, of tensors on the library's device."""
    return sums.sum_in_rank_order if order == "ordered" else sums.sum


def reducing_library(gpus: Sequence[float]) -> Library:
    """The library that sums these ranks' vectors: NCCL if each has its own GPU, otherwise gloo. `gpus` are the ranks' GPUs (0: none).

    NCCL does not accept tensors in the CPU's memory, or two ranks on one GPU.
    """
    return "nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


@contextlib.contextmanager
def open_reduction(
    library: Library, transport: Transport, device: Device, order: str, *, interface: str, report: Report
) -> Iterator[Reduction]:
    """Within this context, the ranks can sum with this library, which is the same on all of them. NCCL's groups exist only in this context.

    NCCL's own timeout is as long as gloo's, because a slow step is no failure. A watch calls `report(error)` if a rank is lost. NCCL
    connects in a first sum, which may take seconds. If the block fails, its groups are aborted, so that nothing waits for other ranks. If
    the abort hangs, `report(error)` has to end the process.
    """
    if library == "gloo":
        yield Reduction.by_gloo(transport, device, order)
        return
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without the sign also those whose names begin so
    groups: list[Any] = []
    watch = PeerWatch(transport.background, report)
    try:
        with watch:
            with nccl_errors():
                for _ in range(2):
                    groups.append(dist.new_group(backend="nccl", timeout=TIMEOUT))
            sums, background = (GroupSums(transport.size, group, nccl_errors) for group in groups)
            reduction = Reduction.on_device(sums, background, device, order)
            for add in (reduction.main, reduction.second):
                add(torch.zeros(transport.size))
                device.synchronise()
            yield reduction
        for group in groups:
            dist.destroy_process_group(group)
    except BaseException as error:
        watch.cancel()
        if not abort(groups):
            report(error if isinstance(error, RunFailed | PeerLost) else RunFailed(f"rank {transport.rank}: {error}"))
        raise


def abort(groups: Sequence[Any]) -> bool:
    """Abort these groups at the same time, because NCCL groups may wait for each other. Returns whether all ended in time."""
    threads = [Thread(target=group.abort, daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = clock() + ABORT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - clock()))
    return not any(thread.is_alive() for thread in threads)


_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The function's name from torch 2.14 on, where the old name warns."""


class GroupSums(Sums):
    """torch.distributed's sums, in a group of all ranks (None: gloo's first group). `errors` translates its errors.

    NCCL's functions return when the work is queued on the device. A caller that needs the result in CPU memory, or reads a clock,
    synchronises.
    """

    def __init__(self, size: int, group: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self.size = size
        self._group = group
        self._errors = errors

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        with self._errors():
            dist.all_to_all_single(received, sent, group=self._group)

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        with self._errors():
            _all_gather(everything, mine, group=self._group)

    def add_up(self, flat: torch.Tensor) -> None:
        """A ring adds each piece once along the ring, and a tree adds at its root. So all ranks get copies of one sum."""
        with self._errors():
            dist.all_reduce(flat, group=self._group)


@contextlib.contextmanager
def nccl_errors() -> Iterator[None]:
    """Raise PeerLost for NCCL's errors, with NCCL's first line, which does not distinguish a lost peer from a broken link or driver."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise PeerLost(f"NCCL cannot add up the ranks' vectors ({first}): set NCCL_DEBUG=WARN to see why") from error
