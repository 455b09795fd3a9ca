"""Calls of torch.distributed in which a rank waits for others are no work of that rank: they are timed while a Team measures."""

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
"""How the methods of a process group begin that communicate. All functions of torch.distributed call them, and `wait` of their work."""
_watching: tuple[weakref.ref[Windows], ...] = ()
_replaced: list[tuple[Any, str, Any, Callable[..., Any]]] = []
"""Classes of torch, the names of their methods, what torch has there, and what takes its place."""


def watch(windows: Windows) -> None:
    """From now on, what the loop's thread waits in torch.distributed is a wait of these windows."""
    global _watching
    _watching = (*_watching, weakref.ref(windows, lambda _: unwatch()))
    if not _replaced:
        for of, name in _methods():
            _replaced.append((of, name, vars(of)[name], _timed(getattr(of, name))))
            setattr(of, name, _replaced[-1][-1])


def unwatch(windows: Windows | None = None) -> None:
    """No longer; with the last windows, torch gets its own methods back."""
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
