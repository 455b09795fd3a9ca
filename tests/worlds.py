"""Tiny worlds for tests: an experiment from the real config, and its simulation with everything that went on in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from hetsim import run
from hetsim.coordination.plan import State
from hetsim.effects import Batch, Contribution
from hetsim.experiment import Experiment
from hetsim.sim.simulation import Simulation
from hetsim.trace import COLUMNS, KINDS, Trace

NO_NETWORK = {"latency_seconds": 0.0, "bytes_per_second": 1e300}
"""Bytes that take so little time that adding it changes no float."""


def node(seconds_per_sample: float, overhead_seconds: float = 0.0, *, count: int = 1, **more: Any) -> dict[str, Any]:
    """One entry of `cluster.nodes`."""
    return {"count": count, "seconds_per_sample": seconds_per_sample, "overhead_seconds": overhead_seconds, **more}


def cluster(*nodes: dict[str, Any], network: dict[str, float] = NO_NETWORK, seconds_per_update: float = 0.0) -> dict[str, Any]:
    """A whole `cluster`; without a network unless one is given."""
    return {"name": "by hand", "nodes": list(nodes), "network": network, "server": {"seconds_per_update": seconds_per_update}}


@cache
def composed(*choices: str) -> DictConfig:
    """What Hydra makes of these choices of groups."""
    with initialize_config_dir(version_base="1.3", config_dir=str(run.configs())):
        return compose("config", overrides=list(choices))


def experiment(*choices: str, cluster: dict[str, Any] | None = None, budget: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """What `hetsim` builds from these choices and keys; `cluster` and `budget` replace what the config has."""
    changes: dict[str, Any] = {"pictures": False, "trace": "none", **keys}
    if budget is not None:
        changes["budget"] = {"epochs": None, "updates": None, "seconds": None, **budget}
    config = OmegaConf.merge(composed(*choices), changes)
    if cluster is not None:
        OmegaConf.update(config, "cluster", cluster, merge=False)
    return run.experiment(config)[0]


class Row(NamedTuple):
    """One row of a trace, its kind by name."""

    start: float
    end: float
    rank: int
    kind: str
    version: int
    samples: int
    staleness: int
    nbytes: int


@dataclass
class Run:
    """A finished simulation, and what went on in it."""

    simulation: Simulation = field(init=False)
    states: list[State] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    applied: list[tuple[Contribution, ...]] = field(default_factory=list)
    computed: list[Batch] = field(default_factory=list)

    @property
    def weights(self) -> Any:
        """The last committed ones."""
        return self.states[-1].weights

    def rows(self, *kinds: str) -> list[Row]:
        """The trace's rows of these kinds, or all."""
        width, numbers = len(COLUMNS), self.simulation.trace.rows
        rows = [Row(*numbers[i : i + 3], KINDS[int(numbers[i + 3])], *numbers[i + 4 : i + width]) for i in range(0, len(numbers), width)]
        return [row for row in rows if not kinds or row.kind in kinds]


def simulate(
    experiment: Experiment,
    *,
    state: State | None = None,
    trace: str = "none",
    at_commit: Callable[[Simulation, State], None] | None = None,
) -> Run:
    """Run it in virtual time, from a committed state if one is given, and remember every commit and every gradient."""
    task, optimizer = experiment.load()
    run = Run()

    def keep(state: State) -> None:
        run.states.append(state)
        if at_commit is not None:
            at_commit(simulation, state)

    simulation = run.simulation = Simulation(experiment, task, optimizer, Trace(None, trace), state=state, keep=keep)
    gradient, commit = task.gradient, simulation.history.commit

    def computing(at: Any, batch: Batch) -> Any:
        run.computed.append(batch)
        return gradient(at, batch)

    def committing(seconds: float, state: State, applied: tuple[Contribution, ...]) -> bool:
        run.seconds.append(seconds)
        run.applied.append(applied)
        return commit(seconds, state, applied)

    task.gradient, simulation.history.commit = computing, committing  # type: ignore[method-assign]
    simulation.run()
    return run


def tiles(batches: list[Batch], stop: int) -> bool:
    """Whether these ranges cover each position of [0, stop) exactly once."""
    positions = sorted(position for batch in batches for position in range(batch.start, batch.stop))
    return positions == list(range(stop))
