"""Timing-only runs of methods, for a process whose imports are checked."""

from __future__ import annotations

from worlds import experiment

from hetsim.sim.world import EventWorld


def run_phantoms(methods: list[str]) -> None:
    """Run each method for two epochs of a small phantom."""
    for name in methods:
        made = experiment(f"method={name}", "workload=phantom", workload={"num_samples": 7000}, budget={"epochs": 2})
        simulation = EventWorld(made, *made.load())
        simulation.run()
        assert simulation.history.last.num_samples > 0
