"""The outcomes of a sweep's runs, and the lines that report them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of a sweep's run."""

    run: str
    typed: tuple[str, ...]
    already: bool = False
    failure: str | None = None

    def to_json(self) -> str:
        """The outcome as text, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """The inverse of `to_json`."""
        entries = json.loads(text)
        return cls(**{**entries, "typed": tuple(entries["typed"])})


def closing_line(outcomes: Sequence[Outcome], folder: str) -> str:
    """A line with the number of runs in the sweep's folder now, and the number of earlier ones."""
    there = sum(outcome.failure is None for outcome in outcomes)
    already = sum(outcome.already for outcome in outcomes)
    of = "" if there == len(outcomes) else f" of {len(outcomes)}"
    return f"{there}{of} run{'' if len(outcomes) == 1 else 's'}{f' ({already} were there already)' if already else ''} in {folder}"


def failure_lines(outcomes: Sequence[Outcome]) -> str:
    """A line with the error of each failed run; empty without failures."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    lines = [f"hetsim: {len(failed)} of {len(outcomes)} runs failed:", *(f"  {outcome.run}: {outcome.failure}" for outcome in failed)]
    return "\n".join(lines) if failed else ""
