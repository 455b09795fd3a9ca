"""Shakespeare's 154 sonnets (1609), in the public domain, as one number for each character."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint8]
TRAINING_SHARE = 0.9
"""The share of the text for training. The end of the text is for testing."""


def sonnets() -> str:
    """The text: lines of verse, with an empty line between sonnets."""
    return Path(__file__).with_name("sonnets.txt").read_text(encoding="ascii")


def tokens_of(text: str) -> tuple[Tokens, str]:
    """Each character's index in the vocabulary, and the vocabulary, which contains all characters of the text in order."""
    codes, tokens = np.unique(np.frombuffer(text.encode("ascii"), np.uint8), return_inverse=True)
    return tokens.reshape(-1).astype(np.uint8), bytes(codes).decode("ascii")


def sequences(tokens: Tokens, context_length: int) -> Tokens:
    """Consecutive sequences of `context_length` characters and the next character. They do not overlap, except in this character.

    Raises ValueError if the text is too short for one.
    """
    count = (len(tokens) - 1) // context_length
    if count < 1:
        raise ValueError(f"workload.context_length={context_length} is too long for {len(tokens)} characters: lower it")
    starts = context_length * np.arange(count)
    windows: Tokens = tokens[starts[:, None] + np.arange(context_length + 1)]
    return windows
