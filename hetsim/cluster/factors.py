"""Read files of numbers that a cluster refers to. They are read only as numbers, and no error quotes their content.

The config may come from somebody else, and the path may name any file of the user.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

HEAD = "factor"
MAX_BYTES = 4_000_000
MAX_FACTORS = 100_000
LEAST, MOST = 1e-9, 1e9
"""The bounds of a factor, so that a sum of factors stays within a float."""


def regular_file(value: str) -> Path:
    """The path. Raises ValueError for a pipe, a device, a folder, or a virtual file of the kernel."""
    path = Path(value)
    if path.exists() and (not path.is_file() or Path("/proc") in path.resolve().parents):
        raise ValueError("it is not a regular file")
    return path


def measured_factors(key: str, value: Any) -> tuple[float, ...]:
    """The numbers in the single column `factor` of a CSV file, divided by their mean. Raises ValueError if the file is invalid."""
    if not isinstance(value, str):
        raise ValueError(f"{key} must be the name of a CSV file with the column {HEAD}, not {type(value).__name__}")
    try:
        path = regular_file(value)
        status = path.stat()
        return _read(path.resolve(), status.st_mtime_ns, status.st_size)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"{key}={value} cannot be read ({reason}): give a CSV file with the column {HEAD}") from None


@lru_cache(maxsize=64)
def _read(path: Path, *_when: int) -> tuple[float, ...]:
    """The numbers of a file. The result is cached by the file's time of change and size, because many rows of nodes may use one file."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has over {MAX_BYTES} bytes")
    head, *lines = content.decode("utf-8-sig").splitlines() or [""]
    if head.strip() != HEAD:
        raise ValueError(f"its first line is not {HEAD}")
    factors = [_factor(place, line) for place, line in enumerate(lines, start=2) if line.strip()]
    if not 0 < len(factors) <= MAX_FACTORS:
        raise ValueError(f"it has {len(factors)} numbers, and 1 to {MAX_FACTORS} can be read")
    mean = fmean(factors)
    return tuple(factor / mean for factor in factors)


def _factor(place: int, line: str) -> float:
    try:
        factor = float(line)
    except ValueError:
        factor = math.nan
    if not LEAST <= factor <= MOST:
        raise ValueError(f"its line {place} is not one number between {LEAST:g} and {MOST:g}")
    return factor
