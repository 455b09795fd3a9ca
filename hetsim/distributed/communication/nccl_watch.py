"""Notices a lost rank where NCCL does not: its collectives wait for a rank that is gone until their timeout.

gloo notices at once. So each rank waits by gloo, in a thread, for a message from the rank before it, which comes when that one's program
has ended. If the rank is lost instead, this process ends: its own loss is noticed by the next one, and so on round the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch

from hetsim.distributed.communication.transport import Transport
from hetsim.effects import PeerLost


class PeerWatch:
    """While the block lasts, `report(error)` is called in a thread if the rank before this one is lost.

    At the end of the block it waits until that rank has come to its own end. The transport's messages must be used by nobody else.
    """

    def __init__(self, transport: Transport, report: Callable[[PeerLost], None]) -> None:
        self._transport = transport
        self._report = report
        self._cancelled = False
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeerWatch:
        if self._transport.size > 1:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._transport.size > 1:
            self._transport.send(torch.zeros(1), (self._transport.rank + 1) % self._transport.size)
            self._thread.join()

    def cancel(self) -> None:
        """Report nothing from now on: this rank has an error of its own, which is nearer to the cause."""
        self._cancelled = True

    def _watch(self) -> None:
        try:
            self._transport.receive(torch.empty(1), (self._transport.rank - 1) % self._transport.size)
        except PeerLost as error:
            if not self._cancelled:
                self._report(error)
