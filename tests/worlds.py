"""Small experiments for tests, built from the real config, and their simulations with all that was recorded."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.build import build_experiment
from hetsim.config.compose import entries_of
from hetsim.config.compositions import resolved_once, without_hydra
from hetsim.config.resolved import resolved
from hetsim.coordination.state import State
from hetsim.effects import Batch, Contribution
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.recorder import KINDS, Recorder
from hetsim.runtime.recording.trace import COLUMNS, Trace
from hetsim.sim.hosts.world import HostWorld
from hetsim.sim.world import EventWorld
from hetsim.trust.shipped import configs

NO_NETWORK = {"latency_seconds": 0.0, "bytes_per_second": 1e300, "sharing": "none"}
"""A network without latency, so fast that adding a message's time changes no float."""


def node(seconds_per_sample: float, overhead_seconds: float = 0.0, *, count: int = 1, **more: Any) -> dict[str, Any]:
    """One entry of `cluster.nodes`."""
    return {"count": count, "seconds_per_sample": seconds_per_sample, "overhead_seconds": overhead_seconds, **more}


def cluster(*nodes: dict[str, Any], network: dict[str, Any] = NO_NETWORK, seconds_per_update: float = 0.0) -> dict[str, Any]:
    """A whole `cluster`, without a network unless one is given."""
    return {"name": "by hand", "nodes": list(nodes), "network": network, "server": {"seconds_per_update": seconds_per_update}}


NOISE = {"distribution": "lognorm", "s": 0.3}
UNEVEN = cluster(
    *(node(seconds, 2e-3, noise=NOISE) for seconds in (4e-4, 1e-4, 2e-4)),
    network={"latency_seconds": 1e-4, "bytes_per_second": 1e8, "sharing": "none"},
    seconds_per_update=5e-4,
)
"""Three nodes of unequal, noisy speed, and a server whose updates take time."""

COORDINATIONS = {
    "all_reduce": ("method=ssgd",),
    "server_with_a_barrier": ("method=ssgd", "coordination=parameter_server"),
    "server": ("method=asgd",),
}
SYNCHRONOUS = ("all_reduce", "server_with_a_barrier")
ALLOCATIONS: dict[str, dict[str, Any]] = {"even": {}, "fixed": {"allocation": {"parts": [1, 3, 2]}}, "dbs": {}}


def method(coordination: str, allocation: str, *choices: str, **keys: Any) -> Experiment:
    """An experiment that combines a coordination and an allocation of the tables above, for three workers."""
    return experiment(*COORDINATIONS[coordination], f"allocation={allocation}", *choices, **ALLOCATIONS[allocation], **keys)


SHARED: Path | None = None
"""The folder of configs that test processes share."""


@cache
def by_hydra(*choices: str) -> DictConfig:
    """The config that Hydra composes from these overrides. Test processes that run at the same time share what they have composed."""
    file = None if SHARED is None else SHARED / hashlib.sha256(repr(choices).encode()).hexdigest()
    if file is not None and file.exists():
        return pickle.loads(file.read_bytes())
    with initialize_config_dir(version_base="1.3", config_dir=str(configs())):
        config = compose("config", overrides=list(choices))
    if file is not None:
        own = file.with_name(f"{file.name}.{os.getpid()}")
        own.write_bytes(pickle.dumps(config))
        own.replace(file)
    return config


@cache
def composed(*choices: str) -> DictConfig:
    """The same config (`test_worlds.py`).

    Hydra takes a tenth of a second for each new set of choices, and the tests have thousands. A choice from any group but `method` and
    `experiment` is a file with one entry of the config, which is put into the config of the method.
    """
    entries = [word for word in choices if is_entry(word)]
    groups = [word.partition("=")[0] for word in entries]
    others = [word for word in choices if word not in entries]
    reach_into = ("experiment=", "method=halos", *(mark + group for group in groups for mark in ("", "+", "++", "~")))
    if len(choices) == 1 or len({*groups}) < len(groups) or any(word.startswith(reach_into) for word in others):
        return by_hydra(*choices)
    config = by_hydra(*others).copy()
    with open_dict(config):
        for group, word in zip(groups, entries, strict=True):
            config[group] = OmegaConf.load(configs() / group / f"{word.partition('=')[2]}.yaml")
    return config


@cache
def pickled(*choices: str) -> bytes:
    """The same config without Hydra's part, pickled because this is the fastest copy."""
    return pickle.dumps(without_hydra(composed(*choices)))


@cache
def is_entry(word: str) -> bool:
    """Whether it chooses a file of a group other than `method` and `experiment`."""
    group, _, name = word.partition("=")
    return group not in ("method", "experiment") and group.isidentifier() and (configs() / group / f"{name}.yaml").is_file()


def experiment(*choices: str, cluster: dict[str, Any] | None = None, budget: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    """The experiment that `hetsim` builds from these overrides and keys; `cluster` and `budget` replace those of the config."""
    changes: dict[str, Any] = {"pictures": False, "trace": "none", **keys}
    if budget is not None:
        changes["budget"] = {"epochs": None, "updates": None, "seconds": None, **budget}
    config = pickle.loads(pickled(*choices))
    OmegaConf.set_struct(config, False)  # as with Hydra's +key=value
    config.merge_with(changes)
    if cluster is not None:
        OmegaConf.update(config, "cluster", cluster, merge=False)
    try:
        entries = resolved(resolved_once(config))
    except OmegaConfBaseException:
        entries = entries_of(config)  # says it as a command does
    return build_experiment(entries)[0]


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


def rows_of(trace: Trace) -> list[Row]:
    """The rows in a trace's list."""
    width, numbers = len(COLUMNS), trace.rows
    return [Row(*numbers[i : i + 3], KINDS[int(numbers[i + 3])], *numbers[i + 4 : i + width]) for i in range(0, len(numbers), width)]


@dataclass
class Run(Recorder):
    """A simulation and its records: it is a recorder of its own commits."""

    trace: Trace
    simulation: EventWorld = field(init=False)
    at_commit: Callable[[EventWorld, State], None] | None = None
    states: list[State] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    applied: list[Sequence[Contribution]] = field(default_factory=list)
    computed: list[Batch] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    num_steps: int = 0
    """Optimizer steps that were computed."""

    @property
    def weights(self) -> Any:
        """The weights of the last commit."""
        return self.states[-1].weights

    def rows(self, *kinds: str) -> list[Row]:
        """The trace's rows of these kinds, or all."""
        return [row for row in rows_of(self.trace) if not kinds or row.kind in kinds]

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        """Record a commit."""
        state = state.evolve(outstanding=tuple(state.outstanding))
        self.seconds.append(seconds)
        self.states.append(state)
        self.applied.append(applied)
        if self.at_commit is not None:
            self.at_commit(self.simulation, state)


def simulate(
    experiment: Experiment,
    *,
    checkpoint: Checkpoint | None = None,
    trace: str = "none",
    at_commit: Callable[[EventWorld, State], None] | None = None,
    saved: bool = False,
) -> Run:
    """Run an experiment in virtual time, from a checkpoint if one is given, and record every commit and every gradient.

    Its checkpoints are kept, too, if it is `saved`.
    """
    task, optimizers = experiment.load()
    run = Run(Trace(None, trace), at_commit=at_commit)
    gradient, step = task.gradient, optimizers.main.step

    def recording_gradient(at: Any, batch: Batch) -> Any:
        run.computed.append(batch)
        computed = gradient(at, batch)
        run.gradients.append(computed[0])
        return computed

    def counting_step(*asked: Any) -> Any:
        run.num_steps += 1
        return step(*asked)

    kind = HostWorld if experiment.cluster.shares_cores else EventWorld
    run.simulation = kind(
        experiment, task, optimizers, [run.trace, run], checkpoint=checkpoint, keep=run.checkpoints.append if saved else None
    )
    task.gradient, optimizers.main.step = recording_gradient, counting_step  # type: ignore[method-assign]
    run.simulation.run()
    return run


def computed(made: Experiment, change: Callable[[Any], object] | None = None, **how: Any) -> Run:
    """A run in virtual time whose gradients are computed in this way (`processes`, `batched`). `change` changes its task."""
    task, optimizers = made.load()
    if change is not None:
        change(task)
    run = Run(Trace(None, "full"))
    kind = HostWorld if made.cluster.shares_cores else EventWorld
    run.simulation = kind(made, task, optimizers, [run.trace, run], **how)
    run.simulation.run()
    return run


def exit_status(monkeypatch: pytest.MonkeyPatch, command: str, main: Callable[[], None], *arguments: object) -> int:
    """Exit status of a command of the package with these arguments."""
    monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def tiles(batches: list[Batch], stop: int) -> bool:
    """Whether these ranges cover each position of [0, stop) exactly once."""
    positions = sorted(position for batch in batches for position in range(batch.start, batch.stop))
    return positions == list(range(stop))
