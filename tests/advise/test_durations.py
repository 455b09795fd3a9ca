"""Times for readers: one unit for a column, and two or three digits in a sentence."""

from __future__ import annotations

import random
import re

import pytest

from hetsim.results.tables.estimates import estimate
from hetsim.results.writing.describe import duration, unit_of_time

SIZES = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 ms"), (2.78e-17, "0 ms"), (9.51e-5, "0.0951 ms"), (0.0951, "95.1 ms"), (0.11, "0.11 s"), (12.3456, "12.3 s")),
        *((59.97, "60 s"), (120.0, "2 min"), (250.2, "4 min 10 s"), (3599.9, "60 min"), (9720.0, "2.7 h"), (43_020_237.0, "498 d")),
        *((268_000.0, "3.1 d"), (-2.691, "-2.69 s")),
    ],
)
def test_times_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_written_time_is_the_time() -> None:
    """Within half of the last digit, of any size; never in powers of ten."""
    chance = random.Random(66)
    for _ in range(2000):
        seconds = 10 ** chance.uniform(-6, 9)
        words = re.fullmatch(r"(?:(\d+) min(?: (\d+) s)?|([\d.]+) (ms|s|h|d))", duration(seconds))
        assert words is not None, duration(seconds)
        read = 60 * int(words[1]) + int(words[2] or 0) if words[1] else float(words[3]) * SIZES[words[4]]
        assert read == pytest.approx(seconds, rel=0.05)


def test_a_column_has_one_unit() -> None:
    """That of its smallest time, which is then at least a tenth."""
    for seconds in (1e-7, 0.02, 5.0, 119.0, 130.0, 3599.0, 4000.0, 170_000.0, 1e9):
        name, size = unit_of_time(seconds)
        assert SIZES[name] == size
        assert seconds / size >= 0.1 or name == "ms"
    assert str(estimate([7200.0], scale="linear").in_unit(3600.0)) == "2"
