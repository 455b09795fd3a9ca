"""Messages in virtual time: the links they pass, when they are delivered, and who waits for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from hetsim import effects as fx
from hetsim.cluster.compute_times import Jitter
from hetsim.cluster.model import Cluster
from hetsim.runtime.trace import MESSAGE, Trace
from hetsim.sim.clock import LATER, Clock, Then
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Link, Route
from hetsim.sim.rank_process import Player
from hetsim.vector import Vector


class Line:
    """From one rank to another: messages arrive in the order in which they are sent.

    Where no link is shared, a message takes latency + nbytes / bytes_per_second, whatever else is under way. Where links are
    shared, a line is one connection: its messages go one after another. It ends with the life of either rank.
    """

    __slots__ = ("arrival", "behind", "bytes_per_second", "closed", "flow", "jitter", "latency", "receiver", "route")

    def __init__(self, receiver: Player, latency: float, bytes_per_second: float, route: Route | None, jitter: Jitter | None) -> None:
        self.receiver = receiver
        self.latency = latency
        self.bytes_per_second = bytes_per_second
        self.route = route
        self.jitter = jitter
        self.flow: Flow | None = None
        """What is being transferred."""
        self.behind: deque[Letter] | None = None
        """What is to be transferred behind it, if there ever was anything: a thousand empty queues would fill a cache."""
        self.arrival = 0.0
        """Of the last message: none overtakes it."""
        self.closed = False
        """What is on it is lost."""


class Gone:
    """In the place of a message: its source is gone."""

    __slots__ = ("source",)

    def __init__(self, source: int) -> None:
        self.source = source


class Letter:
    """A message under way, and what a program gets of it. It is read as any Message is, but one with `__getattr__` costs more to read."""

    __slots__ = ("__dict__", "header", "line", "payload", "size", "source", "start")

    header: dict[str, Any]
    line: Line
    payload: Vector
    size: int
    source: int
    start: float


class Post:
    """Performs Send and Receive among these players."""

    def __init__(self, env: Clock, cluster: Cluster, players: Sequence[Player], trace: Trace, *, seed: int) -> None:
        self.env = env
        self.cluster = cluster
        self.players = players
        self.trace = trace
        self.seed = seed
        self._server = cluster.num_workers
        self._flows = Flows(env)
        self._links: dict[tuple[str, int | str], Link] = {}
        self._jitters: dict[tuple[int, int], Jitter] = {}
        self._end_transfer = self._transferred  # made once: a bound method is dear to make for every message
        self._hand_over = self._deliver

    def send(self, player: Player, effect: fx.Send, then: Then) -> None:
        """On its way at once; the sender goes on."""
        line = player.lines.get(effect.to)
        if line is None or line.receiver.lost:
            line = player.lines[effect.to] = self._line(player.rank, effect.to)
        letter = Letter()
        letter.source = player.rank
        letter.payload = payload = effect.payload
        letter.__dict__ = letter.header = effect.header
        letter.line = line
        letter.size = size = 0 if payload is None else payload.nbytes
        letter.start = self.env.now
        if line.route is None:
            self._arrive(letter, line, letter.start + (line.latency + size / line.bytes_per_second))
        elif line.flow is None:
            line.flow = self._flows.start(line.route, size, self._end_transfer, letter)
        else:
            if line.behind is None:
                line.behind = deque()
            line.behind.append(letter)

    def receive(self, player: Player, effect: fx.Receive, then: Then) -> Any:
        """The message delivered first of those asked for."""
        source = effect.source
        if player.messages:
            for message in player.messages:
                if source is None or source == message.source:
                    player.messages.remove(message)
                    if type(message) is Gone:
                        return player.refuse(effect, fx.PeerLost.of(message.source), self.env)
                    return self._opened(player, message)
        assert player.then is None, f"rank {player.rank} waits for two messages at once"
        player.source, player.then = source, then
        return LATER

    def lose(self, rank: int) -> None:
        """Nothing is under way to or from this rank any more."""
        for player in self.players:
            for to in list(player.lines) if player.rank == rank else [rank]:
                self._close(player.lines.pop(to, None))

    def dissolve(self) -> None:
        """Nothing is under way any more, and what was delivered will not be read."""
        for player in self.players:
            for line in player.lines.values():
                self._close(line)
            player.lines.clear()
            player.messages.clear()

    def tell(self, player: Player, rank: int) -> None:
        """Let this player know that a rank is gone, where it waits for a message or when it next does."""
        if player.then is not None and player.source in (None, rank):
            player.fail(fx.PeerLost.of(rank))
        else:
            player.messages.append(Gone(rank))

    def _transferred(self, letter: Letter) -> None:
        """The last byte is through; the next message of the line begins."""
        line = letter.line
        line.flow = None
        if line.behind:
            assert line.route is not None
            following = line.behind.popleft()
            line.flow = self._flows.start(line.route, following.size, self._end_transfer, following)
        self._arrive(letter, line, self.env.now + line.latency)

    def _arrive(self, letter: Letter, line: Line, arrival: float) -> None:
        """Deliver it at this moment, later by the jitter if there is any, and not before the message before it."""
        if line.jitter is not None:
            arrival += line.jitter.next()
        if arrival < line.arrival:
            arrival = line.arrival
        line.arrival = arrival
        if self.trace.full:
            self.trace.note((letter.start, arrival, letter.source, MESSAGE, letter.header.get("version", 0), 0, 0, letter.size))
        self.env.at(arrival, self._hand_over, letter)

    def _deliver(self, letter: Letter) -> None:
        line = letter.line
        player = line.receiver
        if line.closed or player.lost:
            return
        then = player.then
        if then is not None and (player.source is None or player.source == letter.source):
            player.then = None
            if player.rank != self._server:
                self._opened(player, letter)
            then(letter)
        else:
            player.messages.append(letter)

    def _close(self, line: Line | None) -> None:
        """What is on this line is lost."""
        if line is not None:
            line.closed = True
            if line.flow is not None:
                self._flows.cancel(line.flow)

    def _opened(self, player: Player, message: Letter) -> Letter:
        if player.rank != self._server:  # whose version is its last commit's
            header = message.header
            if "version" in header:
                player.version = header["version"]
            if "epoch" in header:
                player.epoch = header["epoch"]
        return message

    def _line(self, sender: int, receiver: int) -> Line:
        path = self.cluster.path(sender, receiver)
        route = None
        if path.links:
            of_racks = tuple(self._link(link) for link in path.links if isinstance(link[1], str))
            of_nodes = tuple(self._link(link) for link in path.links if isinstance(link[1], int))
            route = Route(shared=of_racks, own=of_nodes, limit=path.bytes_per_second)
        jitter = self._jitters.get((sender, receiver))
        if jitter is None and self.cluster.network.jitter_seconds:
            jitter = self._jitters[sender, receiver] = Jitter(self.cluster, sender, receiver, seed=self.seed)
        return Line(self.players[receiver], path.latency_seconds, path.bytes_per_second, route, jitter)

    def _link(self, link: tuple[str, int | str]) -> Link:
        if link not in self._links:
            self._links[link] = Link(self.cluster.capacity(link), " ".join(map(str, link)))
        return self._links[link]
