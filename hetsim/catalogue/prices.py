"""Prices of named GPUs for an hour, in any currency: typed, such as `3090: 0.22, a100: 1.1`, or in a file with a GPU in each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hetsim import checks
from hetsim.catalogue.tables import Gpu

EXAMPLE = "prices='3090: 0.22, a100-40gb: 1.10' or the name of a file with a GPU and its price in each line"
MAX_BYTES = 100_000
ENTRY = re.compile(r"\s*(.+?)\s*[:=,;\t]\s*([0-9.eE+-]+)\s*")


def prices_of(text: str, look_up: Callable[[str], Gpu]) -> Mapping[str, float]:
    """The prices by the catalogue's names. Raises ValueError with the entry that cannot be read; no error quotes a file."""
    stripped = text.strip().strip("{}")
    in_file = ENTRY.match(stripped) is None
    entries = _lines(text) if in_file else stripped.split(",")
    prices: dict[str, float] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"line {number} of the file of prices" if in_file else f"prices has {checks.shown(entry.strip())}, which"
        match = ENTRY.fullmatch(entry)
        try:
            price = float(match[2]) if match is not None else -1.0
        except ValueError:
            price = -1.0
        if match is None or not 0 <= price < 1e9:
            raise ValueError(f"{where} is not a GPU and its price for an hour: write {EXAMPLE}")
        try:
            name = look_up(match[1].strip("'\"")).name
        except ValueError as error:
            raise ValueError(f"{where} names a GPU that the catalogue does not have" if in_file else f"prices: {error}") from None
        if name in prices:
            raise ValueError(f"{where} gives {name} a second price: leave one of them out")
        prices[name] = price
    return prices


def _lines(name: str) -> list[str]:
    """The lines of a file without comments, blank lines and a head."""
    try:
        file = Path(name)
        if file.exists() and (not file.is_file() or Path("/proc") in file.resolve().parents):
            raise ValueError("it is not a regular file")
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError("it has over 100 kB")
        lines = [line.partition("#")[0].strip() for line in content.decode("utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"prices={checks.shown(name)} is neither prices nor a file that can be read ({reason}): write {EXAMPLE}") from None
    return [line for line in lines if line and not re.fullmatch(r"gpu\W+price\w*", line, re.IGNORECASE)]
