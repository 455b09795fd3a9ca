"""Messages to and from one peer, in order, over a transport: a header of fixed size, and the payload after it.

A payload of an unusual size is received after its header, because its size is unknown before. This takes a message back to the sender,
and wakes up three more threads than a payload of the usual size. For 84 kB, a message between processes took 332 µs in this way,
and 180 µs with two tags (medians of two runs of 800 each, two cores).
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import torch

from hetsim.distributed.communication.transport import Transport
from hetsim.distributed.pacing.shared_links import Transfer
from hetsim.effects import Batch, Message
from hetsim.vector import Phantom, nbytes
from hetsim.workloads.device import Device

HEADER_BYTES = 512
"""Size of every encoded header."""


class Expected(NamedTuple):
    """The payload that a header announces: tensor type and number of entries, or a phantom's bytes and bytes per entry."""

    kind: str
    size: int
    itemsize: int = 0

    @property
    def nbytes(self) -> int:
        """The number of bytes to receive."""
        return self.size if self.kind == "phantom" else self.size * self._dtype.itemsize

    def of(self, content: torch.Tensor) -> Any:
        """The payload from these bytes."""
        return Phantom(self.size, self.itemsize) if self.kind == "phantom" else content.view(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return getattr(torch, self.kind)  # type: ignore[no-any-return]


class Arrival(Message):
    """An arrived message, with its times of sending and of being due, in seconds of the host's clock."""

    __slots__ = ("arrived", "due", "due_at", "lost", "moment", "sent_at", "transfer")

    def __init__(self, source: int, header: dict[str, Any], payload: Any = None) -> None:
        super().__init__(source, header, payload)
        self.lost = False
        """Whether it stands for a message that cannot come, because its source is lost."""
        self.transfer: Transfer | None = None
        """Its transfer over shared links, if there is one."""
        self.moment = 0.0
        """The time at which it is due without earlier messages. With a transfer, the seconds after the transfer's end."""
        self.due = inf
        """The time at which it is due, after its source's earlier messages. It may change until the message is received."""

    sent_at: float
    arrived: float
    due_at: float
    """The time at which it was due or, if later, arrived."""


def encode_header(header: dict[str, Any], payload: Any) -> torch.Tensor:
    """A header of fixed size as JSON: its numbers and ranges, and the type and size of the payload."""
    fields = {name: [value.start, value.samples, value.pool] if isinstance(value, Batch) else value for name, value in header.items()}
    if isinstance(payload, torch.Tensor):
        fields["payload"] = [str(payload.dtype).removeprefix("torch."), payload.numel()]
    elif isinstance(payload, Phantom):
        fields["payload"] = ["phantom", payload.nbytes, payload.itemsize]
    text = json.dumps(fields).encode()
    assert len(text) <= HEADER_BYTES, f"a header of {len(text)} bytes is too long: {header}"
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decode_header(packed: torch.Tensor) -> tuple[dict[str, Any], Expected | None]:
    """The header, and the announced payload."""
    fields = json.loads(packed.numpy().tobytes())
    payload = fields.pop("payload", None)
    header = {name: Batch(*value) if isinstance(value, list) else value for name, value in fields.items()}
    return header, payload and Expected(*payload)


MOST_BUFFERS = 4
"""Kept for the payloads of one peer: one that is awaited, and those in use, such as the weights of earlier versions."""


@dataclass(frozen=True)
class PeerConnection:
    """The connection to and from one peer."""

    peer: int
    link: Transport
    tag: int
    """The tag of payloads of the usual size. Headers and all other payloads have the tag 0."""
    usual: int
    """The usual size of a payload in bytes, equal at both ends; 0: there is no usual size."""
    device: Device
    """The device from which payloads are sent."""


class Outbox:
    """Sends messages to one peer.

    The caller of `put` begins to send if the payload is in the CPU's memory. A thread, which calls `send_next`, waits until messages have
    arrived, and until payloads have come from other devices.
    """

    def __init__(self, channel: PeerConnection) -> None:
        self._to = channel
        self._begun: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = Lock()
        self._zeros = torch.empty(0, dtype=torch.uint8)
        """The zeros that are sent for a phantom."""

    def put(self, header: dict[str, Any], payload: Any) -> None:
        """Send this message after earlier ones. Raises PeerLost if the peer is known to be lost."""
        packed = encode_header(header, payload)
        fetched = self._to.device.begin_fetch(payload)
        with self._lock:  # of two messages, the first has the first header and the first payload
            if self._to.device.in_cpu_memory:
                self._begun.put(self._begin(packed, payload))
            else:
                self._begun.put(lambda: self._begin(packed, fetched())())

    def end(self) -> None:
        """Send nothing after the earlier messages."""
        self._begun.put(None)

    def send_next(self) -> bool:
        """Wait until the next message has arrived. Returns False if no more messages follow."""
        if (wait := self._begun.get()) is None:
            return False
        wait()
        return True

    def _begin(self, packed: torch.Tensor, payload: Any) -> Callable[[], None]:
        sends = [self._to.link.begin_send(packed, self._to.peer)]
        if payload is not None:
            tag = self._to.tag if nbytes(payload) == self._to.usual else 0
            sends.append(self._to.link.begin_send(self._tensor(payload), self._to.peer, tag))

        def wait() -> None:
            for finish_send in sends:
                finish_send()

        return wait

    def _tensor(self, payload: Any) -> torch.Tensor:
        if not isinstance(payload, Phantom):
            return payload  # type: ignore[no-any-return]
        if payload.nbytes != len(self._zeros):
            self._zeros = torch.zeros(payload.nbytes, dtype=torch.uint8)
        return self._zeros


class Buffers:
    """Memory of `nbytes` for one payload after another: memory that no tensor is in any more is given again, without page faults."""

    def __init__(self, nbytes: int, device: Device) -> None:
        self._nbytes = nbytes
        self._device = device
        self._kept: list[tuple[torch.Tensor, weakref.ref[Any]]] = []
        """Memory, and an array that lives as long as a tensor in this memory."""

    def take(self) -> torch.Tensor:
        """Bytes that nobody has. Memory from which a device copies is not kept, as the device may read it after the last tensor is gone."""
        kept = self._kept
        k = next((k for k, (_, user) in enumerate(kept) if user() is None), len(kept))
        memory = kept[k][0] if k < len(kept) else self._device.empty(self._nbytes, dtype=torch.uint8)
        if not self._device.in_cpu_memory:
            return memory
        array = memory.numpy()
        if k < MOST_BUFFERS:
            kept[k : k + 1] = [(memory, weakref.ref(array))]
        return torch.from_numpy(array)


class Incoming:
    """Receives the messages of one peer's `Outbox`, and is always ready for a payload of the usual size. One thread calls `receive`."""

    def __init__(self, channel: PeerConnection) -> None:
        self._from = channel
        self._buffers = Buffers(channel.usual, channel.device)
        self._packed = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        self._ready = self._get_ready() if channel.usual else None

    def receive(self) -> tuple[dict[str, Any], Any]:
        """Wait for the next message, and return its header and payload."""
        self._from.link.receive(self._packed, self._from.peer)
        header, expected = decode_header(self._packed)
        if expected is None:
            return header, None
        if self._ready is not None and expected.nbytes == self._from.usual:
            content, wait = self._ready
            wait()
            self._ready = self._get_ready()
        else:
            content = self._from.device.empty(expected.nbytes, dtype=torch.uint8)
            self._from.link.receive(content, self._from.peer)
        return header, expected.of(content)

    def _get_ready(self) -> tuple[torch.Tensor, Callable[[], object]]:
        content = self._buffers.take()
        return content, self._from.link.begin_receive(content, self._from.peer, self._from.tag)
