"""Messages in virtual time: the links that they cross, their delivery, and the processes that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import Jitter, SharingWeights
from hetsim.cluster.model import Cluster
from hetsim.cluster.network.changing import slowdown_of
from hetsim.runtime.recording.recorder import MESSAGE, Recorder, interval_recorder
from hetsim.sim.clock import LAST, SUSPENDED, Callback, VirtualClock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Link, Route
from hetsim.sim.rank_process import LOST, RankProcess


class Channel:
    """A channel from one rank to another. Messages arrive in the order of sending.

    Without shared links a message takes latency + nbytes / bytes_per_second, whatever else is being sent. With shared links a
    channel is one connection: it transfers one message after another. It ends when either rank is lost.
    """

    __slots__ = ("arrival", "bytes_per_second", "closed", "flow", "jitter", "latency", "queue", "receiver", "route", "weights")

    def __init__(
        self, receiver: RankProcess, latency: float, bytes_per_second: float, route: Route | None,
        jitter: Jitter | None, weights: SharingWeights | None,
    ) -> None:  # fmt: skip
        self.receiver = receiver
        self.latency = latency
        self.bytes_per_second = bytes_per_second
        self.route = route
        self.jitter = jitter
        self.weights = weights
        self.flow: Flow | None = None
        """The current transfer."""
        self.queue: deque[Envelope] | None = None
        """Waiting messages; None if there never was one, because a thousand empty queues would fill a cache."""
        self.arrival = 0.0
        """The arrival of the last message. Later messages do not arrive before it."""
        self.closed = False
        """Whether it has ended, so that its messages are lost."""


class PeerLostNotice:
    """Delivered instead of a message if its source is lost."""

    __slots__ = ("source",)

    def __init__(self, source: int) -> None:
        self.source = source


class Envelope(fx.Message):
    """A message that is being sent, and later the message that the program receives."""

    __slots__ = ("channel", "size", "start")
    __init__ = object.__init__  # setting the slots one by one is faster than a call with arguments

    channel: Channel
    size: int
    start: float


class Messaging:
    """Answers Send and Receive among these processes."""

    def __init__(
        self, env: VirtualClock, cluster: Cluster, processes: Sequence[RankProcess], recorders: Collection[Recorder], *, seed: int
    ) -> None:
        self.env = env
        self.cluster = cluster
        self.processes = processes
        self._record = interval_recorder(recorders, MESSAGE)
        self.seed = seed
        self._flows = Flows(env)
        self._links: dict[tuple[str, int | str], Link] = {}
        self._jitters: dict[tuple[int, int], Jitter] = {}
        self._weights: dict[tuple[int, int], SharingWeights] = {}
        self._end_transfer = self._finish_transfer  # bound once: binding a method for every message is costly
        self._end_delivery = self._deliver

    def send(self, process: RankProcess, effect: fx.Send, callback: Callback) -> None:
        """Takes no time for the sender. The message is sent at once."""
        channel = process.channels.get(effect.to)
        if channel is None or channel.receiver.status == LOST:
            channel = process.channels[effect.to] = self._channel(process.rank, effect.to)
        envelope = Envelope()
        envelope.source = process.rank
        envelope.payload = payload = effect.payload
        envelope.__dict__ = effect.header
        envelope.channel = channel
        envelope.size = 0 if payload is None else payload.nbytes
        envelope.start = self.env.now
        self._begin(envelope, channel)

    def _begin(self, envelope: Envelope, channel: Channel) -> None:
        size = envelope.size
        if channel.route is None:
            self._arrive(envelope, channel, envelope.start + (channel.latency + size / channel.bytes_per_second))
        elif channel.flow is None:
            self._transfer(envelope, channel, channel.route, self._end_transfer)
        else:
            if channel.queue is None:
                channel.queue = deque()
            channel.queue.append(envelope)

    def _transfer(self, envelope: Envelope, channel: Channel, route: Route, callback: Callback) -> None:
        weight = 1.0 if channel.weights is None else channel.weights.next()
        channel.flow = self._flows.start(route, envelope.size, callback, envelope, weight)

    def receive(self, process: RankProcess, effect: fx.Receive, callback: Callback) -> Any:
        """The first delivered message, from any source or from `source`."""
        source = effect.source
        if process.messages:
            for message in process.messages:
                if source is None or source == message.source:
                    process.messages.remove(message)
                    if type(message) is PeerLostNotice:
                        return process.fail_soon(effect, fx.PeerLost.of(message.source))
                    return message
        assert process.callback is None, f"rank {process.rank} waits for two messages at once"
        process.source, process.callback = source, callback
        return SUSPENDED

    def receive_within(self, process: RankProcess, effect: fx.ReceiveWithin, callback: Callback) -> Any:
        """The same as `receive`. At the end of the time, None comes after all other events of that moment."""

        def answer(message: Any) -> None:
            callback(message)

        def expire(_: Any) -> None:
            if process.callback is answer:  # and not of a later question
                process.callback = None
                callback(None)

        received = Messaging.receive(self, process, fx.Receive(effect.source), answer)
        if received is SUSPENDED and process.callback is answer:
            self.env.at(self.env.now + effect.seconds, expire, priority=LAST)
        return received

    def skip(self, sender: int, num_messages: Mapping[int, int]) -> None:
        """Set the streams of a sender's messages to their positions after these numbers of messages to each receiver."""
        for receiver, count in num_messages.items():
            if self.cluster.network.jitter_seconds is not None:
                self._jitter(sender, receiver).skip(count)
            if self.cluster.network.sharing_noise is not None:
                self._sharing(sender, receiver).skip(count)

    def num_messages(self, sender: int) -> dict[int, int]:
        """The sender's messages so far that have drawn a jitter, or without jitter a weight, by receiver."""
        streams = self._jitters or self._weights
        return {receiver: stream.num_drawn for (rank, receiver), stream in streams.items() if rank == sender}

    def lose(self, rank: int) -> None:
        """Drop all undelivered messages to and from this rank."""
        for process in self.processes:
            for to in list(process.channels) if process.rank == rank else [rank]:
                self._close(process.channels.pop(to, None))

    def dissolve(self) -> None:
        """Drop all messages, including delivered messages that were not received."""
        for process in self.processes:
            for channel in process.channels.values():
                self._close(channel)
            process.channels.clear()
            process.messages.clear()

    def report_loss(self, process: RankProcess, rank: int) -> None:
        """Report the loss of a rank to a process: now if it waits for the rank's message, otherwise at its next receive."""
        if process.callback is not None and process.source in (None, rank):
            process.fail(fx.PeerLost.of(rank))
        else:
            process.messages.append(PeerLostNotice(rank))

    def _finish_transfer(self, envelope: Envelope) -> None:
        """The last byte has left the links; the next message of the channel starts."""
        channel = envelope.channel
        channel.flow = None
        if channel.queue:
            assert channel.route is not None
            self._transfer(channel.queue.popleft(), channel, channel.route, self._end_transfer)
        self._arrive(envelope, channel, self.env.now + channel.latency)

    def _arrive(self, envelope: Envelope, channel: Channel, arrival: float) -> None:
        """Schedule the delivery at this time plus the jitter, but not before the previous message's delivery."""
        if channel.jitter is not None:
            arrival += channel.jitter.next()
        if arrival < channel.arrival:
            arrival = channel.arrival
        channel.arrival = arrival
        record = self._record
        if record is not None:
            version = envelope.__dict__.get("version", 0)
            record((envelope.start, arrival, envelope.source, MESSAGE, version, 0, 0, envelope.size))
        self.env.at(arrival, self._end_delivery, envelope)

    def _deliver(self, envelope: Envelope) -> None:
        channel = envelope.channel
        process = channel.receiver
        if channel.closed or process.status == LOST:
            return
        callback = process.callback
        if callback is not None and (process.source is None or process.source == envelope.source):
            process.callback = None
            callback(envelope)
        else:
            process.messages.append(envelope)
            if process.interrupt is not None:
                process.interrupt()

    def _close(self, channel: Channel | None) -> None:
        """End a channel: its messages are lost."""
        if channel is not None:
            channel.closed = True
            if channel.flow is not None:
                self._flows.cancel(channel.flow)

    def _channel(self, sender: int, receiver: int) -> Channel:
        path = self.cluster.path(sender, receiver)
        route = None
        if path.links:
            rack_links = tuple(self._link(link) for link in path.links if isinstance(link[1], str))
            node_links = tuple(self._link(link) for link in path.links if isinstance(link[1], int))
            route = Route(shared=rack_links, own=node_links, limit=path.bytes_per_second)
        jitter = self._jitter(sender, receiver) if self.cluster.network.jitter_seconds is not None else None
        weights = self._sharing(sender, receiver) if route is not None and self.cluster.network.sharing_noise is not None else None
        return Channel(self.processes[receiver], path.latency_seconds, path.bytes_per_second, route, jitter, weights)

    def _jitter(self, sender: int, receiver: int) -> Jitter:
        jitter = self._jitters.get((sender, receiver))
        if jitter is None:
            jitter = self._jitters[sender, receiver] = Jitter(self.cluster, sender, receiver, seed=self.seed)
        return jitter

    def _sharing(self, sender: int, receiver: int) -> SharingWeights:
        weights = self._weights.get((sender, receiver))
        if weights is None:
            weights = self._weights[sender, receiver] = SharingWeights(self.cluster, sender, receiver, seed=self.seed)
        return weights

    def _link(self, link: tuple[str, int | str]) -> Link:
        if link not in self._links:
            self._links[link] = Link(self.cluster.capacity(link), " ".join(map(str, link)), slowdown_of(self.cluster, link))
        return self._links[link]
