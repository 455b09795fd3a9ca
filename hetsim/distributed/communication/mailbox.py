"""Messages between processes. Each peer has a thread that receives and a thread that sends. One inbox is ordered by due time.

Gloo's receive from any rank does not notice a killed peer, and its asynchronous sends and receives do not report completion. So each peer
has a thread that waits for its messages, and a thread that waits for the arrival of messages to it.

With padding, the cluster's description sets the time at which a message is due. If the message shares links, its header contains the
number of its transfer, and it is due after the transfer's end. The end may change when other transfers begin.

For a checkpoint, a server asks its workers for their states. These requests and answers travel among the messages.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from operator import attrgetter
from threading import Condition, Thread
from typing import Any, overload

import torch

from hetsim.distributed.communication.channel import Arrival, Incoming, Outbox, PeerConnection, encode_header
from hetsim.distributed.communication.transport import LOOK_SECONDS, Transport
from hetsim.distributed.pacing.padding import Pace, realtime_priority, reduce_timer_slack
from hetsim.distributed.pacing.shared_links import LinkEmulator
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunOver
from hetsim.vector import nbytes
from hetsim.workloads.device import CPU, Device

STATE_AT, STATE_OF = "state at", "state of"
"""The headers of a request and of an answer, with names that no program's header has."""


def about_states(header: Mapping[str, Any]) -> bool:
    """Whether a message with this header is a request or an answer, and not for the program."""
    return STATE_AT in header or STATE_OF in header


class Answering:
    """A rank's part in its run's checkpoints, in the thread that receives messages. This class does nothing, because no server asks."""

    def answer(self, version: int, questions: StateQuestions) -> None:
        """Answer the server's request for this rank's state at a version."""

    def pass_on(self, questions: StateQuestions) -> None:
        """Send the answer if the rank's own workers have answered."""


class StateQuestions:
    """The requests and answers of one mailbox. `arrived` is its lock. `put` sends a header and payload, and returns False for a lost peer.

    `answering` answers the server's requests.
    """

    def __init__(self, arrived: Condition, put: Callable[[int, dict[str, Any], Any], bool], answering: Answering) -> None:
        self._arrived = arrived
        self._put = put
        self._answering = answering
        self._versions: deque[int] = deque()
        self._answers: dict[int, dict[int, bytes]] = {}
        self.awaited: set[int] = set()
        """The peers with an unanswered request."""

    def ask(self, version: int, peers: Collection[int]) -> None:
        """Request the states at this version from these peers, if they are not lost, before any later message."""
        with self._arrived:
            self._answers.clear()
            self.awaited = {peer for peer in peers if self._put(peer, {STATE_AT: version}, None)}

    def answer(self, to: int, version: int, content: bytes) -> None:
        """Send a requested state to the server."""
        payload = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with self._arrived:
            self._put(to, {STATE_OF: version}, payload)

    def take_answers(self, version: int) -> dict[int, bytes]:
        """Remove and return the arrived states for this version, by sender."""
        with self._arrived:
            return self._answers.pop(version, {})

    def attend(self) -> None:
        """Answer requests, in the thread that receives messages and holds the lock."""
        while self._versions:
            self._answering.answer(self._versions.popleft(), self)
        self._answering.pass_on(self)

    def arrive(self, peer: int, header: Mapping[str, Any], payload: torch.Tensor | None) -> None:
        """A request from the server, or a worker's state, has arrived."""
        with self._arrived:
            if payload is None:
                self._versions.append(header[STATE_AT])
            else:
                self._answers.setdefault(header[STATE_OF], {})[peer] = payload.cpu().numpy().tobytes()
                self.awaited.discard(peer)
            self._arrived.notify_all()


GOODBYE, TRANSFER = "program ended", "number of transfer"
"""Headers of messages between mailboxes, with names that no program's header has."""


class Mailbox:
    """Sends and receives this rank's messages.

    Args:
        seconds: `seconds(peer, nbytes)` is the described time of a message from this peer.
        links: the links that messages share, if there are any.
        device: payloads are sent from this device. Received ones are in CPU memory.
        usual: the bytes of most payloads, the same at all peers; these arrive with less delay. 0: nothing is known of them.
        goes_on: whether the run survives the loss of a peer. Each loss is then raised once, after the messages that had arrived from the
            peer. Messages to a lost peer are dropped. A new process of its rank may `connect`.
        joins: whether this worker joins a running run. RunOver is raised if that run has ended.
        on_loss: called with the rank of each lost peer.
        answering: answers a server that asks for states.
    """

    def __init__(
        self, transport: Transport, peers: Iterable[int], seconds: Callable[[int, int], float], pace: Pace, *, began: float,
        links: LinkEmulator | None = None, device: Device | None = None, usual: int = 0,
        goes_on: bool = False, joins: bool = False, on_loss: Callable[[int], object] = bool, answering: Answering | None = None,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._goes_on = goes_on
        self._joins = joins
        self._closing = self._abandoned = False
        self._on_loss = on_loss
        self._device = device or CPU()
        self._usual = usual
        self._seconds = seconds
        self._began = began
        self._broken: Exception | None = None
        self.pace = pace
        self._arrived = Condition()
        self._inbox: list[Arrival] = []
        """The messages in the order of their arrival."""
        self._latest: dict[int, float] = {}
        """The due time of the last received message, by peer."""
        self._lost: set[int] = set()
        self._ended: set[int] = set()
        peers = list(peers)
        self._outbox: dict[int, Outbox] = {}
        self._links = links
        self.num_sent = dict.fromkeys(peers, 0)
        """The number of messages given to `send`, by receiver."""
        self.num_arrived = dict.fromkeys(peers, 0)
        """The number of messages that have arrived, by sender."""
        self.links: dict[int, Transport] = {}
        """The transport to each peer, including lost ones."""
        self._threads: dict[int, list[Thread]] = {}
        self.states = StateQuestions(self._arrived, self._put_out, answering or Answering())
        with realtime_priority():
            for peer in peers:
                self._start(peer, transport)

    @property
    def present(self) -> list[int]:
        """The peers that are not lost."""
        with self._arrived:
            return sorted(self._outbox.keys() - self._lost)

    def connect(self, peer: int, link: Transport) -> bool:
        """Use this transport to a new process of this rank from now on. Returns False if the run has ended."""
        self.lose(peer)
        with self._arrived, realtime_priority():
            if self._closing:
                return False
            self._lost.discard(peer)
            self._ended.discard(peer)
            self.num_sent[peer] = self.num_arrived[peer] = 0
            self._start(peer, link)
            return True

    def _start(self, peer: int, link: Transport) -> None:
        self.links[peer] = link
        channel = PeerConnection(peer, link, link.own_tag(peer), self._usual, self._device)
        self._outbox[peer] = outbox = Outbox(channel)
        self._threads[peer] = [
            Thread(target=self._deliver, args=(peer, outbox, link), daemon=True),
            Thread(target=self._listen, args=(peer, link, channel), daemon=True),
        ]
        for thread in self._threads[peer]:
            thread.start()

    def send(self, to: int, header: dict[str, Any], payload: Any, *, at: float) -> None:
        """Send a message without waiting, even for the device. It counts as sent at the time `at`."""
        with self._arrived:
            if self._goes_on and (to in self._lost or any(message.lost and message.source == to for message in self._inbox)):
                return  # the program, which does not know of the loss yet, means the process that is lost, not the one that has joined
            self.num_sent[to] += 1
        header = {**header, "sent_at": at - self._began}
        if self._links is not None and self._links.carries(self._transport.rank, to):
            header[TRANSFER] = self._links.begin(to, nbytes(payload), at)
        self._put_out(to, header, payload)

    @overload
    def receive(self, source: int | None) -> Arrival: ...
    @overload
    def receive(self, source: int | None, until: float) -> Arrival | None: ...
    def receive(self, source: int | None, until: float = math.inf) -> Arrival | None:
        """The message that is due first, from any source or from `source`. Waits until it is due. Raises PeerLost if such a peer is lost.

        Returns None if no message is due `until` this time of the host's clock.
        """
        with self._arrived:
            while True:
                if self._broken is not None:
                    raise self._broken
                self.states.attend()
                first = self._first(source)
                if first is None:
                    self._check(source)
                due = math.inf if first is None else first.due
                now = self.pace.clock()
                if first is not None and due <= min(now, until):
                    return self._take(first)
                if until <= now:
                    return None
                waking = min(due, until)
                self._arrived.wait(None if waking == math.inf else waking - now)

    def has_message(self, source: int | None) -> bool:
        """Whether a message for such a `receive` has arrived, due or not."""
        with self._arrived:
            return any(source in (None, message.source) for message in self._inbox)

    def due_before(self, moment: float, *, wait: bool) -> float | None:
        """The time at which the first message is due, if it is before this time or now; None without such a message.

        With `wait`, it waits for a message or until this time. Otherwise it returns at once.
        """
        with self._arrived:
            while True:
                if self._broken is not None:
                    raise self._broken
                now = self.pace.clock()
                first = self._first(None)
                due = inf if first is None else first.due
                if due <= min(now, moment):
                    return due
                if now >= moment or not wait:
                    return None
                self._arrived.wait(min(due, moment) - now)

    def close(self) -> None:
        """Report the end of this program to all peers, and wait for the end of theirs."""
        with self._arrived:
            self._closing = True
        for outbox in self._outbox.values():
            outbox.end()
        for peer in self.present:
            for thread in self._threads[peer]:
                while thread.is_alive() and peer not in self._lost and self._broken is None:  # else it may wait for ever
                    thread.join(LOOK_SECONDS)
        if self._links is not None:
            self._links.remove()

    def abandon(self, error: Exception) -> None:
        """Let `receive` raise this error, and let the threads end after their connections are shut down. The program has not ended."""
        self._abandoned = True
        self.fail(error)
        for outbox in self._outbox.values():
            outbox.end()

    def _first(self, source: int | None) -> Arrival | None:
        """The message that is currently due first, from any source or from `source`."""
        self._set_due()
        return min((message for message in self._inbox if source in (None, message.source)), key=attrgetter("due"), default=None)

    def _set_due(self) -> None:
        if self._links is not None:
            self._links.project()
        latest = dict(self._latest)
        for message in self._inbox:  # no message overtakes another from the same peer
            due = message.moment if message.transfer is None else message.transfer.ends + message.moment
            message.due = latest[message.source] = max(due, latest.get(message.source, due))

    def _take(self, message: Arrival) -> Arrival:
        """Remove a message that is due."""
        self._inbox.remove(message)
        if message.lost:
            raise PeerLost.of(message.source)
        if self.pace.pad:
            self._latest[message.source] = message.due
            self.pace.record("message", message.arrived - message.due)
        message.due_at = max(message.arrived, message.due)
        return message

    def _check(self, source: int | None) -> None:
        """Raise an error if no message has arrived and none can arrive any more."""
        peers = self._outbox.keys() if source is None else {source}
        lost = self._lost if source is None else self._lost & {source}
        if self._goes_on:
            peers = peers - lost
        elif lost:
            raise PeerLost(f"rank {min(lost)} is gone: its process ended or its connection broke")
        if peers and self._ended.issuperset(peers):
            if self._joins:
                raise RunOver
            ended_programs = "all other programs have" if source is None else f"the program of rank {source} has"
            raise RunFailed(f"rank {self._transport.rank} waits for a message, but {ended_programs} ended: no message can come")

    def _deliver(self, peer: int, outbox: Outbox, link: Transport) -> None:
        try:
            while outbox.send_next():
                pass
            if not self._abandoned:
                link.send(encode_header({GOODBYE: 1}, None), peer)
        except PeerLost:
            self.lose(peer, link)
        except Exception as error:
            self.fail(error)

    def _listen(self, peer: int, link: Transport, channel: PeerConnection) -> None:
        reduce_timer_slack()
        try:
            incoming = Incoming(channel)
            while True:
                header, payload = incoming.receive()
                if GOODBYE in header:
                    self._end(peer)
                    return
                if about_states(header):
                    self.states.arrive(peer, header, payload)
                    continue
                with self._arrived:
                    if self._goes_on and (peer in self._lost or self.links[peer] is not link):
                        return  # its loss was told, so its range may have been assigned again
                    self.arrive(peer, header, payload)
        except PeerLost:
            self.lose(peer, link)
        except Exception as error:
            self.fail(error)

    def arrive(self, source: int, header: dict[str, Any], payload: Any = None) -> None:
        """Put a message into the inbox. Its header contains its time of sending."""
        message = Arrival(source, header, payload)
        message.arrived = message.moment = self.pace.clock()
        message.sent_at = header.pop("sent_at") + self._began
        number = header.pop(TRANSFER, None)
        with self._arrived:
            if number is not None:
                assert self._links is not None
                message.transfer = self._links.transfer(number)
                message.moment = self._seconds(source, 0)
            elif self.pace.pad:
                message.moment = message.sent_at + self._seconds(source, nbytes(payload))
            self._inbox.append(message)
            self.num_arrived[source] = self.num_arrived.get(source, 0) + 1
            self._arrived.notify_all()

    def _put_out(self, to: int, header: dict[str, Any], payload: Any) -> bool:
        """Send this message after earlier ones. Returns False if the peer is lost."""
        if to not in self._outbox or to in self._lost:
            return False
        link = self.links[to]
        try:
            self._outbox[to].put(header, payload)
        except PeerLost:
            self.lose(to, link)
            return False
        return True

    def lose(self, peer: int, link: Transport | None = None) -> None:
        """A peer is lost: `receive` raises PeerLost after its messages. Nothing happens if the peer has a new connection."""
        with self._arrived:
            if link is not None and self.links.get(peer) is not link:
                return
            if self._goes_on and peer in self._outbox and peer not in self._lost:
                self._drop_transfers(peer)
                notice = Arrival(peer, {})
                notice.lost = True
                notice.moment = self.pace.clock()
                self._inbox.append(notice)
                self._outbox[peer].end()
                self.states.awaited.discard(peer)
                self._on_loss(peer)
            self._lost.add(peer)
            if peer in self.links:
                self.links[peer].lose(peer)
            self._arrived.notify_all()

    def _drop_transfers(self, peer: int) -> None:
        """Drop the messages of a lost peer with unfinished transfers."""
        now = self.pace.clock()
        self._set_due()
        self._inbox = [
            message for message in self._inbox if message.source != peer or message.transfer is None or message.transfer.ends <= now
        ]

    def _end(self, peer: int) -> None:
        with self._arrived:
            self._ended.add(peer)
            self._arrived.notify_all()

    def fail(self, error: Exception) -> None:
        """A thread has failed: let `receive` raise the error."""
        with self._arrived:
            self._broken = error
            self._arrived.notify_all()
