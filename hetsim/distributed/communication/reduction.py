"""Add the vectors of an all-reduce: by gloo in the CPU's memory, or by NCCL on the GPUs.

NCCL is used only for these sums, and gloo for everything else. NCCL cannot receive from any source, its sends block without a matching
receive, and it does not detect a killed rank (`hetsim.distributed.communication.nccl_watch`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.distributed as dist

from hetsim.distributed.communication.gloo import TIMEOUT
from hetsim.distributed.communication.nccl_watch import PeerWatch
from hetsim.distributed.communication.sums import GroupSums, Sums, nccl_errors
from hetsim.distributed.communication.transport import Transport, as_tensor
from hetsim.distributed.pacing.padding import clock
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed
from hetsim.workloads.device import Device


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

        def through_cpu(sums: Sums) -> Add:
            add = in_order(sums, order)

            def added_up(value: Any, *, in_place: bool = False) -> torch.Tensor:
                if sums.size == 1:
                    own = as_tensor(value)
                    return own if in_place else own.clone()
                fetched = device.fetch(value)
                return device.place(add(as_tensor(fetched), in_place=in_place or fetched is not value))

            return added_up

        add_up = in_order(transport.background, order)

        def bucket(part: Any) -> Callable[[], None]:
            fetched, made = device.begin_fetch(as_tensor(part)), device.mark()

            def reduce() -> None:
                numbers = fetched()
                add_up(numbers, in_place=True)
                if isinstance(part, torch.Tensor) and numbers is not part:
                    made()
                    part.copy_(numbers)

            return reduce

        return cls("gloo", through_cpu(transport), through_cpu(transport.background), order, bucket)

    @classmethod
    def on_device(cls, sums: Sums, background: Sums, device: Device, order: str) -> Reduction:
        """Sums on the devices, by a library that adds there."""

        def there(sums: Sums) -> Add:
            add = in_order(sums, order)

            def added_up(value: Any, *, in_place: bool = False) -> torch.Tensor:
                placed = device.place(as_tensor(value))
                return add(placed, in_place=in_place or placed is not value)

            return added_up

        add_up = in_order(background, order)

        def bucket(part: Any) -> Callable[[], None]:
            numbers = part if isinstance(part, torch.Tensor) else device.place(as_tensor(part))
            made = device.mark()

            def reduce() -> None:
                made()
                add_up(numbers, in_place=True)

            return reduce

        return cls("nccl", there(sums), there(background), order, bucket)


def in_order(sums: Sums, order: str) -> Add:
    """The sum by the key `backend.reduction`, of tensors on the library's device."""
    return sums.sum_in_rank_order if order == "ordered" else sums.sum


@contextlib.contextmanager
def connected(library: Library, transport: Transport, device: Device, order: str, *, interface: str, report: Report) -> Iterator[Reduction]:
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
        if not aborted(groups):
            report(error if isinstance(error, RunFailed | PeerLost) else RunFailed(f"rank {transport.rank}: {error}"))
        raise


def aborted(groups: Sequence[Any]) -> bool:
    """Abort these groups at the same time, because NCCL groups may wait for each other. Returns whether all ended in time."""
    threads = [Thread(target=group.abort, daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = clock() + ABORT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - clock()))
    return not any(thread.is_alive() for thread in threads)
