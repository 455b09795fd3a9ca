"""What torchrun tells the processes that it starts. Nothing here imports torch."""

from __future__ import annotations

import os


def under_torchrun() -> bool:
    """Whether torchrun started the processes, and set each one's rank in its environment."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
