"""Nodes and links in SI units: data only, read by both backends. The simulator takes its times from here, and padding too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from hetsim import checks

BLOCK = 1024  # noise factors drawn at a time
STREAM = 1  # sets the nodes' streams of chance apart from others with the same seed
PROFILING = 4  # and those of the gradients before the run from those in it


@dataclass(frozen=True)
class Noise:
    """A multiplicative factor on each gradient's time: a distribution of scipy.stats by name, with its parameters."""

    distribution: str
    parameters: Mapping[str, float] = field(default_factory=dict)

    def factors(self, seed: int, rank: int, stream: int = STREAM) -> Iterator[float]:
        """Node `rank`'s own stream: the same whatever other nodes there are."""
        rng = np.random.default_rng([seed, rank, stream])
        draw = self._lognorm if self.distribution == "lognorm" else self._scipy()
        while True:
            yield from draw(rng).tolist()

    def _lognorm(self, rng: np.random.Generator) -> Any:
        """The common law without scipy.stats, which takes half a second to import."""
        loc, scale = self.parameters.get("loc", 0.0), self.parameters.get("scale", 1.0)
        return loc + scale * rng.lognormal(0.0, self.parameters["s"], BLOCK)

    def _scipy(self) -> Any:
        from scipy import stats

        law = getattr(stats, self.distribution)(**self.parameters)
        return lambda rng: law.rvs(size=BLOCK, random_state=rng)


@dataclass(frozen=True, kw_only=True)
class Node:
    """One worker: a gradient of b samples takes (overhead_seconds + b · seconds_per_sample) · noise."""

    seconds_per_sample: float
    overhead_seconds: float = 0.0
    seconds_per_update: float = 0.0
    noise: Noise | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links without contention: a message of n bytes takes latency_seconds + n / bytes_per_second."""

    latency_seconds: float
    bytes_per_second: float

    def message_seconds(self, nbytes: int) -> float:
        """From hand-over to delivery."""
        return self.latency_seconds + nbytes / self.bytes_per_second

    def all_reduce_seconds(self, nbytes: int, num_workers: int) -> float:
        """A ring all-reduce, from the last entry: 2(N−1) steps of 1/N of the vector each."""
        return 2 * (num_workers - 1) * (self.latency_seconds + nbytes / (num_workers * self.bytes_per_second))

    def gather_seconds(self, num_workers: int) -> float:
        """One number of eight bytes from everyone to everyone, from the last entry."""
        return (num_workers - 1) * (self.latency_seconds + 8 / self.bytes_per_second)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server applies one update at a time."""

    seconds_per_update: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers 0 … N−1, the network between them, and the server of the methods that have one."""

    name: str
    nodes: tuple[Node, ...]
    network: Network
    server: Server

    @property
    def num_workers(self) -> int:
        """N."""
        return len(self.nodes)

    def seconds_per_update(self, rank: int) -> float:
        """What an optimizer step costs there; the rank behind the last worker is the server."""
        return self.nodes[rank].seconds_per_update if rank < len(self.nodes) else self.server.seconds_per_update


class StepTimes:
    """One node's gradient times, in the order in which it computes them."""

    def __init__(self, node: Node, *, seed: int, rank: int, stream: int = STREAM) -> None:
        self.node = node
        self._factors = node.noise.factors(seed, rank, stream) if node.noise else None

    def skip(self, num_gradients: int) -> None:
        """Go on behind so many gradients that an earlier run has had."""
        if self._factors is not None:
            next(islice(self._factors, num_gradients, num_gradients), None)

    def next(self, samples: int) -> float:
        """Seconds that the next gradient takes, over this many samples."""
        seconds = self.node.overhead_seconds + samples * self.node.seconds_per_sample
        return seconds if self._factors is None else seconds * next(self._factors)


def cluster(config: Any) -> Cluster:
    """The cluster that a config describes; ValueError with one sentence if it does not describe one."""
    entries = checks.mapping("cluster", config, required=("name", "nodes", "network", "server"))
    if not isinstance(entries["nodes"], Sequence) or isinstance(entries["nodes"], str):
        raise ValueError(f"cluster.nodes must be a list of nodes, not {entries['nodes']!r}")
    nodes = [node for index, entry in enumerate(entries["nodes"]) for node in _nodes(f"cluster.nodes[{index}]", entry)]
    if not nodes:
        raise ValueError("cluster.nodes is empty: describe at least one node")
    network = checks.mapping("cluster.network", entries["network"], required=("latency_seconds", "bytes_per_second"))
    server = checks.mapping("cluster.server", entries["server"], required=("seconds_per_update",))
    return Cluster(
        name=str(entries["name"]),
        nodes=tuple(nodes),
        network=Network(
            latency_seconds=checks.number("cluster.network.latency_seconds", network["latency_seconds"], zero=True),
            bytes_per_second=checks.number("cluster.network.bytes_per_second", network["bytes_per_second"]),
        ),
        server=Server(seconds_per_update=checks.number("cluster.server.seconds_per_update", server["seconds_per_update"], zero=True)),
    )


def _nodes(key: str, config: Any) -> list[Node]:
    required = ("count", "seconds_per_sample", "overhead_seconds")
    entry = checks.mapping(key, config, required=required, optional=("seconds_per_update", "noise"))
    node = Node(
        seconds_per_sample=checks.number(f"{key}.seconds_per_sample", entry["seconds_per_sample"]),
        overhead_seconds=checks.number(f"{key}.overhead_seconds", entry["overhead_seconds"], zero=True),
        seconds_per_update=checks.number(f"{key}.seconds_per_update", entry.get("seconds_per_update", 0.0), zero=True),
        noise=None if entry.get("noise") is None else _noise(f"{key}.noise", entry["noise"]),
    )
    return [node] * checks.whole(f"{key}.count", entry["count"])


def _noise(key: str, config: Any) -> Noise:
    if not isinstance(config, Mapping) or not isinstance(config.get("distribution"), str):
        raise ValueError(f"{key} must be null or a mapping such as {{distribution: lognorm, s: 0.1}}, not {config!r}")
    name = config["distribution"]
    shapes = ["s"] if name == "lognorm" else _shapes(key, name)
    entry = checks.mapping(key, config, required=("distribution", *shapes), optional=("loc", "scale"))
    parameters = {}
    for parameter, value in entry.items():
        if parameter != "distribution":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{key}.{parameter} must be a finite number, not {value!r}")
            parameters[parameter] = float(value)
    if name == "lognorm":
        checks.number(f"{key}.s", parameters["s"])
        checks.number(f"{key}.scale", parameters.get("scale", 1.0))
        checks.number(f"{key}.loc", parameters.get("loc", 0.0), zero=True)
    else:
        _check_support(key, name, parameters)
    return Noise(name, parameters)


def _shapes(key: str, name: str) -> list[str]:
    """The shape parameters of SciPy's distribution of this name."""
    from scipy import stats

    law = getattr(stats, name, None)
    if not isinstance(law, stats.rv_continuous):
        laws = [law for law in dir(stats) if isinstance(getattr(stats, law), stats.rv_continuous)]
        raise ValueError(
            f"{key}.distribution must be a continuous distribution of scipy.stats, not {name!r}{checks.suggestion(name, laws)}"
        )
    return law.shapes.split(", ") if law.shapes else []


def _check_support(key: str, name: str, parameters: Mapping[str, float]) -> None:
    """A time cannot be multiplied by a negative factor."""
    from scipy import stats

    lowest = getattr(stats, name)(**parameters).support()[0]
    if math.isnan(lowest):
        raise ValueError(f"{key}: {name} has no such parameters as {dict(parameters)}: see scipy.stats.{name}")
    if lowest < 0:
        raise ValueError(f"{key} must never be negative, but {name} with these parameters starts at {lowest}: choose others")
