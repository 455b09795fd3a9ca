"""The fewest words with which a finding remains."""

from __future__ import annotations

from dataclasses import replace

from drawn_config import Config, drawn_config
from fuzzing import Server
from laws import Finding


def reduced(server: Server, seed: int, finding: Finding) -> Config:
    """The config of a finding without the words that it does not need: each is dropped once, and stays away if the finding remains."""
    config = drawn_config(seed, finding.number)
    for word in reversed(config.words):
        words = list(config.words)
        words.remove(word)
        without = replace(config, words=tuple(words))
        if any((other.kind, other.cause) == (finding.kind, finding.cause) for other in server.run(without).found):
            config = without
    needed = {name: content for name, content in config.files.items() if any(name.split("/")[0] in word for word in config.words)}
    return replace(config, files=needed)
