"""What messages between processes are made of: a header of fixed size, the payload behind it, and what is known when they arrive."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hetsim.effects import Batch, Message
from hetsim.vector import Phantom

HEADER_BYTES = 512
"""Size of every encoded header."""


class Arrival(Message):
    """A message that has arrived, and when it was sent and is due, in seconds of the host's clock."""

    __slots__ = ("due_at", "lost", "sent_at")

    due_at: float
    sent_at: float
    lost: bool
    """Whether it stands for a message that will not come: its source is lost."""


class Held:
    """The messages from one peer whose transfers have not ended, and the ends of those that have not arrived, in their order."""

    def __init__(self) -> None:
        self.messages: deque[tuple[dict[str, Any], Any, float]] = deque()
        """With the moment of the arrival."""
        self.ends: deque[tuple[float, float]] = deque()
        """With the moment at which this rank knew it."""

    def matched(self) -> Iterable[tuple[dict[str, Any], Any, float, float]]:
        """Take out each message whose transfer has ended, with the moment at which both were known here, and that end."""
        while self.messages and self.ends:
            (header, payload, arrived), (end, known) = self.messages.popleft(), self.ends.popleft()
            yield header, payload, max(arrived, known), end


def encoded(header: dict[str, Any], payload: Any) -> torch.Tensor:
    """A header of fixed size: its numbers and ranges, and the type and size of the payload that follows, as JSON."""
    fields = {name: [value.start, value.samples, value.pool] if isinstance(value, Batch) else value for name, value in header.items()}
    if isinstance(payload, torch.Tensor):
        fields["payload"] = [str(payload.dtype).removeprefix("torch."), payload.numel()]
    elif isinstance(payload, Phantom):
        fields["payload"] = ["phantom", payload.nbytes, payload.itemsize]
    text = json.dumps(fields).encode()
    assert len(text) <= HEADER_BYTES, f"a header of {len(text)} bytes is too long: {header}"
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decoded(packed: torch.Tensor, empty: Callable[..., torch.Tensor] = torch.empty) -> tuple[dict[str, Any], Any]:
    """The header, and a tensor that `empty` makes, or a phantom, for the payload that follows it."""
    fields = json.loads(packed.numpy().tobytes())
    kind, *size = fields.pop("payload", [None])
    header = {name: Batch(*value) if isinstance(value, list) else value for name, value in fields.items()}
    if kind is None:
        return header, None
    return header, Phantom(*size) if kind == "phantom" else empty(*size, dtype=getattr(torch, kind))
