"""Detect a lost rank for NCCL, whose collectives wait for a lost rank until their timeout.

gloo detects a loss at once. So each rank waits in a thread for a gloo message from the previous rank, which comes at the end of that
rank's program. If the rank is lost instead, this process ends. The next rank detects that, and so on around the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch

from hetsim.distributed.communication.transport import Transport
from hetsim.effects import PeerLost


class PeerWatch:
    """Within this context, `report(error)` is called in a thread if the previous rank is lost.

    The context's end waits for the end of that rank. No other code may use the transport's messages.
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
        """Report nothing from now on, because this rank's own error is nearer to the cause."""
        self._cancelled = True

    def _watch(self) -> None:
        try:
            self._transport.receive(torch.empty(1), (self._transport.rank - 1) % self._transport.size)
        except PeerLost as error:
            if not self._cancelled:
                self._report(error)
