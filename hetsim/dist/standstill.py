"""Detects that no rank of a run can go on, and says who waits for whom. `hetsim.sim.standstill` is its twin.

A thread of each process polls what its rank waits for. If that has not changed since the last poll, the thread writes it to the
store that the processes share, and the leader's thread reads what all ranks have written. If every rank waits or has ended,
every message that was sent has arrived, and not all ranks are in the same collective, then no rank can go on.

A collective may complete on one rank long before it does on another, whose last part is still in the network. So where any rank
is in a collective, nothing may have changed for `COLLECTIVE_SECONDS` before the run is ended. Messages are counted, so without
a collective two polls are enough. A thread that does not get to poll, as on a busy machine, delays the finding: each poll is numbered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from threading import Event, Thread
from typing import Any, Protocol

from hetsim.errors import RunFailed

POLL_SECONDS = 1.0
"""Time between two polls."""
COLLECTIVE_SECONDS = 300.0
"""Without any change, before ranks in different collectives count as a standstill."""
MAX_NAMED = 8
"""Ranks that the sentence names."""


@dataclass(frozen=True)
class Waiting:
    """What one rank waits for in its `num_asked`-th effect."""

    num_asked: int
    what: str
    collective: str | None = None
    """The thread, number and type of the collective that it has entered."""
    ended: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    """Messages that it has sent, by receiver; `arrived` has those that have arrived, by sender."""
    arrived: dict[int, int] = field(default_factory=dict)


class Store(Protocol):
    """The key-value store that the processes share (torch.distributed's Store)."""

    def set(self, key: str, value: str) -> Any:
        """Write a value."""

    def get(self, key: str) -> Any:
        """Read a value as bytes."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these keys have been written."""


class StandstillWatch:
    """Watches one rank, and on the leader all ranks. There the watching thread calls `report(error)` at a standstill."""

    def __init__(
        self, store: Store, rank: int, num_ranks: int, look: Callable[[], Waiting | None], report: Callable[[RunFailed], None] | None
    ) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._look = look
        self._report = report
        self._stopped = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StandstillWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(2 * POLL_SECONDS)  # it may wait for a store that is gone

    def _watch(self) -> None:
        seen: Waiting | None = None
        poll = 0
        first: list[dict[str, Any]] | None = None
        polls: list[int] = []
        since = 0
        while not self._stopped.wait(POLL_SECONDS):
            poll += 1
            try:
                waiting = self._look()
                stuck = asdict(waiting) if waiting is not None and waiting == seen else None
                self._store.set(self._key(self._rank), json.dumps([poll, stuck]))
                seen = waiting
                if self._report is None:
                    continue
                found = self._read()
                if found is None or not standing_still(found[1]):
                    first = None
                elif found[1] != first:
                    (polls, first), since = found, poll
                elif all(now > then for now, then in zip(found[0], polls, strict=True)) and poll - since >= patience(found[1]):
                    self._report(RunFailed(sentence(found[1])))
                    return
            except Exception:  # the run has ended, and the store with it
                return

    def _read(self) -> tuple[list[int], list[Any]] | None:
        """The number of each rank's last poll, and what it found; None until all ranks have polled."""
        keys = [self._key(rank) for rank in range(self._num_ranks)]
        if not self._store.check(keys):
            return None
        polls, ranks = zip(*(json.loads(self._store.get(key)) for key in keys), strict=True)
        return list(polls), list(ranks)

    @staticmethod
    def _key(rank: int) -> str:
        return f"waiting/{rank}"


def standing_still(ranks: list[dict[str, Any] | None]) -> bool:
    """Whether no rank can go on, by what each rank waits for (None: it may go on by itself)."""
    known = [waiting for waiting in ranks if waiting is not None]
    if len(known) < len(ranks) or all(waiting["ended"] for waiting in known):
        return False
    if len({waiting["collective"] for waiting in known}) == 1 and known[0]["collective"] is not None:
        return False  # all ranks are in it, so it will complete
    return all(
        count == known[int(receiver)]["arrived"].get(str(sender), 0)
        for sender, waiting in enumerate(known)
        for receiver, count in waiting["sent"].items()
    )


def patience(ranks: list[dict[str, Any]]) -> float:
    """Polls for which all ranks must have been waiting like this."""
    return COLLECTIVE_SECONDS / POLL_SECONDS if any(waiting["collective"] is not None for waiting in ranks) else 1


def sentence(ranks: list[dict[str, Any]]) -> str:
    """What each of the waiting ranks waits for."""
    waiting = [f"rank {rank} {one['what']}" for rank, one in enumerate(ranks) if not one["ended"]]
    ended = [f"rank {rank} {one['what']}" for rank, one in enumerate(ranks) if one["ended"]]
    named = (waiting + ended)[:MAX_NAMED]
    more = len(ranks) - len(named)
    return f"the run can make no progress: {'; '.join(named)}{f'; and {more} more' if more else ''}"
