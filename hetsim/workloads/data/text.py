"""Shakespeare's 154 sonnets (1609), in the public domain, as numbers: one for each character."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint8]
TRAINING_SHARE = 0.9
"""Of the text; its end is for testing."""


def sonnets() -> str:
    """The text: lines of verse, and an empty line between two sonnets."""
    return Path(__file__).with_name("sonnets.txt").read_text(encoding="ascii")


def tokens_of(text: str) -> tuple[Tokens, str]:
    """Each character's number in the vocabulary, and the vocabulary: all characters of the text, in order."""
    codes, tokens = np.unique(np.frombuffer(text.encode("ascii"), np.uint8), return_inverse=True)
    return tokens.reshape(-1).astype(np.uint8), bytes(codes).decode("ascii")


def sequences(tokens: Tokens, context_length: int) -> Tokens:
    """Consecutive sequences of `context_length` characters and the one that follows: as many rows as there are without overlap.

    ValueError with one sentence if there is none.
    """
    count = (len(tokens) - 1) // context_length
    if count < 1:
        raise ValueError(f"workload.context_length={context_length} is too long for {len(tokens)} characters: lower it")
    starts = context_length * np.arange(count)
    found: Tokens = tokens[starts[:, None] + np.arange(context_length + 1)]
    return found
