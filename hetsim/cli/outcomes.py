"""How the runs of a sweep ended, and the lines that report it after the sweep."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.results.describe import formatted


@dataclass(frozen=True)
class Outcome:
    """How one run of a sweep ended. Its float is the value of the objective, which Hydra's sweepers read."""

    run: str
    typed: tuple[str, ...]
    objective: float
    already: bool = False
    failure: str | None = None

    def __float__(self) -> float:
        return self.objective

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """The outcome that `to_json` wrote."""
        entries = json.loads(text)
        return cls(**{**entries, "typed": tuple(entries["typed"])})


def closing_line(outcomes: Sequence[Outcome], folder: str) -> str:
    """How many runs are in the sweep's folder now, and how many were there before."""
    there = sum(outcome.failure is None for outcome in outcomes)
    already = sum(outcome.already for outcome in outcomes)
    of = "" if there == len(outcomes) else f" of {len(outcomes)}"
    return f"{there}{of} run{'' if len(outcomes) == 1 else 's'}{f' ({already} were there already)' if already else ''} in {folder}"


def failure_lines(outcomes: Sequence[Outcome]) -> str:
    """Each run that failed, with its sentence; empty if none did."""
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    lines = [f"hetsim: {len(failed)} of {len(outcomes)} runs failed:", *(f"  {outcome.run}: {outcome.failure}" for outcome in failed)]
    return "\n".join(lines) if failed else ""


def best_line(outcomes: Sequence[Outcome], key: str, *, worst: float) -> str:
    """The best run of a search: its value, what was varied to get it, and its folder."""
    found = [outcome for outcome in outcomes if outcome.objective != worst]
    if not found:
        return f"no run has a number for objective={key}"
    chosen = (min if worst > 0 else max)(found, key=float)
    varied = [override for override in chosen.typed if any(override not in outcome.typed for outcome in outcomes)]
    return f"best {key} of these runs: {formatted(chosen.objective)} with {' '.join(varied) or 'what was given'} in {chosen.run}"
