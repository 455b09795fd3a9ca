"""Messages and collectives whose bytes are moved by shared cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.model import Cluster
from hetsim.runtime.recording.recorder import GATHER, REGROUP, Recorder
from hetsim.sim.clock import SUSPENDED, Callback, VirtualClock
from hetsim.sim.collective_ops import PendingCollectives
from hetsim.sim.hosts.processors import Processors
from hetsim.sim.messages import Channel, Envelope, Messaging
from hetsim.sim.rank_process import RankProcess


class Countdown:
    """Calls `callback(answer)` when this number of parts has ended."""

    def __init__(self, count: int, callback: Callback, answer: Any) -> None:
        self.count = count
        self.callback = callback
        self.answer = answer

    def end_part(self, _: Any = None) -> None:
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
        env: VirtualClock,
        cluster: Cluster,
        processes: Sequence[RankProcess],
        recorders: Collection[Recorder],
        processors: Processors,
        *,
        seed: int,
    ) -> None:
        super().__init__(env, cluster, processes, recorders, seed=seed)
        self._processors = processors

    def receive(self, process: RankProcess, effect: fx.Receive, callback: Callback) -> Any:
        """As in Messaging. A vector costs the receiver's program CPU work before it continues."""
        return self._process_message(process.rank, callback, super().receive(process, effect, partial(self._take, process.rank, callback)))

    def receive_within(self, process: RankProcess, effect: fx.ReceiveWithin, callback: Callback) -> Any:
        """As `receive`."""
        return self._process_message(
            process.rank, callback, super().receive_within(process, effect, partial(self._take, process.rank, callback))
        )

    def _take(self, rank: int, callback: Callback, message: Any) -> None:
        if (answer := self._process_message(rank, callback, message)) is not SUSPENDED:
            callback(answer)

    def _process_message(self, rank: int, callback: Callback, message: Any) -> Any:
        """The message, or SUSPENDED while the receiver's program works on it."""
        if getattr(message, "payload", None) is None:
            return message
        return self._processors.process_message(rank, callback, message)

    def _begin(self, envelope: Envelope, channel: Channel) -> None:
        if channel.queue is None:
            channel.queue = deque()
        channel.queue.append(envelope)
        if len(channel.queue) == 1:
            self._move(envelope)

    def _move(self, envelope: Envelope) -> None:
        channel, size, env = envelope.channel, envelope.size, self.env
        countdown = Countdown(5, self._finish_move, envelope)
        self._processors.send(envelope.source, size, countdown.end_part)
        receiver = channel.receiver.rank
        env.after(channel.latency, lambda _: self._processors.receive(receiver, size, countdown.end_part))
        if channel.route is None:
            env.after(channel.latency + size / channel.bytes_per_second, countdown.end_part)
        else:
            self._transfer(envelope, channel, channel.route, lambda _: env.after(channel.latency, countdown.end_part))

    def _finish_move(self, envelope: Envelope) -> None:
        channel = envelope.channel
        assert channel.queue is not None
        channel.queue.popleft()
        if channel.queue:
            self._move(channel.queue[0])
        self._arrive(envelope, channel, self.env.now)


class HostCollectives(PendingCollectives):
    """A collective ends when its bytes have crossed the network and every rank has done its work."""

    def __init__(self, env: VirtualClock, cluster: Cluster, recorders: Collection[Recorder], processors: Processors, *, seed: int) -> None:
        super().__init__(env, cluster, recorders, seed=seed)
        self._processors = processors

    def _schedule_release(self, seconds: float, kind: int, size: int, ranks: list[int], release: Callback, answer: Any) -> None:
        if kind == REGROUP or len(ranks) == 1:
            super()._schedule_release(seconds, kind, size, ranks, release, answer)
            return
        countdown = Countdown(1 + 2 * len(ranks), release, answer)
        self.env.after(seconds, countdown.end_part)
        for rank in ranks:
            self._processors.collective(rank, size, countdown.end_part, gathers=kind == GATHER)
