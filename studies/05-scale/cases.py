"""What 05 simulates: clusters by number of nodes and regime, methods, and the throughput of a run once it is steady."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hetsim.cluster import Cluster, Network, NodeSpec, Rack, Server
from hetsim.cluster.distributions import Distribution
from hetsim.cluster.model import SlowSpells
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.base import Coordination
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.policies.admission import Backup, Barrier, EveryGradient, Rennala, SoftSync
from hetsim.policies.allocation import Even, GradualShift, OptPerf, ProportionalController, SpeedProportional, Static
from hetsim.policies.weighting import PerSample
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import Recorder
from hetsim.sim import Simulation
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe

HERE = Path(__file__).resolve().parent
SHARE = 32
"""Samples of an equal share: B = 32 N."""
PER_SAMPLE, OVERHEAD = 400e-6, 2e-3
"""Seconds of the median node: 14.8 ms for an equal share."""
WINDOW = 10
LINK = 1.25e9
"""10 Gbit/s, in bytes per second: of a node, and of one machine of the server."""
LATENCY = 50e-6
PER_BYTE = 1e-10
"""Seconds of the server for each byte of an update: 10 GB/s through its memory."""
RACK, OVERSUBSCRIPTION = 32, 4


def compute_seconds(share: int = SHARE) -> float:
    """Of a gradient of the median node."""
    return OVERHEAD + share * PER_SAMPLE


def noise(regime: str) -> Distribution:
    """Factors on the time of each gradient: exponential in the regime of that name, else lognormal with a deviation of 10 %."""
    return Distribution("expon", {}) if regime == "exponential" else Distribution("lognorm", {"s": 0.1})


def slowness(regime: str, num: int, seed: int) -> list[float]:
    """How many times as long as the median node each one takes, by regime."""
    chance = np.random.default_rng([seed, num])
    if regime in ("equal", "racks", "exponential", "spells"):
        return [1.0] * num
    if regime == "unequal":
        return [float(value) for value in chance.lognormal(0.0, 0.4, num)]
    if regime == "stragglers":  # one in a hundred, at least one
        slow = max(1, num // 100)
        return [10.0] * slow + [1.0] * (num - slow)
    if regime.startswith("1:"):  # speeds in geometric progression
        most = float(regime.removeprefix("1:"))
        return [float(most ** -(rank / max(1, num - 1))) for rank in range(num)]
    raise ValueError(f"no regime {regime!r}")


def cluster(regime: str, num: int, seed: int, *, shards: int = 1, links: bool = True) -> Cluster:
    """So many nodes of a regime on links of 10 Gbit/s, and a server of so many machines on a link each; without links, free messages."""
    spells = SlowSpells(
        factor=3.0,
        seconds_between=Distribution("expon", {"scale": 10.0}),
        seconds_lasting=Distribution("expon", {"scale": 2.0}),
    )
    up = RACK * LINK / OVERSUBSCRIPTION
    rack = Rack(uplink_bytes_per_second=up, downlink_bytes_per_second=up)
    racks = {f"r{k}": rack for k in range(-(-num // RACK))} if regime == "racks" else {}
    described = {"uplink_bytes_per_second": LINK, "downlink_bytes_per_second": LINK} if links else {}
    nodes = tuple(
        NodeSpec(
            seconds_per_sample=PER_SAMPLE * slow,
            overhead_seconds=OVERHEAD * slow,
            noise=noise(regime),
            slow_spells=spells if regime == "spells" else None,
            rack=f"r{rank // RACK}" if racks else None,
            **described,
        )
        for rank, slow in enumerate(slowness(regime, num, seed))
    )
    network = Network(
        latency_seconds=LATENCY if links else 0.0,
        bytes_per_second=LINK if links else 1e300,
        sharing="none",
        all_reduce="two_level" if racks else "halving_doubling",
        racks=racks,
    )
    server = Server(shards=shards, seconds_per_update=1e-5, seconds_per_byte=PER_BYTE, **described) if links else Server()
    return Cluster(name=regime, nodes=nodes, network=network, server=server)


def method(name: str, num: int) -> Coordination:
    """A method by its name here; `m_sync 0.9` waits for the fastest 90 %, `rennala 2` collects 2 N gradients."""
    word, _, number = name.partition(" ")
    amount = round(float(number) * num) if word in ("m_sync", "rennala") else int(number or 0)
    split = {
        "dbs": SpeedProportional(reallocate_every="epoch"),
        "lb_bsp": GradualShift(),
        "omnilearn": ProportionalController(reallocate_every=1),
        "optperf": OptPerf(),
        "hetgrad": Static(),
    }
    if word in split:
        return SynchronousAllReduce(admission=Barrier(), allocation=split[word], weighting=PerSample())
    if word == "ssgd":
        return SynchronousAllReduce(admission=Barrier(), allocation=Even())
    if word == "local_sgd":
        return LocalSteps(admission=Barrier(), period=10)
    admission = {
        "ssgd_server": lambda: Barrier(),
        "asgd": lambda: EveryGradient(),
        "softsync": lambda: SoftSync(n=amount),
        "m_sync": lambda: Backup(spares=num - amount) if amount < num else Barrier(),
        "rennala": lambda: Rennala(batch=amount),
    }
    return ParameterServer(admission=admission[word]())


class Commits(Recorder):
    """The time and the samples of each version."""

    def __init__(self) -> None:
        self.seconds: list[float] = [0.0]
        self.samples: list[int] = [0]

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self.seconds.append(seconds)
        self.samples.append(state.num_samples)

    def rate(self, start: float = 0.0, end: float = 1.0) -> float:
        """Samples per second between these parts of the run's versions."""
        first, last = (int(part * (len(self.seconds) - 1)) for part in (start, end))
        return (self.samples[last] - self.samples[first]) / (self.seconds[last] - self.seconds[first])

    def settled(self) -> int:
        """The first version from which ten take at most 1.05 times as long as ten of the run's second half, on average."""
        steps = np.diff(self.seconds)
        if len(steps) < 2 * WINDOW:
            return 0
        means = np.convolve(steps, np.full(WINDOW, 1 / WINDOW), "valid")
        return int(np.argmax(means <= 1.05 * float(np.mean(steps[len(steps) // 2 :]))))


def simulate(
    name: str, on: Cluster, *, seed: int, num_updates: int, nbytes: float, share: int = SHARE, num_batches: int = 20
) -> tuple[Mapping[str, object], Commits]:
    """A run of timing only; an epoch has `num_batches` global batches. Returns its summary and its commits."""
    num = on.num_workers
    coordination = method(name, num)
    local = OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": 0.1}), key="local_optimizer") if name == "local_sgd" else None
    experiment = Experiment(
        method=name.partition(" ")[0],
        coordination=coordination,
        cluster=on,
        workload=PhantomWorkload(num_parameters=max(1, round(nbytes / 4)), num_samples=num_batches * share * num),
        optimizer=OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": 0.1})),
        local_optimizer=local,
        budget=Budget(updates=num_updates),
        batch_size=share * num,
        seed=seed,
        trace="none",
        pictures=False,
        evaluate_every_epochs=1e9,
    )
    commits = Commits()
    return Simulation(experiment, [commits]).run(), commits


def first_gradients(on: Cluster, count: int, *, each: int, seed: int, num_versions: int) -> float:
    """Seconds per version of its first `count` gradients, at most `each` of a node, if all nodes begin anew as soon as it is there.

    In hetsim's `backup` and `rennala`, as in the papers, a gradient of an older version is completed and then ignored.
    """
    chance = np.random.default_rng([seed, count])
    alone = np.array([compute_seconds() * slow for slow in slowness(on.name, on.num_workers, seed)])[:, None]
    shape = (on.num_workers, each)
    exponential = on.name == "exponential"
    draws = (chance.standard_exponential(shape) if exponential else chance.lognormal(0.0, 0.1, shape) for _ in range(num_versions))
    ends = [np.partition(np.cumsum(alone * drawn, axis=1), count - 1, axis=None)[count - 1] for drawn in draws]
    return float(np.mean(ends))
