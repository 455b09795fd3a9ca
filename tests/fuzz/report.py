"""What a run of the fuzzer found, in figures."""

from __future__ import annotations

import re
import shlex
import statistics
from collections import Counter

from drawn_config import Config
from laws import Finding, Ran

TOP = 30
"""Sentences that are listed."""


def command_line(config: Config) -> str:
    """What one would type, with the names of the files that the fuzzer wrote."""
    typed = shlex.join(["hetsim", *config.words])
    return typed.encode("ascii", "backslashreplace").decode() + (f"   # with {', '.join(config.files)}" if config.files else "")


class Figures:
    """Counts over runs; `found` holds each finding."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.found: list[Finding] = []
        self._words: dict[int, int] = {}
        self._seconds: list[float] = []
        self._slowest = 0
        self._sentences: Counter[str] = Counter()
        self._status: Counter[int | None] = Counter()

    def add(self, ran: Ran) -> None:
        """Count a run."""
        self.found += ran.found
        self._words[ran.config.number] = len(ran.config.words)
        if ran.seconds > max(self._seconds, default=0.0):
            self._slowest = ran.config.number
        self._seconds.append(ran.seconds)
        self._status[ran.status] += 1
        self._sentences.update(_first_words(sentence) for sentence in ran.sentences[:1])

    def causes(self) -> list[Finding]:
        """One finding for each kind and cause: the one with the fewest words."""
        fewest: dict[tuple[str, str], Finding] = {}
        for finding in sorted(self.found, key=lambda finding: self._words[finding.number]):
            fewest.setdefault((finding.kind, finding.cause), finding)
        return list(fewest.values())

    def text(self) -> str:
        """All figures, as lines."""
        ran, refused = self._status[0], self._status[1]
        others = len(self._seconds) - ran - refused
        lines = [
            f"{len(self._seconds)} configs of seed {self.seed}: {ran} ran, {refused} refused, {others} otherwise",
            f"{sum(self._seconds):.0f} s in all; of a config {statistics.median(self._seconds):.2f} s in the median, "
            f"{max(self._seconds):.1f} s at most (number {self._slowest})",
            "refused, by the first words of the sentence:",
            *(f"  {count:5} {words}" for words, count in self._sentences.most_common(TOP)),
            f"{len(self.found)} findings:",
        ]
        for finding in self.causes():
            numbers = [other.number for other in self.found if (other.kind, other.cause) == (finding.kind, finding.cause)]
            some = " ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
            lines.append(f"  {finding.kind}: {finding.cause} ({len(numbers)}: {some})")
            lines.append(f"    python tests/fuzz/fuzz.py --seed {self.seed} --only {finding.number}")
        return "\n".join(lines)


def _first_words(sentence: str) -> str:
    """The beginning of a sentence without its numbers and values, so that like sentences are counted together."""
    plain = re.sub(r"=\S+", "=…", re.sub(r"\d+", "N", sentence))
    return " ".join(plain.split()[:6])[:80]
