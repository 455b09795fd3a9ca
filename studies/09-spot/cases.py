"""What 09 simulates: when spot nodes are present, mixes with nodes on demand, methods, and jobs that lose nodes and continue."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np

from hetsim.cluster import Cluster, Network, NodeSpec, Server
from hetsim.cluster.faults import Faults, Outages
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.base import Coordination
from hetsim.coordination.local_steps import LocalSteps
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.state import State
from hetsim.effects import Contribution
from hetsim.policies.admission import Barrier, BoundedStaleness, EveryGradient, SoftSync
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import Recorder
from hetsim.sim import Simulation
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe

HERE = Path(__file__).resolve().parent
ON_DEMAND, SPOT, SERVER = 3.06, 0.918, 0.34
"""Dollars an hour: a node with a V100 on demand, the same as a spot node (30 %), and a server without a GPU, always on demand."""
PER_SAMPLE, SHARE, NBYTES, LINK = 1 / 360, 1024, 102.4e6, 1.25e9
"""Seconds of a sample, samples of an equal share, bytes of the model, and bytes per second of each link: ResNet-50 on 10 Gbit/s."""
BOOT, RESTART, DETECTION, REGROUP = 120.0, 60.0, 5.0, 10.0
"""Seconds: until a new spot node is ready, until torchrun's restarted ranks compute again, until a loss is known, and of a regroup."""
INTERVAL, SAVE = 600.0, 2.0
"""Seconds from one checkpoint to the next, and of one."""
SERVERS = ("ssgd_server", "asgd", "ssp", "softsync")
METHODS = ("ssgd", "ssgd_torchrun", "local_sgd", *SERVERS)
MIXES = {"on demand": 1.0, "half": 0.5, "spot": 0.0}
"""Which part of the nodes is on demand."""
Span = tuple[float, float]


@dataclass(frozen=True)
class Market:
    """How many spot nodes can be had in each interval of `gap` seconds. After the last one, the first one follows again."""

    name: str
    num_nodes: int
    counts: tuple[int, ...]
    gap: float = 300.0

    @property
    def seconds(self) -> float:
        """Of all intervals."""
        return len(self.counts) * self.gap

    def present(self, place: int, start: int) -> list[Span]:
        """When the spot node of this place is there, over three rounds from interval `start` on. Low places are filled first."""
        counts = (self.counts[start:] + self.counts[:start]) * 3
        spans, at = list[Span](), 0
        for there, group in groupby(count > place for count in counts):
            begin, at = at, at + len([*group])
            if there:
                spans.append((begin * self.gap, at * self.gap))
        return spans


def read(path: Path, name: str) -> Market:
    """A file of counts at a fixed interval."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Market(name, max(found["data"]), tuple(found["data"]), float(found["metadata"]["gap_seconds"]))


def made(num_nodes: int, seed: int = 0, num_intervals: int = 2000) -> Market:
    """Drawn: all nodes are there for about half an hour, none for a quarter of an hour, and some of them for five minutes in between."""
    chance, counts = np.random.default_rng(seed), list[int]()
    while len(counts) < num_intervals:
        for level, mean in ((num_nodes, 6), (0, 3)):
            counts += [level] * math.ceil(chance.exponential(mean))
            counts.append(int(chance.integers(0, num_nodes + 1)))
    return Market("made", num_nodes, tuple(counts[:num_intervals]))


@dataclass(frozen=True)
class Mix:
    """Nodes of one job: the first `fixed` are on demand. `ready` and `paid` are when each spot node computes, and when it is paid for."""

    fixed: int
    paid: tuple[tuple[Span, ...], ...]

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """On demand and spot, with their prices."""
        link = {"uplink_bytes_per_second": LINK, "downlink_bytes_per_second": LINK}
        alike = NodeSpec(seconds_per_sample=PER_SAMPLE, cost_per_hour=ON_DEMAND, **link)
        return (alike,) * self.fixed + (replace(alike, cost_per_hour=SPOT),) * len(self.paid)

    @property
    def ready(self) -> list[list[Span]]:
        """By rank: a spot node boots first, but for those that are there when the job begins."""
        booted = [[(start + BOOT * (start > 0), stop) for start, stop in spans] for spans in self.paid]
        return [[(0.0, math.inf)]] * self.fixed + [[span for span in spans if span[0] < span[1]] for spans in booted]

    def hours(self, end: float) -> list[float]:
        """Of each node until the end: those that are paid for."""
        spot = [sum(max(0.0, min(stop, end) - start) for start, stop in spans) for spans in self.paid]
        return [seconds / 3600 for seconds in [end] * self.fixed + spot]

    def dollars(self, end: float, *, server: bool) -> float:
        """What the nodes have cost by the end, and the server."""
        spent = sum(hours * node.cost_per_hour for hours, node in zip(self.hours(end), self.nodes, strict=True))
        return spent + SERVER * end / 3600 * server

    def changes(self) -> list[float]:
        """The moments at which nodes become ready or are lost."""
        return sorted({moment for spans in self.ready for span in spans for moment in span if 0 < moment < math.inf})

    def count(self, moment: float) -> int:
        """The nodes that are ready."""
        return sum(any(start <= moment < stop for start, stop in spans) for spans in self.ready)


def mix(market: Market, part: float, start: int) -> Mix:
    """Of a market from this interval on, with this part of the nodes on demand."""
    fixed = round(part * market.num_nodes)
    return Mix(fixed, tuple(tuple(market.present(place, start)) for place in range(market.num_nodes - fixed)))


@dataclass(frozen=True)
class Job:
    """What a job took: seconds, samples that were computed again, and how often it began again at a checkpoint."""

    seconds: float
    repeated: float = 0.0
    restarts: int = 0


class Commits(Recorder):
    """The time and the samples of each version."""

    def __init__(self) -> None:
        self.seconds: list[float] = [0.0]
        self.samples: list[int] = [0]

    def commit(self, seconds: float, rank: int, state: State, applied: Sequence[Contribution]) -> None:
        self.seconds.append(seconds)
        self.samples.append(state.num_samples)

    def until(self, moment: float) -> int:
        """The samples of the last version until then."""
        return self.samples[int(np.searchsorted(self.seconds, moment, "right")) - 1]


def coordination(method: str) -> Coordination:
    """By a method's name here."""
    if method in ("ssgd", "ssgd_torchrun"):
        return SynchronousAllReduce(admission=Barrier())
    if method == "local_sgd":
        return LocalSteps(admission=Barrier(), period=10)
    admission = {"ssgd_server": Barrier(), "asgd": EveryGradient(), "ssp": BoundedStaleness(bound=3), "softsync": SoftSync(n=2)}
    return ParameterServer(admission=admission[method])


def simulate(
    method: str, nodes: Sequence[NodeSpec], num_samples: float, absent: Mapping[int, Sequence[Span]], *, batch_size: int,
    interval: float = INTERVAL, seconds: float = math.inf,
) -> Commits:  # fmt: skip
    """A run of timing only until so many samples or seconds. Checkpoints slow all gradients down by their share of the time."""
    slowed = tuple(replace(node, seconds_per_sample=node.seconds_per_sample / (1 - SAVE / interval)) for node in nodes)
    faults = Faults(
        detection_seconds=DETECTION,
        regroup_seconds=REGROUP,
        nodes={rank: Outages(scheduled=tuple(spans)) for rank, spans in absent.items() if spans},
    )
    cluster = Cluster(
        name="spot",
        nodes=slowed,
        network=Network(latency_seconds=5e-5, bytes_per_second=LINK, sharing="none", all_reduce="ring"),
        server=Server(seconds_per_byte=1e-10, uplink_bytes_per_second=LINK, downlink_bytes_per_second=LINK),
        faults=faults,
    )
    sgd = Recipe("torch.optim.SGD", {"lr": 0.1})
    experiment = Experiment(
        method=method,
        coordination=coordination(method),
        cluster=cluster,
        workload=PhantomWorkload(num_parameters=round(NBYTES / 4), num_samples=math.ceil(num_samples)),
        optimizer=OptimizerRecipe(sgd),
        local_optimizer=OptimizerRecipe(sgd, key="local_optimizer") if method == "local_sgd" else None,
        budget=Budget(epochs=1, seconds=None if seconds == math.inf else seconds),
        batch_size=batch_size,
        seed=0,
        trace="none",
        pictures=False,
        evaluate_every_epochs=1e9,
    )
    commits = Commits()
    Simulation(experiment, [commits]).run()
    return commits


def outages(ready: Sequence[Span], begin: float, end: float) -> list[Span]:
    """When a node is absent from `begin` until `end`, in seconds after `begin`. What begins at the end is left out."""
    inside = [(max(start, begin) - begin, min(stop, end) - begin) for start, stop in ready if start < end and stop > begin]
    edges = [0.0, *(moment for span in inside for moment in span), end - begin]
    gaps = [(start, stop if stop < end - begin else math.inf) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return [(start, stop) for start, stop in gaps if start < min(stop, end - begin)]


def job(method: str, of: Mix, num_samples: int, interval: float = INTERVAL) -> Job:
    """Train on this number of samples. Without a server, begin again from the last checkpoint after all nodes were lost."""
    nodes, ready = of.nodes, of.ready
    given = {"batch_size": SHARE * len(nodes), "interval": interval}
    if method in SERVERS:
        absent = {rank: outages(spans, 0.0, math.inf) for rank, spans in enumerate(ready)}
        return Job(simulate(method, nodes, num_samples, absent, **given).seconds[-1])
    moments = of.changes()
    if method != "ssgd_torchrun":  # only the loss of all nodes ends its processes
        moments = [moment for moment in moments if (of.count(moment) == 0) != (of.count(moment - 1e-3) == 0)]
    made, repeated, restarts = 0.0, 0.0, 0
    for start, end in zip([0.0, *moments], [*moments, math.inf], strict=True):
        begin, num = start + RESTART * (start > 0), of.count(start)
        seconds = end - begin
        if num == 0 or seconds <= 0:
            continue
        restarts += start > 0
        if method == "ssgd_torchrun":
            found = rate(num, **given)
            needed = (num_samples - made) / found
            until = partial(operator.mul, found)
        else:
            absent = {rank: outages(spans, begin, end) for rank, spans in enumerate(ready)}
            commits = simulate(method, nodes, num_samples - made, absent, **given, seconds=seconds)
            needed = commits.seconds[-1] if commits.samples[-1] >= num_samples - made else math.inf
            until = commits.until
        if needed <= seconds:
            return Job(begin + needed, repeated, restarts)
        kept = until(seconds // interval * interval)  # at the last checkpoint
        made, repeated = made + kept, repeated + until(seconds) - kept
    raise ValueError(f"{method} has not ended after three rounds of the trace")


@cache
def rate(num_nodes: int, batch_size: int, interval: float) -> float:
    """Samples per second of synchronous SGD on this number of nodes, all of which stay."""
    commits = simulate("ssgd", Mix(num_nodes, ()).nodes, 20 * batch_size, {}, batch_size=batch_size, interval=interval)
    return commits.samples[-1] / commits.seconds[-1]
