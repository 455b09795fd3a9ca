"""What a rank has yet to send to one peer, in order."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from hetsim.distributed.communication.transport import Transport, as_tensor

Outgoing = tuple[torch.Tensor, Callable[[], Any]]
"""An encoded header, and what waits until the payload is in the CPU's memory and returns it."""


def send_next(queue: SimpleQueue[Outgoing | None], peer: int, link: Transport) -> bool:
    """Send the next message, if one more comes. A function of its own, so that no payload is kept while the queue is empty."""
    if (item := queue.get()) is None:
        return False
    header, fetched = item
    link.send(header, peer)
    if (payload := fetched()) is not None:
        link.send(as_tensor(payload), peer)
    return True
