"""How a server learns the states of its workers for a checkpoint: by questions and answers among the messages of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from threading import Condition
from typing import Any

import torch

STATE_AT, STATE_OF = "state at", "state of"
"""The headers of a question and of an answer, in words that no program's header has for a name."""


def about_states(header: Mapping[str, Any]) -> bool:
    """Whether a message with this header is a question or an answer, and not for the program."""
    return STATE_AT in header or STATE_OF in header


class Answering:
    """A rank's part in the checkpoints of its run, in the thread that receives messages. Here: none, as no server asks."""

    def answer(self, version: int, questions: StateQuestions) -> None:
        """Answer the server, which asks for this rank's state at a version."""

    def pass_on(self, questions: StateQuestions) -> None:
        """Answer it if the rank's own workers have answered, as that may be."""


class StateQuestions:
    """The questions and answers of one mailbox. `arrived` is its lock; `put` sends a header and a payload to a peer, False if it is lost.

    `answering` answers what the server asks.
    """

    def __init__(self, arrived: Condition, put: Callable[[int, dict[str, Any], Any], bool], answering: Answering) -> None:
        self._arrived = arrived
        self._put = put
        self._answering = answering
        self._versions: deque[int] = deque()
        self._answers: dict[int, dict[int, bytes]] = {}
        self.awaited: set[int] = set()
        """The peers that have been asked for their states, and have not answered yet."""

    def ask(self, version: int, peers: Collection[int]) -> None:
        """Ask those of these peers that are not lost for their states at this version, before anything that is sent after this."""
        with self._arrived:
            self._answers.clear()
            self.awaited = {peer for peer in peers if self._put(peer, {STATE_AT: version}, None)}

    def answer(self, to: int, version: int, content: bytes) -> None:
        """Send the server a state that it has asked for."""
        payload = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with self._arrived:
            self._put(to, {STATE_OF: version}, payload)

    def take_answers(self, version: int) -> dict[int, bytes]:
        """The states that have arrived for this version, by sender."""
        with self._arrived:
            return self._answers.pop(version, {})

    def attend(self) -> None:
        """Answer what was asked, in the thread that receives messages and holds the lock."""
        while self._versions:
            self._answering.answer(self._versions.popleft(), self)
        self._answering.pass_on(self)

    def arrive(self, peer: int, header: Mapping[str, Any], payload: torch.Tensor | None) -> None:
        """The server asks for this rank's state, or a worker has sent its own."""
        with self._arrived:
            if payload is None:
                self._versions.append(header[STATE_AT])
            else:
                self._answers.setdefault(header[STATE_OF], {})[peer] = payload.cpu().numpy().tobytes()
                self.awaited.discard(peer)
            self._arrived.notify_all()
