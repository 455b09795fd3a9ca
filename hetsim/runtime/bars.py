"""Progress bars: on a terminal, and below a notebook's cell."""

from __future__ import annotations

import sys
from typing import Any

DELAY = 0.5
"""Seconds that a notebook's cell runs before it shows a bar, so that a thousand short runs do not show a thousand bars."""


def bar(**options: Any) -> Any:
    """A bar of tqdm, which disappears when it is closed. None if standard error is neither a terminal nor the output of a notebook.

    Args:
        options: arguments of tqdm.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        return tqdm(leave=False, **options)
    if _in_notebook():
        from tqdm.auto import tqdm

        return tqdm(leave=False, delay=DELAY, **options)
    return None


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, as tqdm.auto asks."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
