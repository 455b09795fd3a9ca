"""Equal nodes take part together or not at all, unless leaving some of them out saves much and a bound says why."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from here import Here

from hetsim.advice.advice import advice
from hetsim.advice.candidates import equal_nodes
from hetsim.advice.question import asked
from hetsim.advice.timing import WORTH_SOME, Timing
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.typed import as_typed

DRAWN = [1, 2, *(pytest.param(number, marks=pytest.mark.long) for number in (0, *range(3, 60)))]
BOX = {"count": 2, "seconds_per_sample": 1e-3, "overhead_seconds": 0}


def classes_of(nodes: list[dict[str, Any]], racks: dict[str, Any], **more: Any) -> list[list[int]]:
    """The classes of equal nodes of a cluster."""
    network = {"latency_seconds": 1e-4, "bytes_per_second": 1e9, "racks": racks, **more.pop("network", {})}
    return equal_nodes(parse_cluster({"name": "made", "nodes": nodes, "network": network, "server": {"seconds_per_update": 0}, **more}))


def test_nodes_are_equal_by_description_and_place() -> None:
    """Whatever their numbers and the names of their racks, but not if their rack has another link, other nodes or the server."""
    rate = {"uplink_bytes_per_second": 1e6}
    boxes = [{**BOX, "rack": name} for name in "abc"]
    equal = dict.fromkeys("abc", rate)

    assert classes_of(boxes, equal) == [[0, 1, 2, 3, 4, 5]]
    assert classes_of(boxes, {**equal, "b": {"uplink_bytes_per_second": 2e6}}) == [[0, 1, 4, 5], [2, 3]]
    assert classes_of([*boxes, {**BOX, "count": 1, "rack": "c"}], equal) == [[0, 1, 2, 3], [4, 5, 6]]
    assert classes_of(boxes, equal, server={"seconds_per_update": 0, "rack": "a"}) == [[0, 1], [2, 3, 4, 5]]
    assert classes_of(boxes, equal, network={"between": [{"racks": ["a", "b"], "bytes_per_second": 1e5}]}) == [[0, 1], [2, 3], [4, 5]]
    assert classes_of([BOX, {**BOX, "seconds_per_sample": 2e-3}, BOX], {}) == [[0, 1, 4, 5], [2, 3]]
    assert classes_of([BOX], {}, faults={"schedule": [{"nodes": [1], "leave": 5}]}) == [[0], [1]]


def test_racks_in_racks_are_one_place_if_these_are_equal() -> None:
    rate = {"uplink_bytes_per_second": 1e6}
    nodes = [{**BOX, "rack": f"{outer}{inner}"} for outer, inner in product("ab", "12")]
    racks = {"a": rate, "b": rate, **{f"{outer}{inner}": {**rate, "within": outer} for outer, inner in product("ab", "12")}}

    assert classes_of(nodes, racks) == [[*range(8)]]
    assert classes_of(nodes, {**racks, "b": {"uplink_bytes_per_second": 2e6}}) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def drawn(number: int) -> list[str]:
    """The words of a question about one to three kinds of nodes, single or in equal boxes, on a slow to a fast network."""
    rng = np.random.default_rng((66, number))

    def between(low: float, high: float) -> float:
        return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")

    rows: list[dict[str, Any]] = []
    racks: dict[str, Any] = {}
    for _ in range(int(rng.integers(1, 3))):
        row = {"seconds_per_sample": between(1e-4, 1e-2), "overhead_seconds": between(1e-5, 1e-2), "seconds_per_update": 1e-4}
        boxes, size, card = int(rng.integers(1, 4)), int(rng.integers(1, 4)), between(1e6, 1e10)
        for _ in range(boxes if size > 1 else 0):
            name = f"box{len(racks)}"
            racks[name] = {"uplink_bytes_per_second": card}
            rows.append({**row, "count": size, "rack": name})
        if size == 1:
            rows.append({**row, "count": boxes})
    network = {"latency_seconds": between(1e-6, 1e-2), "bytes_per_second": between(1e6, 1e11), **({"racks": racks} if racks else {})}
    return [
        *("cluster=mixed4", f"cluster.nodes={as_typed(rows)}", f"++cluster.network={as_typed(network)}"),
        *("workload=phantom", f"workload.num_parameters={int(between(1e4, 1e8))}", "workload.num_samples=7680"),
        *(f"batch_size={int(rng.integers(1, 16)) * sum(row['count'] for row in rows)}", "budget.epochs=2", "timing"),
        f"method={'ssgd,asgd' if number % 4 == 3 else 'ddp,local_sgd'}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", DRAWN)
def test_equal_nodes_take_part_together_unless_a_bound_explains_a_clear_gain(number: int) -> None:
    question, here = asked(drawn(number), None), Here()
    findings = advice(question, here, lambda _: None)
    classes = equal_nodes(question.experiment.cluster)
    sets = [
        tuple(sorted(rank for ranks, out in zip(classes, outs, strict=True) if out for rank in ranks))
        for outs in product((False, True), repeat=len(classes))
        if not all(outs)
    ]

    for row in {findings.recommended, findings.best, findings.alike, *findings.rows} - {None}:
        assert row is not None
        if row.candidate.leave_out not in sets:
            timing = Timing(question, here, here.sizes([*question.words, "method=ddp", "allocation=even"]))
            whole = timing.times([replace(row.candidate, leave_out=out) for out in sets])
            assert row.seconds.mean is not None
            assert row.seconds.mean < WORTH_SOME * min(times.mean for times in whole)
            if row is findings.recommended:
                assert "Some equal nodes are left out, because a step with all of them" in findings.sentence
