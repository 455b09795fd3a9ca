"""Whether the recommendation is the best at both ends of the error of each estimated time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hetsim.advice.candidates import Candidate
from hetsim.advice.decision import label
from hetsim.advice.timing import Timing, ranking
from hetsim.cluster.model import Cluster
from hetsim.config.resolved import Named
from hetsim.results.writing.describe import listed_in_words

BETTER = 0.99
"""Another choice is better if it takes at most this fraction of the recommendation's time."""
TIMED_AT_ENDS = 12
"""The number of choices that are timed again at each end: the fastest on each set of nodes."""
MOST_PHRASES = 2
"""The number of GPUs that the first sentence names."""


@dataclass(frozen=True)
class Ends:
    """What is said about both ends."""

    unless: str = ""
    """At which ends another choice is better, such as `unless the L4 is slower than estimated`; empty if the recommendation stays best."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unsure:
    """The GPUs of one chip whose times have an error."""

    phrase: str
    """The GPUs in words."""
    ranks: tuple[int, ...]
    error: float


def unsure_gpus(named: Named) -> list[Unsure]:
    """The GPUs whose times have an error, by chip."""
    by_chip: dict[str, list[str]] = {}
    for name, times in named.times.items():
        if times.error:
            by_chip.setdefault(times.gpu.die, []).append(name)
    return [
        Unsure(
            f"the {listed_in_words([*dict.fromkeys(map(named.title, names))])}",
            tuple(rank for name in names for rank in named.ranks[name]),
            max(named.times[name].error for name in names),
        )
        for names in by_chip.values()
    ]


def at_ends(timing: Timing, even: Candidate, recommended: Candidate, timed: Sequence[Candidate], unsure: Sequence[Unsure]) -> Ends:
    """Time the choices again with the GPUs of each chip slower and faster by their error, all others unchanged.

    Args:
        timing: what times candidates.
        even: plain DDP.
        recommended: what is recommended.
        timed: the candidates, the fastest first.
        unsure: the estimated GPUs.
    """
    cluster, names = timing.question.experiment.cluster, timing.question.gpus
    alike = [candidate for candidate in timed if candidate.synchronous or not recommended.synchronous]
    pool = dict.fromkeys([even, recommended, *_choices(recommended, alike, unsure, cluster)])
    gains, remarks = list[float](), list[str]()
    unless: dict[Unsure, list[str]] = {}
    for gpus in unsure:
        for factor, way in ((1 + gpus.error, "slower"), (1 / (1 + gpus.error), "faster")):
            retimed = ranking(timing.times(pool, slower=[(rank, factor) for rank in gpus.ranks]))
            seconds = {times.candidate: times.mean for times in retimed}
            if recommended not in seconds or even not in seconds:
                continue
            gains.append(seconds[even] / seconds[recommended])
            best = retimed[0].candidate
            if seconds[best] < BETTER * seconds[recommended]:
                unless.setdefault(gpus, []).append(way)
                take = f"{'takes' if len(gpus.ranks) == 1 else 'take'} {factor:.3g} times as long"
                gain = f"{seconds[even] / seconds[best]:.3g} times as fast as plain DDP"
                remarks.append(f"if {gpus.phrase} {take}, {label(best, cluster, names)} is better: {gain}")
    if not gains or timing.processes.progress.reason is not None:
        return Ends()
    of = listed_in_words([gpus.phrase for gpus in unsure])
    change = "changes" if remarks else "stays best"
    first = f"the recommendation {change} across the error range of {of} (gain {min(gains):.3g} to {max(gains):.3g} times)"
    return Ends(_unless(unless), (first, *remarks))


def _unless(ways: Mapping[Unsure, Sequence[str]]) -> str:
    """The GPUs that would change the recommendation, and whether they would be slower or faster."""
    phrases = [f"{gpus.phrase} {'is' if len(gpus.ranks) == 1 else 'are'} {' or '.join(how)} than estimated" for gpus, how in ways.items()]
    if len(phrases) > MOST_PHRASES:
        return "unless some of these GPUs are slower or faster than estimated"
    return f"unless {' or '.join(phrases)}" if phrases else ""


def _choices(recommended: Candidate, timed: Sequence[Candidate], unsure: Sequence[Unsure], cluster: Cluster) -> Iterator[Candidate]:
    """The fastest candidate on each set of nodes, and the recommended one with and without all GPUs of each chip."""
    fastest: dict[tuple[int, ...], Candidate] = {}
    for candidate in timed:
        fastest.setdefault(candidate.leave_out, candidate)
    yield from [*fastest.values()][:TIMED_AT_ENDS]
    out = {*recommended.leave_out}
    for gpus in unsure:
        for other in (out | {*gpus.ranks}, out - {*gpus.ranks}):
            if len(other) < cluster.num_workers:
                yield replace(recommended, leave_out=tuple(sorted(other)))
