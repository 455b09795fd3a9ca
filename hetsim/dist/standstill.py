"""Notices that no rank of a run can go on, and says who waits for whom.

A thread of each process looks once in a while at what its rank waits for. If that has not changed since the last look, it is
written to the store that the processes share; the leader's thread reads what all have written. If every rank waits or has
ended, every message that was sent has arrived, and they are not all in the same collective, then nothing can happen any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from threading import Event, Thread
from typing import Any, Protocol

from hetsim.errors import RunFailed

SECONDS = 1.0
"""Between two looks."""
SHOWN = 8
"""Ranks that are named in the sentence."""


@dataclass(frozen=True)
class Waiting:
    """What one rank waits for, as of its `num_asked`-th effect."""

    num_asked: int
    what: str
    collective: str | None = None
    """The thread, number and kind of the collective that it has entered."""
    ended: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    """By receiver, messages that it has sent; what has arrived, by sender."""
    arrived: dict[int, int] = field(default_factory=dict)


class Store(Protocol):
    """What the processes share: text by name."""

    def set(self, key: str, value: str) -> Any:
        """Write a text."""

    def get(self, key: str) -> Any:
        """Read a text as bytes."""

    def check(self, keys: list[str]) -> bool:
        """Whether all of these have been written."""


class StandstillWatch:
    """Watches one rank; on the leader, all of them. `report(error)` is called on the leader, from the watching thread."""

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
        self._thread.join()

    def _watch(self) -> None:
        seen: Waiting | None = None
        found: list[dict[str, Any]] | None = None
        while not self._stopped.wait(SECONDS):
            try:
                waiting = self._look()
                stuck = waiting is not None and waiting == seen
                self._store.set(self._key(self._rank), json.dumps(asdict(waiting) if stuck and waiting is not None else None))
                seen = waiting
                if self._report is None:
                    continue
                before, found = found, self._all_stuck()
                if found is not None and found == before:
                    self._report(RunFailed(sentence(found)))
                    return
            except Exception:  # the run is over, and with it the store
                return

    def _all_stuck(self) -> list[dict[str, Any]] | None:
        """What all ranks wait for, if none of them can go on."""
        keys = [self._key(rank) for rank in range(self._num_ranks)]
        if not self._store.check(keys):
            return None
        ranks = [json.loads(self._store.get(key)) for key in keys]
        return ranks if standing_still(ranks) else None

    @staticmethod
    def _key(rank: int) -> str:
        return f"waiting/{rank}"


def standing_still(ranks: list[dict[str, Any] | None]) -> bool:
    """Whether nothing can happen any more, by what each rank waits for (None: it may go on by itself)."""
    there = [waiting for waiting in ranks if waiting is not None]
    if len(there) < len(ranks) or all(waiting["ended"] for waiting in there):
        return False
    if len({waiting["collective"] for waiting in there}) == 1 and there[0]["collective"] is not None:
        return False  # all are in it, so it goes on
    return all(
        count == there[int(receiver)]["arrived"].get(str(sender), 0)
        for sender, waiting in enumerate(there)
        for receiver, count in waiting["sent"].items()
    )


def sentence(ranks: list[dict[str, Any]]) -> str:
    """Who waits for whom."""
    waiting = [f"rank {rank} {its['what']}" for rank, its in enumerate(ranks) if not its["ended"]]
    ended = [f"rank {rank} {its['what']}" for rank, its in enumerate(ranks) if its["ended"]]
    shown = (waiting + ended)[:SHOWN]
    more = len(ranks) - len(shown)
    return f"the run can make no progress: {'; '.join(shown)}{f'; and {more} more' if more else ''}"
