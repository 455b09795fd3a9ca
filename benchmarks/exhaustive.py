"""Clusters, and the fastest of all methods, splits and sets of nodes on each: a search that shares no code with the advice.

`benchmarks/advice.py exhaustive first|second|questions|readme|NUMBER …` runs it. Of 300 random clusters, the advice may be worked on with
the first 150; the second 150 are for the end. The questions are three clusters on which an earlier advice was wrong; readme stands for the
commands of README.md.

Each line is a cluster: how many times as long as the fastest the advised one takes, of all candidates and of those that train as DDP
does. Times are those of the simulator, for 12 global batches.

With `full` (`exhaustive full first`), trainings have 600 global batches. All candidates are timed for 45. Then those within 5 % of the
best of their method are timed for all 600, if it is not twice as slow as the fastest.

A cluster has 2 to 12 nodes of one to three kinds, single or in boxes that share an uplink; some have a slow link or a straggler. No
node has noise, so that a time is a number.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.question import asked
from hetsim.advice.simulated import experiment_of
from hetsim.advice.simulations import Simulations
from hetsim.cluster.fewer import without
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.runtime.experiment import Experiment
from hetsim.sim.backend import Simulation
from hetsim.workloads.phantom import PhantomWorkload

README = Path(__file__).parent.parent / "README.md"
SEED = 39
SYNCHRONOUS = ("ssgd", "ddp")
ALIKE = (*SYNCHRONOUS, "hetgrad", "optperf")
METHODS = (*SYNCHRONOUS, "hetgrad", "optperf", "asgd", "dbs_sgd", "fedbuff", "local_sgd", "pipe_sgd")
SPLIT = ("ssgd", "ddp", "asgd", "fedbuff", "local_sgd", "pipe_sgd")
"""Methods that take equal batches, and are tried with other splits."""
SPLITS = ("dbs", "lb_bsp", "optperf", "static")
BATCHES, EPOCHS = 4, 3
FIRST_BATCHES, FULL_BATCHES, FULL_EPOCHS, NEAR, FAR = 15, 30, 20, 1.05, 2.0
"""In full: the batches of an epoch at first and in a training, its epochs, and which times are near the best and far from it."""
SAVES = 0.95
"""Without some of several equal nodes, a candidate counts only if it takes less than this share of its time with or without all of them."""
MOST_SETS = 64
"""Sets of nodes of a cluster; one with more is drawn again."""


Asked = tuple[dict[str, Any], int, int]
"""A cluster as a config has it, the parameters of a model, and a batch size."""

LINKED = {
    "count": 7,
    "seconds_per_sample": 1e-3,
    "overhead_seconds": 1e-3,
    "uplink_bytes_per_second": 1.25e9,
    "downlink_bytes_per_second": 1.25e9,
}
QUESTIONS: dict[str, Asked] = {
    "a100_and_t4": (
        {
            "name": "a100_and_t4",
            "nodes": [
                {"count": 2, "seconds_per_sample": 2.5e-3, "overhead_seconds": 0, "rack": "a"},
                {"count": 4, "seconds_per_sample": 12.5e-3, "overhead_seconds": 0, "rack": "b"},
            ],
            "network": {
                "latency_seconds": 5e-5,
                "bytes_per_second": 1e10,
                "racks": {"a": {"uplink_bytes_per_second": 1.25e8}, "b": {"uplink_bytes_per_second": 1.25e8}},
            },
            "server": {"seconds_per_update": 1e-4},
        },
        25_557_032,
        384,
    ),
    "example_page": (
        {
            "name": "example_page",
            "nodes": [
                {"count": 2, "seconds_per_sample": 0.005625, "overhead_seconds": 0},
                {"count": 4, "seconds_per_sample": 0.0171875, "overhead_seconds": 0},
            ],
            "network": {"latency_seconds": 5e-5, "bytes_per_second": 1.25e9},
            "server": {"seconds_per_update": 1e-3},
        },
        25_000_000,
        192,
    ),
    "one_slow_link": (
        {
            "name": "one_slow_link",
            "nodes": [LINKED, {**LINKED, "count": 1, "uplink_bytes_per_second": 1e7, "downlink_bytes_per_second": 1e7}],
            "network": {"latency_seconds": 1e-4, "bytes_per_second": 1.25e9},
            "server": {"seconds_per_update": 1e-4},
        },
        250_000,
        256,
    ),
}


def drawn(number: int) -> Asked:
    """A random cluster."""
    rng = np.random.default_rng((SEED, number))
    while True:
        found = once(number, rng)
        if math.prod(row["count"] + 1 for row in found[0]["nodes"]) <= MOST_SETS:
            return found


def once(number: int, rng: np.random.Generator) -> Asked:
    """One draw."""

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")

    num, num_kinds = int(rng.integers(2, 13)), int(rng.integers(1, 4))
    fastest = between(1e-4, 1e-2)
    kinds = [fastest * between(1, 20) if kind else fastest for kind in range(num_kinds)]
    counts = [each for each in rng.multinomial(num, [1 / num_kinds] * num_kinds).tolist() if each]
    overhead, update = between(1e-4, 1e-2), between(1e-5, 1e-3)
    boxes, links = rng.random() < 0.5, rng.random() < 0.5
    rows: list[dict[str, Any]] = []
    racks: dict[str, Any] = {}
    for kind, count in zip(kinds, counts, strict=False):
        while count:
            size = int(rng.integers(1, min(count, 8) + 1)) if boxes else count
            row: dict[str, Any] = {"count": size, "seconds_per_sample": kind, "overhead_seconds": overhead, "seconds_per_update": update}
            if boxes:
                row["rack"] = f"box{len(racks)}"
                racks[row["rack"]] = {"uplink_bytes_per_second": between(1e8, 3e9)}
            elif links:
                row |= dict.fromkeys(("uplink_bytes_per_second", "downlink_bytes_per_second"), between(1e8, 3e9))
            rows.append(row)
            count -= size
    for happens, change in ((0.3, "straggler"), (0.3, "slow link")):
        where = int(rng.integers(len(rows)))
        if rng.random() < happens and sum(row["count"] for row in rows) > 1:
            one = {**rows[where], "count": 1}
            if change == "straggler":
                one["seconds_per_sample"] *= between(3, 20)
            else:
                rate = between(1e6, 1e8)
                one |= {"uplink_bytes_per_second": rate, "downlink_bytes_per_second": rate}
            rows[where : where + 1] = [*([{**rows[where], "count": rows[where]["count"] - 1}] if rows[where]["count"] > 1 else []), one]
    server: dict[str, Any] = {"seconds_per_update": between(1e-5, 1e-3)}
    if rng.random() < 0.7:
        server |= dict.fromkeys(("uplink_bytes_per_second", "downlink_bytes_per_second"), between(1e8, 3e9))
    network: dict[str, Any] = {"latency_seconds": between(1e-5, 1e-3), "bytes_per_second": 1e10 if boxes or links else between(1e8, 1e10)}
    if racks:
        network["racks"] = racks
    cluster = {"name": f"drawn{number}", "nodes": rows, "network": network, "server": server}
    return cluster, int(between(1e5, 1e8)), int(num * between(8, 256))


def candidates() -> dict[tuple[str, str | None], Experiment]:
    """Each method with its own split and with others, on some cluster."""
    words = ["workload=phantom", "backend=sim", "trace=none", "pictures=false", f"budget.epochs={EPOCHS}"]
    found = {}
    for method in METHODS:
        for split in (None, *(SPLITS if method in SPLIT else ())):
            weighting = ["weighting=per_sample"] if method in SYNCHRONOUS else []
            choice = [] if split is None else [f"allocation={split}", *weighting]
            found[method, split] = experiment_of([*words, f"method={method}", *choice], None)
    return found


def seconds(
    made: Experiment, cluster: Cluster, left_out: Sequence[int], num_parameters: int, batch_size: int, longer: float, batches: int = BATCHES
) -> float:
    """What the run takes, with the measurements before it, if it is so many times as long; infinite if there is no such run."""
    workload = PhantomWorkload(num_parameters=num_parameters, num_samples=batches * batch_size)
    try:
        its = replace(made, cluster=without(cluster, left_out), workload=workload, batch_size=batch_size)
        summary = Simulation(its).run()
    except ValueError:
        return float("inf")
    return float(longer * summary["seconds"] + summary["profile_seconds"])


def judged(
    name: str, case: Asked, every: dict[tuple[str, str | None], Experiment], processes: Simulations, full: bool
) -> tuple[list[float], str]:
    """How many times as long as the best the advised takes, of all and of those that train as DDP does; and a line about it."""
    cluster, num_parameters, batch_size = case
    words = [
        *("cluster=mixed4", *(f"++cluster.{key}={json.dumps(value)}" for key, value in cluster.items() if key != "network")),
        *(f"+cluster.network.{key}={json.dumps(value)}" for key, value in cluster["network"].items() if key == "racks"),
        *(f"cluster.network.{key}={value}" for key, value in cluster["network"].items() if key != "racks"),
        *(
            f"workload.num_parameters={num_parameters}",
            f"workload.num_samples={(FULL_BATCHES if full else BATCHES) * batch_size}",
            f"batch_size={batch_size}",
        ),
        *("workload=phantom", f"budget.epochs={FULL_EPOCHS if full else EPOCHS}", "timing", f"method={','.join(METHODS)}"),
    ]
    processes.num_runs = 0
    found = advice(asked([word.replace('"', "") for word in words], None), processes, lambda _: None)
    starts = np.cumsum([0, *(row["count"] for row in cluster["nodes"])]).tolist()
    sets = [
        [rank for row, (start, kept) in enumerate(zip(starts, counts, strict=False)) for rank in range(start + kept, starts[row + 1])]
        for counts in product(*(range(row["count"] + 1) for row in cluster["nodes"]))
        if any(counts)
    ]
    ratios, line = compared(found, every, parse_cluster(cluster), sets, num_parameters, batch_size, full=full)
    return ratios, f"{name:4} {processes.num_runs:5} runs   {line}"


def judged_words(command: str, every: dict[tuple[str, str | None], Experiment], processes: Simulations) -> str:
    """A line about the advice of a command on all sets of nodes, whether or not nodes are equal."""
    question = asked(shlex.split(command)[1:], None)
    found = advice(question, processes, lambda _: None)
    made, named = question.experiment, {method.name for method in question.methods}
    assert isinstance(made.workload, PhantomWorkload)
    assert named <= {*METHODS}
    sets = [out for num in range(made.num_workers) for out in combinations(range(made.num_workers), num)]
    some = {key: replace(its, budget=made.budget) for key, its in every.items() if key[0] in named}
    longer = made.workload.num_samples / (BATCHES * made.batch_size)
    _, line = compared(found, some, made.cluster, sets, made.workload.num_parameters, made.batch_size, longer)
    return f"{command}\n{found.sentence}\n{line}"


def compared(
    found: AdviceFindings, every: Mapping[tuple[str, str | None], Experiment], cluster: Cluster, sets: Sequence[Sequence[int]],
    num_parameters: int, batch_size: int, longer: float = 1.0, *, full: bool = False,
) -> tuple[list[float], str]:  # fmt: skip
    """The ratios of an advice to the best of all candidates on these sets of nodes, and a line about them."""
    times = {
        (key, tuple(out)): seconds(made, cluster, out, num_parameters, batch_size, longer, FIRST_BATCHES if full else BATCHES)
        for out in sets
        for key, made in every.items()
    }
    times = {key: time for key, time in times.items() if together(cluster, key[1]) or time < SAVES * least_together(cluster, times, key[0])}
    if full:
        every = {key: replace(made, budget=replace(made.budget, epochs=FULL_EPOCHS)) for key, made in every.items()}
        best = {method: min(time for key, time in times.items() if key[0][0] == method) for method in METHODS}
        far = FAR * min(best.values())
        times = {
            key: seconds(every[key[0]], cluster, key[1], num_parameters, batch_size, 1.0, FULL_BATCHES)
            for key, time in times.items()
            if time < NEAR * best[key[0][0]] and (time < far or key[0][0] in ALIKE)
        }
    alike = {key: time for key, time in times.items() if key[0][0] in ALIKE}
    ratios, advised = [], []
    for row, known in ((found.rows[0], times), (found.alike, alike)):
        assert row is not None
        its = row.candidate
        made = every[its.method.name, its.allocation]
        took = seconds(made, cluster, its.leave_out, num_parameters, batch_size, longer, FULL_BATCHES if full else BATCHES)
        best = min(known, key=lambda key: known[key])
        ratios.append(took / known[best])
        advised.append(f"{ratios[-1]:6.4f} {its.label} | {best[0][0]} {best[0][1] or ''} without {list(best[1])}")
    return ratios, f"{cluster.num_workers:3} nodes {len(times):6} candidates   {'   '.join(advised)}"


def together(cluster: Cluster, left_out: Sequence[int]) -> bool:
    """Whether no node that stays equals one that is left out."""
    stay = [node for rank, node in enumerate(cluster.nodes) if rank not in left_out]
    return not any(cluster.nodes[rank] == node for rank in left_out for node in stay)


def least_together(
    cluster: Cluster, times: Mapping[tuple[tuple[str, str | None], tuple[int, ...]], float], key: tuple[str, str | None]
) -> float:
    """What this candidate takes at least if equal nodes stay together."""
    return min(time for (its, out), time in times.items() if its == key and together(cluster, out))


def judge(which: Sequence[str]) -> None:
    """Print a line for each cluster: first, second, questions, numbers, or for each command of the README."""
    halves = {"first": range(150), "second": range(150, 300)}
    numbers = [number for each in which for number in halves.get(each, [int(each)] if each.isdigit() else [])]
    asked_ones = QUESTIONS if "questions" in which else {}
    every = candidates()
    with Simulations(1, None) as processes:
        for name, case in {**asked_ones, **{str(number): drawn(number) for number in numbers}}.items():
            print(judged(name, case, every, processes, "full" in which)[1], flush=True)
        for command in re.findall("^hetsim-advise .*", README.read_text(encoding="utf-8"), re.MULTILINE) if "readme" in which else ():
            print(judged_words(command, every, processes), flush=True)
