"""A server's requests for its workers' states, for a checkpoint. Requests and answers travel among the run's messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from threading import Condition
from typing import Any

import torch

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
