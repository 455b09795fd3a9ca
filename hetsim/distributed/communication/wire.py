"""What messages between processes are made of: a header of fixed size, the payload behind it, and what is known when they arrive."""

from __future__ import annotations

import json
from math import inf
from typing import Any, NamedTuple

import torch

from hetsim.distributed.pacing.shared_links import Transfer
from hetsim.effects import Batch, Message
from hetsim.vector import Phantom

HEADER_BYTES = 512
"""Size of every encoded header."""


class Expected(NamedTuple):
    """What a header says of the payload behind it: a type of tensors and how many numbers, or a phantom's bytes and those of a number."""

    kind: str
    size: int
    itemsize: int = 0

    @property
    def nbytes(self) -> int:
        """Of what is received."""
        return self.size if self.kind == "phantom" else self.size * self._dtype.itemsize

    def of(self, content: torch.Tensor) -> Any:
        """The payload of these bytes."""
        return Phantom(self.size, self.itemsize) if self.kind == "phantom" else content.view(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return getattr(torch, self.kind)  # type: ignore[no-any-return]


class Arrival(Message):
    """A message that has arrived, and when it was sent and is due, in seconds of the host's clock."""

    __slots__ = ("arrived", "due", "due_at", "lost", "moment", "sent_at", "transfer")

    def __init__(self, source: int, header: dict[str, Any], payload: Any = None) -> None:
        super().__init__(source, header, payload)
        self.lost = False
        """Whether it stands for a message that will not come: its source is lost."""
        self.transfer: Transfer | None = None
        """Its transfer over shared links, if it has crossed any."""
        self.moment = 0.0
        """When it is due by itself; with a transfer, so many seconds after the end of that."""
        self.due = inf
        """When it is due, after what its source had sent before; if it has yet to be received, as far as is known."""

    sent_at: float
    arrived: float
    due_at: float
    """When it was due or, if it came later, arrived."""


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


def decoded(packed: torch.Tensor) -> tuple[dict[str, Any], Expected | None]:
    """The header, and what follows it."""
    fields = json.loads(packed.numpy().tobytes())
    payload = fields.pop("payload", None)
    header = {name: Batch(*value) if isinstance(value, list) else value for name, value in fields.items()}
    return header, payload and Expected(*payload)
