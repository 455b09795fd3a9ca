"""Messages between processes: for each peer a thread that receives and one that sends, and one inbox ordered by due time.

Gloo's sends block until they are received, its receive from any rank does not notice a killed peer, and its asynchronous
receives do not report completion. So each peer has a thread with a blocking receive, and a thread with a queue of sends.

With padding, a message whose way shares links is held where it arrives until its emulated transfer has ended. The server knows all of
these transfers: its own messages, and those of others from their headers on, which come before the payload. It tells a worker the end
of a transfer to it by a header of its own, behind the message.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any, overload

import torch

from hetsim.distributed.communication.outbox import Outgoing, send_next
from hetsim.distributed.communication.state_questions import Answering, StateQuestions, about_states
from hetsim.distributed.communication.transport import LOOK_SECONDS, Transport, as_tensor
from hetsim.distributed.communication.wire import HEADER_BYTES, Arrival, Held, decoded, encoded
from hetsim.distributed.pacing.link_emulator import LinkEmulator
from hetsim.distributed.pacing.padding import Pace, realtime_priority, reduce_timer_slack
from hetsim.distributed.pacing.shared_links import SharedLinks
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunOver
from hetsim.vector import nbytes
from hetsim.workloads.device import CPU, Device

GOODBYE, LEFT_AT = "program ended", "left links at"
"""What mailboxes tell each other, in words that no program's header has for a name."""


class Mailbox:
    """Sends and receives this rank's messages. `seconds(peer, nbytes)` is the described time of a message from this peer.

    If messages are to share `links`, the mailbox of the server emulates that; `serves` says whether this is that one. Payloads are sent
    from `device`, and those received are in the CPU's memory.

    If it `goes_on` without lost peers, the loss of each is raised once, after what had arrived from it, and what is sent to it is dropped;
    a new process of its rank may `connect`, and `on_loss` is called with the rank. On a worker that `joins` a run under way, RunOver is
    raised if that has ended. `answering` answers a server that asks for states.
    """

    def __init__(
        self, transport: Transport, peers: Iterable[int], seconds: Callable[[int, int], float], pace: Pace, *, began: float,
        links: SharedLinks | None = None, serves: bool = False, device: Device | None = None,
        goes_on: bool = False, joins: bool = False, on_loss: Callable[[int], object] = bool, answering: Answering | None = None,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._goes_on = goes_on
        self._joins = joins
        self._closing = self._abandoned = False
        self._on_loss = on_loss
        self._device = device or CPU()
        self._seconds = seconds
        self._began = began
        self._broken: Exception | None = None
        self.pace = pace
        self._arrived = Condition()
        self._inbox: list[tuple[float, int, Arrival]] = []
        self._latest: dict[int, float] = {}
        self._lost: set[int] = set()
        self._ended: set[int] = set()
        self._serial = itertools.count()
        self._outbox: dict[int, SimpleQueue[Outgoing | None]] = {peer: SimpleQueue() for peer in peers}
        self._links = links
        self._held = {peer: Held() for peer in self._outbox if self._carries(peer)}
        self._emulator = LinkEmulator(links, pace, self.fail) if links is not None and serves else None
        self.num_sent = dict.fromkeys(self._outbox, 0)
        """Messages given to `send`, by receiver."""
        self.num_arrived = dict.fromkeys(self._outbox, 0)
        """Messages that have arrived, by sender."""
        self.links: dict[int, Transport] = {}
        """By which each peer is reached, also one that is lost."""
        self._threads: dict[int, list[Thread]] = {}
        self.states = StateQuestions(self._arrived, self._put_out, answering or Answering())
        with realtime_priority():
            for peer in self._outbox:
                self._start(peer, transport)

    def _carries(self, peer: int) -> bool:
        return self._links is not None and self._links.carries(peer, self._transport.rank)

    @property
    def present(self) -> list[int]:
        """The peers that are not lost."""
        with self._arrived:
            return sorted(self._outbox.keys() - self._lost)

    def connect(self, peer: int, link: Transport) -> bool:
        """A new process of this rank is reached by this link from now on. False if the run has ended."""
        self.lose(peer)
        with self._arrived, realtime_priority():
            if self._closing:
                return False
            self._lost.discard(peer)
            self._ended.discard(peer)
            self._outbox[peer] = SimpleQueue()
            if self._carries(peer):
                self._held[peer] = Held()
            self.num_sent[peer] = self.num_arrived[peer] = 0
            self._start(peer, link)
            return True

    def _start(self, peer: int, link: Transport) -> None:
        self.links[peer] = link
        queue = self._outbox[peer]
        self._threads[peer] = [
            Thread(target=self._deliver, args=(peer, queue, link), daemon=True),
            Thread(target=self._listen, args=(peer, link), daemon=True),
        ]
        for thread in self._threads[peer]:
            thread.start()

    def send(self, to: int, header: dict[str, Any], payload: Any, *, at: float) -> None:
        """Send a message without waiting, also for the device; `at` counts as the moment at which it was sent."""
        with self._arrived:
            if self._goes_on and (to in self._lost or any(its.lost and its.source == to for _, _, its in self._inbox)):
                return  # the program, which does not know of the loss yet, means the process that is lost, not the one that has joined
            outbox = self._outbox[to]
            self.num_sent[to] += 1
        outbox.put((encoded({**header, "sent_at": at - self._began}, payload), self._device.begin_fetch(payload)))
        if self._emulator is not None and self._emulator.carries(self._transport.rank, to):
            self._emulator.begin(self._transport.rank, to, nbytes(payload), at, partial(self._tell_end, outbox))

    @overload
    def receive(self, source: int | None) -> Arrival: ...
    @overload
    def receive(self, source: int | None, until: float) -> Arrival | None: ...
    def receive(self, source: int | None, until: float = math.inf) -> Arrival | None:
        """The message due first, of all or of those from `source`; waits until it is due. PeerLost if such a peer is lost.

        None if none is due `until` this moment of the host's clock.
        """
        with self._arrived:
            while True:
                if self._broken is not None:
                    raise self._broken
                self.states.attend()
                waiting = self._waiting(source)
                if not waiting:
                    self._check(source)
                first = min(waiting, default=None)
                due = math.inf if first is None else first[0]
                now = self.pace.clock()
                if first is not None and due <= min(now, until):
                    self._inbox.remove(first)
                    if first[2].lost:
                        raise PeerLost.of(first[2].source)
                    return first[2]
                if until <= now:
                    return None
                waking = min(due, until)
                self._arrived.wait(None if waking == math.inf else waking - now)

    def has_message(self, source: int | None) -> bool:
        """Whether a message for such a `receive` has arrived, whether due or not."""
        with self._arrived:
            return bool(self._waiting(source))

    def due_before(self, moment: float, *, wait: bool) -> float | None:
        """When the first message is due, if that is before this moment, or is the present one; None if there is none until then.

        With `wait` it waits for one, or for the moment; without, it returns at once.
        """
        with self._arrived:
            while True:
                if self._broken is not None:
                    raise self._broken
                now = self.pace.clock()
                first = min((due for due, _, _ in self._inbox), default=inf)
                if first <= min(now, moment):
                    return first
                if now >= moment or not wait:
                    return None
                self._arrived.wait(min(first, moment) - now)

    def close(self) -> None:
        """Report to all peers that this program has ended, and wait until all of theirs have."""
        if self._emulator is not None:
            self._emulator.wait_for_all()
        with self._arrived:
            self._closing = True
        for queue in self._outbox.values():
            queue.put(None)
        for peer in self.present:
            for thread in self._threads[peer]:
                while thread.is_alive() and peer not in self._lost and self._broken is None:  # else it may wait for ever
                    thread.join(LOOK_SECONDS)
        if self._emulator is not None:
            self._emulator.stop()

    def abandon(self, error: Exception) -> None:
        """Let `receive` raise this error, and the threads end, once their connections are shut down; the program has not ended."""
        self._abandoned = True
        self.fail(error)
        for queue in self._outbox.values():
            queue.put(None)
        if self._emulator is not None:
            self._emulator.stop()

    def _waiting(self, source: int | None) -> list[tuple[float, int, Arrival]]:
        return [item for item in self._inbox if source in (None, item[2].source)]

    def _check(self, source: int | None) -> None:
        """Raise an error if no message has arrived and none can arrive any more."""
        peers = self._outbox.keys() if source is None else {source}
        held = any(self._held[peer].messages for peer in peers if peer in self._held)
        if held and self._emulator is not None:  # it tells when they have come, also of a peer that is lost by then
            return
        gone = self._lost if source is None else self._lost & {source}
        if self._goes_on:
            peers = peers - gone
        elif gone:
            raise PeerLost(f"rank {min(gone)} is gone: its process ended or its connection broke")
        if held:
            return
        if peers and self._ended.issuperset(peers):
            if self._joins:
                raise RunOver
            whose = "all other programs have" if source is None else f"the program of rank {source} has"
            raise RunFailed(f"rank {self._transport.rank} waits for a message, but {whose} ended: no message can come")

    def _deliver(self, peer: int, queue: SimpleQueue[Outgoing | None], link: Transport) -> None:
        try:
            while send_next(queue, peer, link):
                pass
            if not self._abandoned:
                link.send(encoded({GOODBYE: 1}, None), peer)
        except PeerLost:
            self.lose(peer, link)
        except Exception as error:
            self.fail(error)

    def _listen(self, peer: int, link: Transport) -> None:
        reduce_timer_slack()
        packed = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        try:
            while True:
                link.receive(packed, peer)
                header, payload = decoded(packed, self._device.empty)
                if GOODBYE in header:
                    self._end(peer)
                    return
                if LEFT_AT in header:
                    self._left(peer, header[LEFT_AT] + self._began, self.pace.clock())
                    continue
                if about_states(header):
                    if payload is not None:
                        link.receive(payload, peer)
                    self.states.arrive(peer, header, payload)
                    continue
                if self._emulator is not None and peer in self._held:
                    at = header["sent_at"] + self._began
                    self._emulator.begin(peer, self._transport.rank, nbytes(payload), at, partial(self._left, peer, held=self._held[peer]))
                if payload is not None:
                    link.receive(as_tensor(payload), peer)
                with self._arrived:
                    if self._goes_on and (peer in self._lost or self.links[peer] is not link):
                        return  # its loss was told, so its range may have been handed out again
                    self.arrive(peer, header, payload)
        except PeerLost:
            self.lose(peer, link)
        except Exception as error:
            self.fail(error)

    def arrive(self, source: int, header: dict[str, Any], payload: Any = None) -> None:
        """A message is here, whose header says when it was sent: put it into the inbox, unless its transfer has yet to end."""
        now = self.pace.clock()
        with self._arrived:
            if source in self._held:
                self._held[source].messages.append((header, payload, now))
                self._match(source)
            else:
                due = now
                if self.pace.pad:
                    due = header["sent_at"] + self._began + self._seconds(source, nbytes(payload))
                self._put(source, header, payload, now, due)

    def _left(self, source: int, end: float, known: float | None = None, *, held: Held | None = None) -> None:
        """The transfer of this peer's next held message has ended at this moment, which is known since then or the other moment."""
        with self._arrived:
            if held is not None and held is not self._held[source]:
                return  # of a process that is lost
            self._held[source].ends.append((end, end if known is None else known))
            self._match(source)

    def _match(self, source: int) -> None:
        for header, payload, now, end in self._held[source].matched():
            self._put(source, header, payload, now, end + self._seconds(source, 0))

    def _put_out(self, to: int, item: Outgoing) -> bool:
        """Send this after what was sent before. False if this peer is lost."""
        if to not in self._outbox or to in self._lost:
            return False
        self._outbox[to].put(item)
        return True

    def _tell_end(self, outbox: SimpleQueue[Outgoing | None], end: float) -> None:
        outbox.put((encoded({LEFT_AT: end - self._began}, None), lambda: None))

    def _put(self, source: int, header: dict[str, Any], payload: Any, now: float, due: float) -> None:
        """Put a message that is here now into the inbox, with the time at which it is due."""
        message = Arrival(source, header, payload)
        message.lost = False
        message.sent_at = header.pop("sent_at") + self._began
        if self.pace.pad:
            due = self._latest[source] = max(due, self._latest.get(source, due))  # no message overtakes another from the same peer
            self.pace.record("message", now - due)
        message.due_at = max(now, due)
        self._inbox.append((due, next(self._serial), message))
        self.num_arrived[source] = self.num_arrived.get(source, 0) + 1
        self._arrived.notify_all()

    def lose(self, peer: int, link: Transport | None = None) -> None:
        """This peer is gone: `receive` raises PeerLost once its messages are read. Nothing, if it is reached by another link by now."""
        with self._arrived:
            if link is not None and self.links.get(peer) is not link:
                return
            if self._goes_on and peer in self._outbox and peer not in self._lost:
                notice = Arrival(peer, {})
                notice.lost = True
                self._inbox.append((max(self.pace.clock(), self._latest.get(peer, 0.0)), next(self._serial), notice))
                if peer in self._held:
                    self._held[peer] = Held()
                self._outbox[peer].put(None)
                self.states.awaited.discard(peer)
                self._on_loss(peer)
            self._lost.add(peer)
            if peer in self.links:
                self.links[peer].lose(peer)
            self._arrived.notify_all()

    def _end(self, peer: int) -> None:
        with self._arrived:
            self._ended.add(peer)
            self._arrived.notify_all()

    def fail(self, error: Exception) -> None:
        """Something broke in a thread: let `receive` raise it."""
        with self._arrived:
            self._broken = error
            self._arrived.notify_all()
