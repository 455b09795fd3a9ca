"""How many examples a property test tries, where a hundred take too long."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> settings:
    """So many, and in `make long` as many times more as its profile says."""
    return settings(max_examples=number * settings().max_examples // 100)
