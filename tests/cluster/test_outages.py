"""Absences of nodes, by schedule and by law."""

from __future__ import annotations

from itertools import islice, pairwise

from cluster_runs import built
from worlds import node

from hetsim.cluster.outages import outages


def test_crashes_by_law_begin_behind_everything_that_is_scheduled():
    """Absences are in order and apart, also where a law would have had a node crash between two that are scheduled."""
    law = {"distribution": "expon", "scale": 1.0}
    rows = [
        {"nodes": [0], "join": 1, "crash": 90, "repair": 95},
        {"nodes": [0], "crash": 50, "repair": 60, "seconds_to_crash": law, "seconds_to_repair": law},
    ]
    away = list(islice(outages(built(node(1.0), faults={"schedule": rows}), 0, seed=0), 50))

    assert away[:3] == [(0.0, 1.0), (50.0, 60.0), (90.0, 95.0)]
    assert all(start < until < following for (start, until), (following, _) in pairwise(away))
