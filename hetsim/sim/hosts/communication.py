"""Messages and collectives whose bytes are moved by shared cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from hetsim.cluster.model import Cluster
from hetsim.runtime.recorder import REGROUP, Recorder
from hetsim.sim.clock import Callback, Clock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.hosts.processors import Processors
from hetsim.sim.messages import Channel, Envelope, Messaging
from hetsim.sim.rank_process import RankProcess


class Parts:
    """Calls `callback(answer)` when this number of parts has ended."""

    def __init__(self, count: int, callback: Callback, answer: Any) -> None:
        self.count = count
        self.callback = callback
        self.answer = answer

    def over(self, _: Any = None) -> None:
        """One of the parts has ended."""
        self.count -= 1
        if not self.count:
            self.callback(self.answer)


class HostMessaging(Messaging):
    """A message ends when its bytes have crossed the network and both ends have done their work. All three happen at the same time.

    One message at a time is in transit from one rank to another. The receiver's work begins after the latency.
    """

    def __init__(
        self,
        env: Clock,
        cluster: Cluster,
        processes: Sequence[RankProcess],
        recorders: Collection[Recorder],
        processors: Processors,
        *,
        seed: int,
    ) -> None:
        super().__init__(env, cluster, processes, recorders, seed=seed)
        self._processors = processors

    def _begin(self, envelope: Envelope, channel: Channel) -> None:
        if channel.queue is None:
            channel.queue = deque()
        channel.queue.append(envelope)
        if len(channel.queue) == 1:
            self._move(envelope)

    def _move(self, envelope: Envelope) -> None:
        channel, size, env = envelope.channel, envelope.size, self.env
        parts = Parts(5, self._moved, envelope)
        self._processors.send(envelope.source, size, parts.over)
        receiver = channel.receiver.rank
        env.after(channel.latency, lambda _: self._processors.receive(receiver, size, parts.over))
        if channel.route is None:
            env.after(channel.latency + size / channel.bytes_per_second, parts.over)
        else:
            self._transfer(envelope, channel, channel.route, lambda _: env.after(channel.latency, parts.over))

    def _moved(self, envelope: Envelope) -> None:
        channel = envelope.channel
        assert channel.queue is not None
        channel.queue.popleft()
        if channel.queue:
            self._move(channel.queue[0])
        self._arrive(envelope, channel, self.env.now)


class HostCollectives(PendingCollectives):
    """A collective ends when its bytes have crossed the network and every rank has done its work."""

    def __init__(self, env: Clock, cluster: Cluster, recorders: Collection[Recorder], processors: Processors, *, seed: int) -> None:
        super().__init__(env, cluster, recorders, seed=seed)
        self._processors = processors

    def _when_over(self, seconds: float, kind: int, size: int, ranks: list[int], release: Callback, answer: Any) -> None:
        if kind == REGROUP or len(ranks) == 1:
            super()._when_over(seconds, kind, size, ranks, release, answer)
            return
        parts = Parts(1 + 2 * len(ranks), release, answer)
        self.env.after(seconds, parts.over)
        for rank in ranks:
            self._processors.collective(rank, size, parts.over)
