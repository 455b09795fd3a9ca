"""A device for tests that is none: tensors in the CPU's memory, of which it is known whether they were placed on the device.

As with a real one, an operation on a tensor that is there and one that is not fails, copies excepted. Scalars may be anywhere. Each thread
has a queue, as with streams: what one has computed is wrong for another until the first has synchronised, so that fails, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hetsim.distributed.communication.transport import Sums, Transport
from hetsim.workloads.device import Device

COPIES = ("aten.copy_.default", "aten._to_copy.default")


class Elsewhere(Device, TorchDispatchMode):
    """The device, and the mode of torch in which its rules hold: a thread that computes on it does so within `with device:`."""

    kind = name = "elsewhere"

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self._storages: dict[int, StorageWeakRef] = {}
        self._unfinished: dict[int, dict[tuple[int, int], int]] = {}
        """The thread that has computed numbers, by their storage and where in memory they are, until that thread synchronises."""
        self.num_checked = 0
        """Operations on tensors of the device."""

    @staticmethod
    def count() -> int:
        return 1

    def synchronise(self) -> None:
        for spans in list(self._unfinished.values()):
            for span, thread in list(spans.items()):
                if thread == get_ident():
                    spans.pop(span, None)

    def mark(self) -> Callable[[], None]:
        """What this thread has computed so far is done once somebody has waited for the mark."""
        mine = [(spans, span) for spans in self._unfinished.values() for span, thread in list(spans.items()) if thread == get_ident()]

        def reached() -> None:
            for spans, span in mine:
                spans.pop(span, None)

        return reached

    def own_queue(self) -> None:
        """The rules hold in the calling thread, too."""
        self.__enter__()

    def place(self, value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                self._take(tensor)
        return self._take(value.clone()) if isinstance(value, torch.Tensor) else value

    def begin_fetch(self, value: Any) -> Callable[[], Any]:
        """The copy holds nothing of the tensor until somebody waits for it: what is sent earlier, or changed meanwhile, arrives wrong."""
        if not isinstance(value, torch.Tensor):
            return lambda: value
        assert self.has(value), "what is fetched must be on the device"
        self._check_finished(value)
        with _disable_current_modes():
            copy = torch.full_like(value, float("nan") if value.is_floating_point() else 77)

        def fetched() -> torch.Tensor:
            with _disable_current_modes():
                return copy.copy_(value)

        return fetched

    def arrived(self, value: Any) -> Any:
        """What another thread has placed ahead: this thread's queue waits for it."""
        if isinstance(value, torch.Tensor) and self.has(value):
            spans = self._unfinished[value.untyped_storage()._cdata]
            spans.update(dict.fromkeys(spans, get_ident()))
        return value

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on the device."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not self.has(tensor):
            self._unfinished[storage._cdata] = {}  # those of one that was freed
        self._storages[storage._cdata] = StorageWeakRef(storage)
        self._unfinished[storage._cdata][_span(tensor)] = get_ident()
        return tensor

    def _check_finished(self, tensor: torch.Tensor) -> None:
        start, stop = _span(tensor)
        spans = list(self._unfinished.get(tensor.untyped_storage()._cdata, {}).items())
        if any(thread != get_ident() and since < stop and start < until for (since, until), thread in spans):
            raise RuntimeError("what another thread has queued may not be computed yet")

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        given = list(_tensors((arguments, options)))
        here = [self.has(tensor) for tensor in given if tensor.ndim]
        if any(here) and not all(here) and str(function) not in COPIES:
            raise RuntimeError(f"Expected all tensors to be on the same device, in {function}")
        for tensor in filter(self.has, given):
            self._check_finished(tensor)
        found = function(*arguments, **options)
        if any(map(self.has, given)):
            self.num_checked += 1
            for tensor in _tensors(found):
                self._take(tensor)
        return found


class SumsElsewhere(Sums):
    """What NCCL is to a GPU: sums of vectors on this device, and no others, for one thread. Tensors really go by another transport."""

    def __init__(self, transport: Transport, device: Elsewhere) -> None:
        self.size = transport.size
        self._transport = transport
        self._device = device
        self._thread: int | None = None

    def _check(self, *tensors: torch.Tensor) -> None:
        self._thread = self._thread or get_ident()
        assert self._thread == get_ident(), "two threads use one group"
        assert all(map(self._device.has, tensors))

    def all_to_all(self, parts: torch.Tensor, mine: torch.Tensor) -> None:
        self._check(parts, mine)
        with _disable_current_modes():
            self._transport.all_to_all(parts, mine)

    def all_gather(self, everything: torch.Tensor, mine: torch.Tensor) -> None:
        self._check(everything, mine)
        with _disable_current_modes():
            self._transport.all_gather(everything, mine)

    def add_up(self, flat: torch.Tensor) -> None:
        self._check(flat)
        with _disable_current_modes():
            self._transport.add_up(flat)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """From where to where its numbers are in memory."""
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size() * bool(tensor.numel())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
