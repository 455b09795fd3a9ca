"""Detect that no rank of a run can continue, and report which ranks wait for which. Twin of `describe_standstill` in `sim/world.py`.

A thread of each process polls its rank's current wait. If the wait has not changed since the last poll, the thread writes it to the
processes' store, and the leader's thread reads all ranks' entries. No rank can continue if every rank waits or has ended, every sent
message has arrived, and not all ranks are in the same collective.

A collective may complete on one rank long before another one, whose last part is still in transit. So if any rank is in a collective,
nothing may have changed for `COLLECTIVE_SECONDS` before the run is ended. Messages are counted, so without a collective two polls are
enough. Polls are numbered, so a thread that does not run on a busy machine only delays the detection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from threading import Event, Thread
from typing import Any

from hetsim import checks
from hetsim.distributed.membership.keeper import Store, read_entry, text
from hetsim.errors import RunFailed

POLL_SECONDS = 1.0
"""The interval of polls."""
COLLECTIVE_SECONDS = 300.0
"""The time without any change before ranks in different collectives count as a standstill."""
MAX_NAMED = 8
"""The maximum number of ranks in the error."""


@dataclass(frozen=True)
class Waiting:
    """One rank's wait in its `num_asked`-th effect."""

    num_asked: int
    description: str
    collective: str | None = None
    """The thread, number and type of the collective that it has entered; None if it is in none."""
    ended: bool = False
    sent: dict[int, int] = field(default_factory=dict)
    """The messages that it has sent, by receiver. `arrived` are the messages that have arrived, by sender."""
    arrived: dict[int, int] = field(default_factory=dict)


class StandstillWatch:
    """Watches one rank, and on the leader all ranks. There, the watching thread calls `report(error)` at a standstill."""

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: Callable[[], Collection[int]],
        look: Callable[[], Waiting | None],
        report: Callable[[RunFailed], None] | None,
        *,
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._look = look
        self._report = report
        self._leads = leads
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
        first: dict[int, dict[str, Any]] | None = None
        polls: dict[int, int] = {}
        since = 0
        while not self._stopped.wait(POLL_SECONDS):
            poll += 1
            try:
                waiting = self._look()
                stuck = asdict(waiting) if waiting is not None and waiting == seen else None
                self._store.set(self._key(self._rank), json.dumps([poll, stuck]))
                seen = waiting
                if self._report is None or not self._leads():
                    continue
                polled = self._read()
                if polled is None or not is_standstill(polled[1]):
                    first = None
                elif polled[1] != first:
                    (polls, first), since = polled, poll
                elif all(now > polls[rank] for rank, now in polled[0].items()) and poll - since >= patience(polled[1]):
                    self._report(RunFailed(sentence(polled[1])))
                    return
            except RunFailed as error:  # what a rank has written is nothing that a rank writes
                if self._report is not None:
                    self._report(error)
                return
            except Exception:  # the run has ended, and the store with it
                return

    def _read(self) -> tuple[dict[int, int], dict[int, Any]] | None:
        """For each rank, the number of its last poll, and the result. None until all participating ranks have polled."""
        ranks = list(self._ranks())
        keys = [self._key(rank) for rank in ranks]
        if not self._store.check(keys):
            return None
        entries = {rank: read_entry(self._store, key, _checked_poll) for rank, key in zip(ranks, keys, strict=True)}
        return {rank: poll for rank, (poll, _) in entries.items()}, {rank: waiting for rank, (_, waiting) in entries.items()}

    @staticmethod
    def _key(rank: int) -> str:
        return f"waiting/{rank}"


def _checked_poll(entries: Any) -> tuple[int, dict[str, Any] | None]:
    """A rank's entry: the number of its poll, and its wait."""
    poll, waiting = entries
    if waiting is not None:
        checks.whole("num_asked", waiting["num_asked"], least=0)
        checks.flag("ended", waiting["ended"])
        text(waiting["description"])
        text(waiting["collective"] or "")
        for counts in (waiting["sent"], waiting["arrived"]):
            for rank, count in counts.items():
                checks.whole("a count", count, least=0)
                int(rank)
    return checks.whole("poll", poll), waiting


def is_standstill(ranks: Mapping[int, dict[str, Any] | None]) -> bool:
    """Whether no rank can continue, from each rank's wait (None: it may continue by itself)."""
    waits = {rank: waiting for rank, waiting in ranks.items() if waiting is not None}
    if len(waits) < len(ranks) or all(waiting["ended"] for waiting in waits.values()):
        return False
    collectives = {waiting["collective"] for waiting in waits.values()}
    if len(collectives) == 1 and None not in collectives:
        return False  # all ranks are in it, so it will complete
    return all(
        count == waits[int(receiver)]["arrived"].get(str(sender), 0)
        for sender, waiting in waits.items()
        for receiver, count in waiting["sent"].items()
        if int(receiver) in waits
    )


def patience(ranks: Mapping[int, dict[str, Any]]) -> float:
    """The number of polls for which all ranks must have waited like this."""
    return COLLECTIVE_SECONDS / POLL_SECONDS if any(waiting["collective"] is not None for waiting in ranks.values()) else 1


def sentence(ranks: Mapping[int, dict[str, Any]]) -> str:
    """The wait of each waiting rank, as a sentence."""
    waiting = [f"rank {rank} {wait['description']}" for rank, wait in ranks.items() if not wait["ended"]]
    ended = [f"rank {rank} {wait['description']}" for rank, wait in ranks.items() if wait["ended"]]
    sentences = (waiting + ended)[:MAX_NAMED]
    more = len(ranks) - len(sentences)
    return f"the run can make no progress: {'; '.join(sentences)}{f'; and {more} more' if more else ''}"
