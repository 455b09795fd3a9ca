"""Time the calls of torch.distributed in which a rank waits for others, because waiting is no work. Active while a Team measures."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist

from hetsim.ddp.windows import Windows

COLLECTIVE = re.compile("_?(all|barrier|broadcast|end_coalescing|gather|monitored_barrier|recv|reduce|scatter|send)")
"""The beginnings of names of process-group methods that communicate. torch.distributed's functions call them, and the work's `wait`."""
_watching: tuple[weakref.ref[Windows], ...] = ()
_replaced: list[tuple[Any, str, Any, Callable[..., Any]]] = []
"""For each replaced method: torch's class, the method's name, the original, and the replacement."""


def watch(windows: Windows) -> None:
    """Record the waits of the loop's thread in torch.distributed as waits of these windows."""
    global _watching
    _watching = (*_watching, weakref.ref(windows, lambda _: unwatch()))
    if not _replaced:
        for of, name in _methods():
            _replaced.append((of, name, vars(of)[name], _timed(getattr(of, name))))
            setattr(of, name, _replaced[-1][-1])


def unwatch(windows: Windows | None = None) -> None:
    """Stop recording for these windows. After the last windows, torch's own methods are restored."""
    global _watching
    _watching = tuple(each for each in _watching if each() not in (None, windows))
    if not _watching:
        for of, name, torchs, timed in _replaced:
            if vars(of)[name] is timed:
                setattr(of, name, torchs)
        _replaced.clear()


def _methods() -> Iterator[tuple[Any, str]]:
    yield dist.Work, "wait"
    for name in vars(dist.ProcessGroup):
        if COLLECTIVE.match(name):
            yield dist.ProcessGroup, name


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*arguments: Any, **options: Any) -> Any:
        with ExitStack() as waits:
            for each in _watching:
                if (windows := each()) is not None:
                    waits.enter_context(windows.waiting())
            return method(*arguments, **options)

    return timed
