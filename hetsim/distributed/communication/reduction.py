"""How the vectors of an all-reduce are added up: by gloo in the CPU's memory, or by NCCL where they are.

NCCL only has these collectives. Everything else goes by gloo: NCCL has no receive from anyone, its sends block without a matching
receive, and it does not notice that a rank is killed (`hetsim.distributed.communication.nccl_watch`).
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
    """The sum over all ranks of a vector on each rank's device, on this rank's device."""

    def __call__(self, value: Any, /, *, in_place: bool = False) -> torch.Tensor:
        """With `in_place`, the sum may take the value's place."""


AddUp = Callable[[Any], Callable[[], None]]
"""Of numbers on each rank's device, called by the thread that has made them: a function that puts the sum over all ranks in their place, in
the second thread."""
Report = Callable[[RunFailed | PeerLost], None]
Library = Literal["gloo", "nccl"]
ABORT_SECONDS = 2.0
"""In which NCCL's groups have to be aborted."""


class Reduction(NamedTuple):
    """How all ranks add up, and by which library; the threads of a rank have a group of processes each."""

    library: Library
    main: Add
    second: Add
    order: str
    """As the key `backend.reduction` names it."""
    bucket: AddUp
    """In the place of a part of a vector, by the second thread's group."""

    @classmethod
    def by_gloo(cls, transport: Transport, device: Device, order: str) -> Reduction:
        """Through the CPU's memory."""

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
        """By a library that adds up what is on the devices."""

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
    """The sum that the key `backend.reduction` names, of tensors where the library takes them."""
    return sums.sum_in_rank_order if order == "ordered" else sums.sum


@contextlib.contextmanager
def connected(library: Library, transport: Transport, device: Device, order: str, *, interface: str, report: Report) -> Iterator[Reduction]:
    """Within the block, the ranks can add up by this library, the same on all of them; NCCL's groups are made and left here, and only here.

    NCCL's own timeout is as long as gloo's, as a slow step is no failure: a watch calls `report(error)` if a rank is lost. NCCL connects
    in a first sum, which may take seconds. If the block fails, its groups are aborted, so that nothing waits for the other ranks; if even
    that does not end, `report(error)` has to end the process.
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
    """Abort these groups at the same time, as one of NCCL's may wait for another. Whether all have ended in time."""
    threads = [Thread(target=group.abort, daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    deadline = clock() + ABORT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - clock()))
    return not any(thread.is_alive() for thread in threads)
