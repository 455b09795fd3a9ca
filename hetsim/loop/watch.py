"""A sentence for ranks that wait for each other in different steps, instead of silence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

LOOK_SECONDS = 5.0
"""The interval at which a rank looks whether its loop has moved."""
PATIENCE = 6
"""The number of looks after which a rank that stands still tells the others where it is. It reads their places two looks later."""


class Watch:
    """Looks at `place()`, where this rank's loop is. The ranks tell each other by a store."""

    def __init__(self, store: Any, name: str, rank: int, size: int, place: Callable[[], str]) -> None:
        self._store, self._name, self._rank, self._size, self._place = store, name, rank, size, place
        self._ended = Event()
        self._thread = Thread(target=self._look, name="hetsim-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._ended.set()

    def _look(self) -> None:
        place, looks = "", 0
        while not self._ended.wait(LOOK_SECONDS):
            now = self._place()
            try:
                if now == place:
                    looks += 1
                    if looks == PATIENCE:
                        self._store.set(self._key(self._rank), place)
                    elif looks == PATIENCE + 2:
                        self._tell()
                else:
                    if looks >= PATIENCE:
                        self._store.set(self._key(self._rank), "")
                    place, looks = now, 0
            except RuntimeError:  # the store has ended with its process
                return

    def _tell(self) -> None:
        """Print where the ranks stand, once all do, unless all are at the same place."""
        keys = [self._key(rank) for rank in range(self._size)]
        places = [self._store.get(key).decode() if self._store.check([key]) else "" for key in keys]
        if all(places) and len(set(places)) > 1:
            where = "; ".join(f"rank {rank} {place}" for rank, place in enumerate(places))
            seconds = (PATIENCE + 2) * LOOK_SECONDS
            print(f"hetsim: no rank moves for {seconds:.0f} s: {where}. All ranks must take the same steps", file=sys.stderr, flush=True)

    def _key(self, rank: int) -> str:
        return f"{self._name}/stands/{rank}"
