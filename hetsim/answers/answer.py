"""The shape of an answer. Each command that answers a question makes one, and so does its function in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Quoted:
    """Text from a config or a file, which may come from somebody else, after words of hetsim."""

    text: str
    words: str = ""

    def __str__(self) -> str:
        return self.words + self.text


Cell = str | Quoted
"""A cell of a table."""


@dataclass(frozen=True)
class Sheet:
    """A table, with sentences above and below it."""

    title: Cell
    heads: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    widths: Sequence[int] = ()
    """On a terminal, the minimum widths of the columns; the columns after the first are then right-aligned. Empty: all are left-aligned."""
    max_printed: int | None = None
    """The maximum number of rows on a terminal. None: all. 0: a terminal does not show the table."""


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn on demand."""

    name: str
    """The name of its file, without an ending."""
    caption: str
    draw: Callable[[], Any]
    """Returns a matplotlib figure; None without data to draw. Raises ValueError if the data cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question. All texts are plain, and are escaped when they are written."""

    question: str
    answer: Sequence[str]
    """Sentences; on a terminal, each is a line."""
    pictures: Sequence[Picture] = ()
    sheets: Sequence[Sheet] = ()
    remarks: Sequence[str] = ()
    command: str = ""
    texts: Sequence[tuple[str, str]] = ()
    """Longer texts with their titles. HTML shows them folded, a terminal does not show them."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The results as JSON values: times in seconds, shares from 0 to 1."""
