"""The parts of messages between processes: a header of fixed size, the payload after it, and the data about an arrived message."""

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


def encoded(header: dict[str, Any], payload: Any) -> torch.Tensor:
    """A header of fixed size as JSON: its numbers and ranges, and the type and size of the payload."""
    fields = {name: [value.start, value.samples, value.pool] if isinstance(value, Batch) else value for name, value in header.items()}
    if isinstance(payload, torch.Tensor):
        fields["payload"] = [str(payload.dtype).removeprefix("torch."), payload.numel()]
    elif isinstance(payload, Phantom):
        fields["payload"] = ["phantom", payload.nbytes, payload.itemsize]
    text = json.dumps(fields).encode()
    assert len(text) <= HEADER_BYTES, f"a header of {len(text)} bytes is too long: {header}"
    return torch.frombuffer(bytearray(text.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decoded(packed: torch.Tensor) -> tuple[dict[str, Any], Expected | None]:
    """The header, and the announced payload."""
    fields = json.loads(packed.numpy().tobytes())
    payload = fields.pop("payload", None)
    header = {name: Batch(*value) if isinstance(value, list) else value for name, value in fields.items()}
    return header, payload and Expected(*payload)
