"""How good the advice of hetsim-advise is, against searches that try everything.

    python benchmarks/advice.py exhaustive first    # by time, on 150 random clusters: every method, split and set of nodes
    python benchmarks/advice.py exhaustive second   # on 150 more, which are looked at last
    python benchmarks/advice.py exhaustive questions    # on three clusters on which an earlier advice was wrong
    python benchmarks/advice.py exhaustive readme   # the README's own commands
    python benchmarks/advice.py training            # every method as published and with its fastest split, at five rates

`exhaustive.py` has the random clusters and the search, which shares no code with the advice's own search. The last three clusters of
`training` were not used while the command was built. `training` prints one line per cluster:

- the advised candidate, and the best of all
- the ratio of their seconds, over ten seeds that neither has seen; pairs in which one of them misses the goal are left out
- the p-value of a one-sided signed-rank test that the advised one is slower; here a missed goal counts as slowest
"""

from __future__ import annotations

import math
import sys

import exhaustive
from scipy.stats import wilcoxon

from hetsim.advice.advice import advice, worth_training
from hetsim.advice.question import asked
from hetsim.advice.simulations import Simulations
from hetsim.advice.timing import Timing
from hetsim.advice.training import FACTORS, CandidateTraining
from hetsim.results.tables.estimates import paired_ratio

WIRE = "cluster.network={latency_seconds: 1e-3, bytes_per_second: 125e6}"
NODE = "overhead_seconds: 1e-3, seconds_per_update: 5e-4"
CLUSTERS: dict[str, tuple[str, ...]] = {
    "mixed8": ("cluster=mixed8",),
    "mixed4": ("cluster=mixed4",),
    "straggler": ("cluster=straggler",),
    "shared": ("cluster=shared",),
    "one of twenty": (
        "cluster=mixed4",
        f"cluster.nodes=[{{count: 5, seconds_per_sample: 2e-4, {NODE}}}, {{count: 1, seconds_per_sample: 4e-3, {NODE}}}]",
    ),
    "gpu_cpu": ("cluster=gpu_cpu",),
    "slow links": (
        "cluster=mixed4",
        f"cluster.nodes=[{{count: 3, seconds_per_sample: 3e-4, {NODE}}}, {{count: 3, seconds_per_sample: 5e-4, {NODE}}}]",
        "cluster.network={latency_seconds: 0.02, bytes_per_second: 1e6}",
    ),
    "two_gpus": ("cluster=two_gpus",),
}
KEPT = 40
"""Of all candidates at all rates, those that are trained for the whole time on more seeds than one."""
FIRST_UNSEEN = 5000
UNSEEN = 10
MISSED = 1e3
"""In the place of the log ratio of a pair of which one misses the goal."""


def by_training(name: str, words: tuple[str, ...], processes: Simulations) -> str:
    question = asked(list(words), None)
    found = advice(question, processes, lambda _: None)
    assert found.goal is not None
    timing = Timing(question, processes, processes.sizes([*question.words, "method=ddp", "allocation=even", "backend=sim"]))
    training = CandidateTraining(question, processes, lambda _: None, goal=found.goal)
    training.baseline()
    every = [each.at(factor) for each in worth_training(timing.search()) for factor in FACTORS]
    first = sorted(training.train_for_share(every, 1.0, (0,)), key=lambda one: one.key(found.goal))
    tried = sorted(training.train_for_share([one.candidate for one in first[:KEPT]], 1.0, (0, 1, 2)), key=lambda one: one.key(found.goal))
    seeds = tuple(FIRST_UNSEEN + seed for seed in range(UNSEEN))
    finalists = [one.candidate for one in tried[:8]]
    again = training.train_for_share(list(dict.fromkeys([found.rows[0].candidate, *finalists])), 2.0, seeds)
    advised, best = again[0], min(again, key=lambda one: one.key(found.goal))

    pairs = list(zip(advised.times(found.goal), best.times(found.goal), strict=True))
    both = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    ours, theirs = ({at: [pair[side]] for at, pair in enumerate(both)} for side in (0, 1))
    ratio = f"{paired_ratio(ours, theirs)} over {len(both)} pairs, slower with p = {slower(pairs):.2g}"
    labels = [f"{one.candidate.label} × {one.candidate.factor:.2g}" for one in (advised, best)]
    return f"{name:14} {found.goal!s:22} {labels[0]:45} {labels[1]:45} {ratio}   {found.num_runs} runs, all {len(every)}"


def slower(pairs: list[tuple[float | None, float | None]]) -> float:
    """The one-sided probability of Wilcoxon's signed ranks of log ratios, where who misses the goal is slower than any other."""
    logs = [
        MISSED * (ours is None) - MISSED * (theirs is None) if ours is None or theirs is None else math.log(ours / theirs)
        for ours, theirs in pairs
    ]
    return float(wilcoxon(logs, alternative="greater").pvalue) if any(logs) else 1.0


def main() -> None:
    kind, *names = sys.argv[1:] or ["exhaustive"]
    if kind == "exhaustive":
        exhaustive.judge(names or ["first"])
        return
    with Simulations(2, None) as processes:
        for name, words in CLUSTERS.items():
            if not names or name in names:
                processes.num_runs = 0
                print(by_training(name, words, processes), flush=True)


if __name__ == "__main__":
    main()
