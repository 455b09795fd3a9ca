"""Where a task computes: the CPU, or one of the CUDA devices of this machine.

A rank's vectors are on its device: weights, gradients, and the optimizer's memory. A program does not know it. What ranks send each other
goes by the CPU's memory: `begin_fetch` before, `place` after.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

from hetsim import checks

AUTO = "auto"
T = TypeVar("T")
NUM_KERNELS = 8192
"""Kernels that oneDNN keeps, of about 16 kB each: LeNet's for 800 batch sizes, ResNet-18's for 55. By default it keeps 1024."""
SHARE_OF_FREE_MEMORY = 0.5
"""Of a device's free memory, how much data may take; the rest is for the model, its activations and its gradients."""


class Device(ABC):
    """What holds a task's vectors and computes its gradients and updates."""

    in_cpu_memory: ClassVar[bool] = False
    """Whether its tensors are in the CPU's memory, where `begin_fetch` has nothing to wait for."""

    name: str
    """As torch names it."""
    gpu: float = 0.0
    """A whole number for the GPU, the same in all processes that use it and no other's on any host; 0 if the device is none."""
    num_sharing: int = 1
    """How many ranks of this host have this device, and load their data at the same time."""
    autocast: str | None = None
    """The type in which a model's matrix products are computed, whatever the type of its weights; None: that of its weights."""

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Within this, a model and its loss are computed."""
        if self.autocast is None:
            return contextlib.nullcontext()
        import torch

        return torch.autocast(self.name.partition(":")[0], getattr(torch, self.autocast))

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until everything that this thread has queued on the device is done, so that a clock read afterwards includes it."""

    def mark(self) -> Callable[[], None]:
        """Mark what this thread has queued so far. What another thread queues after it has called the function waits until that is done."""
        return lambda: None

    def own_queue(self) -> None:  # noqa: B027
        """Let what this thread queues from now on run beside what the others queue: it waits for nothing of theirs.

        What one thread has made is given to another once it is done, and kept until the other has synchronised in its turn.
        """

    @abstractmethod
    def place(self, value: T) -> T:
        """The same tensor on this device. A module is moved there; any other object is returned unchanged."""

    @abstractmethod
    def begin_fetch(self, value: T) -> Callable[[], T]:
        """Begin to copy a tensor to the CPU's memory. The function that is returned waits for it, in any thread, and returns the copy.

        The copy is the caller's: its memory is used again once nobody refers to it. What is no tensor is returned as it is.
        """

    def fetch(self, value: T) -> T:
        """The same tensor in the CPU's memory; what is no tensor is returned as it is."""
        return self.begin_fetch(value)()

    def empty(self, size: int, *, dtype: Any) -> Any:
        """A tensor in the CPU's memory for what is received, from which it gets to the device quickly."""
        import torch

        return torch.empty(size, dtype=dtype)

    def has_room_for(self, nbytes: int) -> bool:
        """Whether data of this size can stay on the device."""
        return True

    def pin(self, value: T) -> T:
        """The same tensor in memory of the CPU's from which it gets to the device more quickly."""
        return value

    def adopt(self, value: T) -> T:
        """The same tensor, which another thread has made: its memory is not used again before what this thread queues with it is done."""
        return value

    def ahead(self) -> contextlib.AbstractContextManager[Any]:
        """Within this, in a thread of its own, what is placed goes to the device beside what is computed there."""
        return contextlib.nullcontext()

    def arrived(self, value: T) -> T:
        """The same tensor, which may have been placed `ahead`: what this thread computes with it from now on waits until it is there."""
        return value

    def seed(self, number: int) -> None:  # noqa: B027
        """Seed the device's own generator, by which dropout draws."""


def keep_kernels() -> None:
    """Let oneDNN keep the kernels of many batch sizes, unless the environment says how many: a split that changes needs them again.

    It has to be called before this process's first gradient.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(NUM_KERNELS))


class CPU(Device):
    """Nothing is queued: a function returns when its result is computed."""

    name: str = "cpu"
    in_cpu_memory = True

    def __init__(self, autocast: str | None = None) -> None:
        self.autocast = autocast
        keep_kernels()

    def synchronise(self) -> None:
        return None

    def place(self, value: T) -> T:
        return value

    def begin_fetch(self, value: T) -> Callable[[], T]:
        return lambda: value


class CUDA(Device):
    """The CUDA device of this number. Several ranks may share one.

    Copies to the CPU's memory run on a stream of their own, into pinned memory of PyTorch's pool. The pool knows which blocks are unused,
    and which ones a copy still reads. So a block is used again once it was sent, or has reached the device.
    """

    def __init__(self, index: int, autocast: str | None = None) -> None:
        import torch

        self.autocast = autocast
        self.name = f"cuda:{index}"
        self._torch = torch
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        self.gpu = float(int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:6]))
        self._ahead: Any = None
        """The stream of what is placed ahead, if anything was."""

    def synchronise(self) -> None:
        self._torch.cuda.current_stream(self._device).synchronize()

    def mark(self) -> Callable[[], None]:
        event: Any = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._torch.cuda.current_stream(self._device))
        return lambda: self._torch.cuda.current_stream(self._device).wait_event(event)

    def own_queue(self) -> None:
        self._torch.cuda.set_stream(self._torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def place(self, value: Any) -> Any:
        if isinstance(value, self._torch.nn.Module):
            return value.to(self._device)
        return value.to(self._device, non_blocking=value.is_pinned()) if isinstance(value, self._torch.Tensor) else value

    def begin_fetch(self, value: Any) -> Callable[[], Any]:
        torch = self._torch
        if not (isinstance(value, torch.Tensor) and value.is_cuda):
            return lambda: value
        copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        done = torch.cuda.Event(blocking=True)  # the thread that waits sleeps: a mailbox's has real-time priority
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            copy.copy_(value, non_blocking=True)
            done.record(self._copies)
        value.record_stream(self._copies)

        def fetched() -> Any:
            done.synchronize()
            return copy

        return fetched

    def empty(self, size: int, *, dtype: Any) -> Any:
        return self._torch.empty(size, dtype=dtype, pin_memory=True)

    def has_room_for(self, nbytes: int) -> bool:
        free, _ = self._torch.cuda.mem_get_info(self._device)
        return bool(nbytes <= SHARE_OF_FREE_MEMORY * free / self.num_sharing)

    def adopt(self, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor) and value.is_cuda:
            value.record_stream(self._torch.cuda.current_stream(self._device))
        return value

    def pin(self, value: Any) -> Any:
        return value.pin_memory()

    def ahead(self) -> contextlib.AbstractContextManager[Any]:
        if self._ahead is None:
            self._ahead = self._torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        within: contextlib.AbstractContextManager[Any] = self._torch.cuda.stream(self._ahead)
        return within

    def arrived(self, value: Any) -> Any:
        if self._ahead is not None and isinstance(value, self._torch.Tensor) and value.is_cuda:
            computing = self._torch.cuda.current_stream(self._device)
            computing.wait_stream(self._ahead)
            value.record_stream(computing)  # its memory is not given to the next copy before this stream is done with it
        return value

    def seed(self, number: int) -> None:
        with self._torch.cuda.device(self._device):
            self._torch.cuda.manual_seed(number)


def device(name: str, autocast: str | None = None, *, num_sharing: int = 1) -> Device:
    """The device of this name, for `num_sharing` ranks; cuda is the first GPU. ValueError with one sentence if it is missing."""
    if checks.device("device", name) == AUTO:
        name = "cuda" if num_cuda_devices() else "cpu"
    if name == "cpu":
        return CPU(autocast)
    check_present("device", name)
    found = CUDA(int(name.partition(":")[2] or 0), autocast)
    found.num_sharing = num_sharing
    return found


def check_present(key: str, name: str) -> None:
    """ValueError with one sentence if this machine has no such device, or PyTorch does not find it."""
    if name in ("cpu", AUTO):
        return
    count, index = num_cuda_devices(), int(name.partition(":")[2] or 0)
    if index >= count:
        found = "no CUDA device" if not count else f"{count} CUDA device{'s' * (count > 1)}, counted from 0,"
        raise ValueError(f"{key}={name}: PyTorch finds {found} on this machine: take {key}=cpu" + f" or {key}=cuda" * (count > 0))


@cache
def num_cuda_devices() -> int:
    """How many CUDA devices PyTorch can use here. It is imported only if NVIDIA's driver has some."""
    count = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    if not count.value:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
