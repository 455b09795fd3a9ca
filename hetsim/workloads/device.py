"""Where a task computes: the CPU, or one of the CUDA devices of this machine.

A rank's vectors are on its device: weights, gradients, and the optimizer's memory. Programs do not know the device. Messages between ranks
use the CPU's memory: `begin_fetch` before sending, `place` after receiving.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import hashlib
import os
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from hetsim import checks

AUTO = "auto"
T = TypeVar("T")
CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
NUM_KERNELS = 8192
"""The number of kernels that oneDNN keeps, about 16 kB each: enough for LeNet's 800 batch sizes, ResNet-18's 55. The default is 1024."""
SHARE_OF_FREE_MEMORY = 0.5
"""The share of a device's free memory that data may use. The rest is for the model, its activations and its gradients."""


class Device(ABC):
    """Holds a task's vectors, and computes its gradients and updates.

    A subclass is made from the number of the device among the devices of its kind, and from `autocast`.
    """

    kind: ClassVar[str]
    """The beginning of the device's name: cpu, or one of `hetsim.checks.ACCELERATORS`."""
    in_cpu_memory: ClassVar[bool] = False
    """Whether its tensors are in the CPU's memory, where `begin_fetch` has nothing to wait for."""

    name: str
    """The device's name in torch."""
    gpu: float = 0.0
    """A whole number that identifies the GPU among all hosts' GPUs, for all processes that use it; 0 for a CPU."""
    num_sharing: int = 1
    """The number of ranks of this host that use this device, and load their data at the same time."""
    autocast: str | None = None
    """The type in which a model's matrix products are computed; None: the type of the weights."""
    _generators: tuple[int, ...] = ()
    """The CUDA devices whose generators `seed` seeds."""

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """A context for the computation of a model and its loss."""
        if self.autocast is None:
            return contextlib.nullcontext()
        import torch

        return torch.autocast(self.name.partition(":")[0], getattr(torch, self.autocast))

    @contextlib.contextmanager
    def in_full_precision(self) -> Iterator[None]:
        """A context in which gradients are computed in the type of the weights, without autocast, and on a GPU without TF32."""
        earlier, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = earlier

    @staticmethod
    @abstractmethod
    def count() -> int:
        """The number of devices of this kind that PyTorch can use on this machine."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until everything that this thread has queued on the device is done, so that the next clock reading includes it."""

    def mark(self) -> Callable[[], None]:
        """Mark this thread's queued work. Another thread that calls the returned function queues its later work after it."""
        return lambda: None

    def own_queue(self) -> None:  # noqa: B027
        """From now on, let this thread's queued work run in parallel with other threads' work.

        Pass a thread's result to another thread only when it is done, and keep it until the other thread has synchronised.
        """

    @abstractmethod
    def place(self, value: T) -> T:
        """The same tensor on this device. A module is moved there; any other object is returned unchanged."""

    @abstractmethod
    def begin_fetch(self, value: T) -> Callable[[], T]:
        """Begin to copy a tensor to the CPU's memory. The returned function waits for the copy, in any thread, and returns it.

        The copy belongs to the caller, and its memory is reused when nothing refers to it. Objects that are no tensors are returned
        unchanged.
        """

    def fetch(self, value: T) -> T:
        """The same tensor in the CPU's memory. Other objects are returned unchanged."""
        return self.begin_fetch(value)()

    def empty(self, size: int, *, dtype: Any) -> Any:
        """A tensor in the CPU's memory for received data, with fast copies to the device."""
        import torch

        return torch.empty(size, dtype=dtype)

    def has_room_for(self, nbytes: int) -> bool:
        """Whether data of this size can stay on the device."""
        return True

    def pin(self, value: T) -> T:
        """The same tensor in CPU memory with fast copies to the device."""
        return value

    def adopt(self, value: T) -> T:
        """The same tensor, which another thread has made. Its memory is not reused before this thread's queued work with it is done."""
        return value

    def ahead(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which a separate thread copies data to the device, in parallel with computation there."""
        return contextlib.nullcontext()

    def arrived(self, value: T) -> T:
        """The same tensor, which may have been placed `ahead`. This thread's later work with it waits until it has arrived."""
        return value

    def seed(self, number: int) -> None:  # noqa: B027
        """Seed the device's own generator, which dropout uses."""

    @contextlib.contextmanager
    def computing(self, threads: int) -> Iterator[None]:
        """A context in which PyTorch uses this number of threads. Afterwards it, and the random numbers of the process, are as before."""
        torch = sys.modules.get("torch")
        if torch is None:  # a phantom never imports it, and draws nothing
            yield
            return
        earlier_threads, pythons, numpys = torch.get_num_threads(), random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=self._generators):
            torch.set_num_threads(threads)
            try:
                yield
            finally:
                torch.set_num_threads(earlier_threads)
                random.setstate(pythons)
                np.random.set_state(numpys)


@cache
def keep_kernels() -> None:
    """Let oneDNN keep the kernels of many batch sizes, unless the environment sets their number. A changing split reuses them.

    Call it before the process's first gradient: oneDNN reads the variable only when it makes its first kernel.
    """
    import torch

    if CAPACITY in os.environ or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    os.environ[CAPACITY] = str(NUM_KERNELS)
    try:
        torch.conv2d(torch.ones(2, 1, 1, 1), torch.ones(1, 1, 1, 1))
    finally:
        del os.environ[CAPACITY]


class CPU(Device):
    """The CPU. Nothing is queued: a function returns when its result is computed."""

    kind = name = "cpu"
    in_cpu_memory = True

    def __init__(self, index: int = 0, autocast: str | None = None) -> None:
        self.autocast = autocast

    @staticmethod
    def count() -> int:
        return 1

    def synchronise(self) -> None:
        return None

    def place(self, value: T) -> T:
        return value

    def begin_fetch(self, value: T) -> Callable[[], T]:
        return lambda: value


class CUDA(Device):
    """The CUDA device of this number. Several ranks may share one.

    Copies to the CPU's memory run on a separate stream, into pinned memory of PyTorch's pool. The pool knows which blocks are unused,
    and which ones a copy still reads. So a block is reused after its data were sent, or have reached the device.
    """

    kind = "cuda"

    def __init__(self, index: int, autocast: str | None = None) -> None:
        import torch

        self.autocast = autocast
        self.name, self._generators = f"cuda:{index}", (index,)
        self._torch = torch
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        self.gpu = float(int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:6]))
        self._ahead: Any = None
        """The stream for data placed ahead; None before the first."""

    @staticmethod
    def count() -> int:
        return num_cuda_devices()

    @contextlib.contextmanager
    def in_full_precision(self) -> Iterator[None]:
        kinds: Any = (self._torch.backends.cudnn, self._torch.backends.cuda.matmul)
        earlier = [kind.allow_tf32 for kind in kinds]
        try:
            for kind in kinds:
                kind.allow_tf32 = False
            with super().in_full_precision():
                yield
        finally:
            for kind, allowed in zip(kinds, earlier, strict=True):
                kind.allow_tf32 = allowed

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
        copied = torch.cuda.Event(blocking=True)  # the thread that waits sleeps: a mailbox's has real-time priority
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            copy.copy_(value, non_blocking=True)
            copied.record(self._copies)
        value.record_stream(self._copies)

        def wait() -> Any:
            copied.synchronize()
            return copy

        return wait

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


def moved(batch: Any, device: Any) -> Any:
    """The batch with all movable parts on the device, in containers of the same types."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        parts = {name: moved(part, device) for name, part in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(parts)  # type: ignore[call-arg]
        other = copy.copy(batch)  # a defaultdict takes other arguments than its parts
        other.update(parts)
        return other
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(moved(part, device) for part in batch)
    return batch


def device(name: str, autocast: str | None = None, *, num_sharing: int = 1) -> Device:
    """The device with this name, for `num_sharing` ranks. cuda is the first GPU. Raises ValueError if it is missing."""
    if checks.device("device", name) == AUTO:
        name = usual_kind()
    check_present("device", name)
    kind, index = split_name(name)
    new_device = KINDS[kind](index or 0, autocast)
    new_device.num_sharing = num_sharing
    return new_device


def split_name(name: str) -> tuple[str, int | None]:
    """The kind of a device, and its number among the devices of this kind; None if the name contains no number."""
    kind, colon, index = name.partition(":")
    return kind, int(index) if colon else None


def usual_kind() -> str:
    """The kind of device that a real run takes: the first kind of accelerator of which this machine has one, or else the CPU."""
    return next((kind for kind in checks.ACCELERATORS if KINDS[kind].count()), CPU.kind)


def check_present(key: str, name: str) -> None:
    """Raise ValueError if this machine has no such device, or PyTorch does not find it."""
    if name == AUTO:
        return
    kind, index = split_name(name)
    count = KINDS[kind].count()
    if (index or 0) >= count:
        devices = f"{kind.upper()} device"
        present = f"no {devices}" if not count else f"{count} {devices}{'s' * (count > 1)}, counted from 0,"
        raise ValueError(f"{key}={name}: PyTorch finds {present} on this machine: take {key}=cpu" + f" or {key}={kind}" * (count > 0))


KINDS: dict[str, type[CPU] | type[CUDA]] = {CPU.kind: CPU, CUDA.kind: CUDA}
"""The class of each kind of device."""


@cache
def num_cuda_devices() -> int:
    """The number of CUDA devices that PyTorch can use. PyTorch is imported only if NVIDIA's driver has some."""
    count = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    if not count.value:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
