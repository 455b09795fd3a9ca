"""Draw the pictures of docs/reference/cluster.md: everything in them was simulated, nothing is drawn by hand.

python docs/pictures.py        writes docs/images/cluster-*.png, in a minute; the same code makes the same pictures
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import Barrier, EveryGradient
from hetsim.policies.allocation.base import Even, Fixed
from hetsim.policies.compensation import NoCompensation
from hetsim.policies.compression import NoCompression
from hetsim.policies.weighting import NoDiscount, PerWorker
from hetsim.results.writing.figures import COMPUTE, INK, STEP, WAIT
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.recording.recorder import KINDS
from hetsim.runtime.recording.trace import COLUMNS, Trace
from hetsim.sim.clock import VirtualClock
from hetsim.sim.network.flows import Flows
from hetsim.sim.network.links import Flow, Link, Route
from hetsim.sim.world import EventWorld
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from rings import ring_seconds

IMAGES = Path(__file__).with_name("images")
AGAIN, FADED = "#7f6a9e", "#c9ced6"  # regroup; absent or slow
STYLE = {"font.size": 9, "axes.labelcolor": INK, "legend.fontsize": 8, "legend.frameon": False}
SMALL = {"ha": "center", "va": "center", "fontsize": 8}
MB, TEN_GBIT = 1e6, 1.25e9
PLAIN = {"latency_seconds": 0.0, "bytes_per_second": 1e12, "sharing": "none"}
COLOURS = {"ring": COMPUTE, "halving_doubling": STEP, "two_level": AGAIN}
Row = namedtuple("Row", COLUMNS)


def described(*nodes: dict[str, Any], network: dict[str, Any] = PLAIN, update: float = 0.0, **more: Any) -> Cluster:
    """A cluster of these rows of nodes."""
    server = {"seconds_per_update": update, **more.pop("server", {})}
    return parse_cluster({"name": "picture", "nodes": list(nodes), "network": network, "server": server, **more})


def row(seconds_per_sample: float, count: int = 1, **more: Any) -> dict[str, Any]:
    """A row of nodes without an overhead."""
    return {"count": count, "seconds_per_sample": seconds_per_sample, "overhead_seconds": 0.0, **more}


def simulated(
    cluster: Cluster, updates: int, batch_size: int, server: bool = True, nbytes: float = 4, parts: Sequence[int] = ()
) -> list[Any]:
    """The trace of a run: asynchronous SGD with a server, or synchronous SGD by all-reduces, on a model of so many bytes."""
    policies = {"weighting": PerWorker(), "discount": NoDiscount(), "compensation": NoCompensation(), "compression": NoCompression()}
    allocation = Fixed(parts=list(parts)) if parts else Even()
    kind, admission = (ParameterServer, EveryGradient()) if server else (SynchronousAllReduce, Barrier())
    coordination = kind(allocation=allocation, admission=admission, **policies)
    what = {"workload": PhantomWorkload(num_parameters=int(nbytes / 4), num_samples=60_000), "budget": Budget(updates=updates)}
    how = {"method": "picture", "optimizer": OptimizerRecipe(Recipe("torch.optim.SGD")), "batch_size": batch_size}
    experiment, trace = Experiment(coordination=coordination, cluster=cluster, **what, **how), Trace(None, "full")
    EventWorld(experiment, *experiment.load(), [trace]).run()
    rows = [Row(*trace.rows[i : i + len(COLUMNS)]) for i in range(0, len(trace.rows), len(COLUMNS))]
    return sorted(row._replace(kind=KINDS[int(row.kind)]) for row in rows)


def panels(num: int, height: float = 3.3) -> tuple[Figure, Any]:
    """A figure with so many axes in a row."""
    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots(1, num, squeeze=False)[0]


def styled(axes: Any, title: str, x: str, y: str) -> None:
    """Set title, labels and grid."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set(xlabel=x, ylabel=y)
    axes.tick_params(labelcolor=INK)
    axes.grid(color=WAIT)
    axes.spines[["top", "right"]].set_visible(False)


def bars(axes: Any, rows: Sequence[Any], place: float, kind: str, colour: str, end: float, **more: Any) -> None:
    """Intervals of one kind, up to an end."""
    spans = [(r.start, min(r.end, end) - r.start) for r in rows if r.kind == kind and r.start < end]
    axes.broken_barh(spans, (place - 0.38, 0.76), facecolor=colour, **{"edgecolor": "white", "linewidth": 0.6, **more})


def compute() -> Figure:
    """Times of gradients of all sizes by a table and by an affine model, both with noise; and a step in a slow spell."""
    figure, (left, right) = panels(2)
    table = [[1, 6e-3], [8, 7e-3], [32, 12e-3], [128, 36e-3], [256, 70e-3]]
    large, small = range(4, 260, 8), range(2, 66, 2)
    gpu = {"table": table, "noise": {"distribution": "lognorm", "s": 0.05}}
    cpu = {"seconds_per_sample": 1e-3, "overhead_seconds": 5e-3, "noise": {"distribution": "gamma", "a": 50, "scale": 0.02}}
    cluster = described({"count": len(large), **gpu}, {"count": len(small), **cpu})
    rows = simulated(cluster, 300, sum(large) + sum(small), parts=[*large, *small])
    for name, ranks, colour in (("by a table", range(len(large)), COMPUTE), ("overhead and time per sample", range(len(large), 999), STEP)):
        dots = [(r.samples, 1000 * (r.end - r.start)) for r in rows if r.kind == "gradient" and r.rank in ranks]
        left.plot(*zip(*dots, strict=True), ".", color=colour, markersize=3, label=name)
    left.plot([b for b, _ in table], [1000 * t for _, t in table], "o-", color=INK, markersize=4, linewidth=1, label="what was measured")
    left.legend(loc="lower right")
    styled(left, "A gradient's time, with noise", "samples", "milliseconds")

    between, lasting = ({"distribution": "uniform", "loc": seconds, "scale": 1e-12} for seconds in (1.0, 0.8))
    spells = {"factor": 3, "seconds_between": between, "seconds_lasting": lasting}
    rows, end = simulated(described(row(0.4), row(0.4, slow_spells=spells)), 30, 2), 4.4
    for start in (1.0, 2.8):
        right.axvspan(start, start + 0.8, color=WAIT, linewidth=0)
        right.text(start + 0.4, 1.57, "factor 3", **SMALL, color=INK)
    for rank in (0, 1):
        own = [r for r in rows if r.rank == rank]
        bars(right, own, rank, "gradient", COMPUTE, end)
        for r in [r for r in own if r.kind == "gradient" and r.end < end]:
            right.text((r.start + r.end) / 2, rank, f"{r.end - r.start:.2f}", **SMALL, color="white")
    styled(right, "Steps of 0.4 s through slow spells", "seconds", "")
    right.set(xlim=(0, end), ylim=(1.75, -0.6))
    right.set_yticks([0, 1], ["plain", "shared"])
    right.grid(visible=False)
    return figure


def network() -> Figure:
    """The rate of each message through a server's link, over time."""
    figure, (axes,) = panels(1, height=3.0)
    clock = VirtualClock()
    flows, into_server = Flows(clock), Link(12 * MB)
    routes = {"a": Route((into_server,)), "b": Route((into_server,)), "c, behind 2 MB/s": Route((into_server,), (Link(2 * MB),))}
    names: dict[Flow, str] = {}
    history: list[tuple[float, dict[str, float]]] = []
    for (name, route), start, size in zip(routes.items(), (0.0, 1.0, 2.0), (36 * MB, 32 * MB, 6 * MB), strict=True):
        clock.after(start, lambda sent: names.update({flows.start(sent[1], sent[2], lambda _: None): sent[0]}), (name, route, size))
    while clock.peek() < float("inf"):
        clock.step()
        history.append((clock.now, {names[flow]: rate / MB for flow, rate in flows.rates().items()}))
    history = [new for old, new in pairwise([(0.0, {}), *history]) if new[1] != old[1]]
    times = [at for at, _ in history]
    each = [[rates.get(name, 0.0) for _, rates in history] for name in routes]
    axes.stackplot(times, each, labels=list(routes), colors=[COMPUTE, STEP, AGAIN], step="post", edgecolor="white", linewidth=0.8)
    axes.axhline(12, color=INK, linewidth=1, linestyle="--")
    axes.text(times[-1], 12.25, "what the link carries", ha="right", fontsize=8, color=INK)
    for (at, rates), (until, _) in pairwise(history):
        below = 0.0
        for rate in [rates[name] for name in routes if name in rates]:
            axes.text((at + until) / 2, below + rate / 2, f"{rate:g}", **SMALL, color="white")
            below += rate
    styled(axes, "Three messages of 36, 32 and 6 MB that begin at 0, 1 and 2 s", "seconds", "MB per second")
    axes.set(xlim=(0, times[-1]), ylim=(0, 13.5))
    axes.grid(visible=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def in_racks(num: int, size: int, oversubscription: float, algorithm: str = "ring", apart: float = 0.0) -> Cluster:
    """So many nodes with links of 10 Gbit/s, in racks of a size; the server is in the first."""
    racks = [f"r{place}" for place in range(num // size)]
    both = {"uplink_bytes_per_second": TEN_GBIT, "downlink_bytes_per_second": TEN_GBIT}
    inside = {name: {"oversubscription": oversubscription, "latency_seconds": apart / 2} for name in racks}
    wires = {"latency_seconds": 20e-6, "bytes_per_second": TEN_GBIT, **both, "racks": inside, "all_reduce": algorithm}
    rows = [row(1e-3, count=size, rack=name) for name in racks]
    return described(*rows, network=wires, server={"rack": "r0", "uplink_bytes_per_second": 1e11, "downlink_bytes_per_second": 1e11})


def racks() -> Figure:
    """The cost of oversubscription for pushes out of a rack, and for all-reduces."""
    figure, (left, right) = panels(2)
    times, size = [1, 2, 4, 8, 16], 16
    pushes: dict[str, list[float]] = {"in the server's rack": [], "in the other rack": []}
    for k in times:
        rows = simulated(in_racks(2 * size, size, k), 320, 64 * size, nbytes=20 * MB)
        sent = [r for r in rows if r.kind == "message" and r.nbytes and r.rank < 2 * size]
        for place, name in enumerate(pushes):
            pushes[name].append(1000 * fmean(r.end - r.start for r in sent if r.rank // size == place))
    for (name, seconds), colour in zip(pushes.items(), (COMPUTE, STEP), strict=True):
        left.plot(times, seconds, "o-", color=colour, label=name, linewidth=1.6, markersize=5)
    for name, colour in COLOURS.items():
        seconds = []
        for k in times:
            rows = simulated(in_racks(2 * size, size, k, name), 2, 2 * size, server=False, nbytes=20 * MB)
            seconds.append(1000 * min(r.end - r.start for r in rows if r.kind == "all_reduce"))
        right.plot(times, seconds, "o-", color=colour, label=name, linewidth=1.6, markersize=5)
    for axes, title in ((left, "A push of 20 MB to the server"), (right, "An all-reduce of 20 MB")):
        styled(axes, f"{title}, {2 * size} nodes in two racks", "oversubscription of the racks", "milliseconds")
        axes.set_xscale("log", base=2)
        axes.set_xticks(times, list(map(str, times)))
        axes.set_ylim(0)
        axes.legend()
    return figure


def by_transfers(cluster: Cluster, nbytes: float) -> float:
    """The ring, transfer by transfer."""
    num = cluster.num_workers
    paths = [cluster.path(rank, (rank + 1) % num) for rank in range(num)]
    links = {link: Link(cluster.capacity(link)) for path in paths for link in path.links}
    routes = [Route(tuple(links[link] for link in path.links), limit=path.bytes_per_second) for path in paths]
    return ring_seconds(routes, [path.latency_seconds for path in paths], nbytes)


def collectives() -> Figure:
    """The three all-reduces by size and by nodes, and the ring transfer by transfer."""
    figure, (left, right) = panels(2)
    sizes, nodes = [2**k for k in range(10, 30, 2)], [8, 16, 32, 64, 128, 256]
    for axes, places, ends in ((left, sizes, [(64, size, 0.0) for size in sizes]), (right, nodes, [(num, 2**20, 60e-6) for num in nodes])):
        for name, colour in COLOURS.items():
            taken = [Collectives(in_racks(num, 8, 4, name, apart)).all_reduce_seconds(size) for num, size, apart in ends]
            axes.loglog(places, [1000 * seconds for seconds in taken], color=colour, label=name, linewidth=1.6)
        taken = [by_transfers(in_racks(num, 8, 4, apart=apart), size) for num, size, apart in ends]
        axes.plot(places, [1000 * seconds for seconds in taken], "o", color=INK, markersize=4, label="ring, transfer by transfer")
    styled(left, "64 nodes in racks of 8, all 20 µs apart", "bytes", "milliseconds")
    styled(right, "1 MiB; 20 µs in a rack, 80 µs between racks", "nodes", "milliseconds")
    right.set_xticks(nodes, list(map(str, nodes)))
    right.minorticks_off()
    for axis in (left.yaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
    right.set_ylim(1, 100)
    left.legend(loc="upper left")
    return figure


def server() -> Figure:
    """How long a gradient waits at a server, against its load: simulated, and by queueing theory."""
    figure, (axes,) = panels(1, height=3.4)
    num, service = 2000, 1e-3
    steady, random = ("every update takes 1 ms", "M/D/1", None, 0.0, COMPUTE), ("1 ms on average, noise expon", "M/M/1", "expon", 1.0, STEP)
    for name, queue, noise, spread, colour in (steady, random):
        curve = [0.01 * k for k in range(1, 92)]
        waits = [1000 * load * service * (1 + spread) / (2 * (1 - load)) for load in curve]
        axes.plot(curve, waits, color=colour, linewidth=1.6, label=f"formula, {queue}")
        dots = []
        for load in (0.2, 0.4, 0.6, 0.7, 0.8, 0.9):
            nodes = row(num * service / load, num, noise={"distribution": "expon"})
            rows = simulated(described(nodes, update=service, server={"noise": noise and {"distribution": noise}}), 30_000, num)
            came = sorted(r.end for r in rows if r.kind == "message" and r.nbytes and r.rank < num)
            served = [r for r in rows if r.kind == "update"]
            waited = fmean(r.start - at for r, at in zip(served, came, strict=False))
            dots.append((sum(r.end - r.start for r in served) / served[-1].end, 1000 * waited))
        axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=5, label=f"played, {name}")
    axes.set(xlim=(0, 0.95), ylim=(0, 11))
    styled(axes, f"A gradient's wait at the server, {num} asynchronous workers", "load: the server's busy part of the time", "milliseconds")
    axes.legend(loc="upper left")
    return figure


def faults() -> Figure:
    """A node crashes and returns: with a server the others go on, in an all-reduce all restart from the last commit."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    away = {"detection_seconds": 0.25, "regroup_seconds": 0.15, "schedule": [{"nodes": [1], "crash": 1.2, "repair": 2.7}]}
    wires = {"latency_seconds": 5e-3, "bytes_per_second": 125 * MB, "sharing": "none"}
    nodes = [row(12e-3, 2, seconds_per_update=0.03), row(9e-3, seconds_per_update=0.03)]
    cluster, end = described(*nodes, network=wires, update=0.03, faults=away), 4.2
    titles = ("asgd: a server, and no barrier", "ssgd: an all-reduce")
    for axes, title, around_server in zip(figure.subplots(2, 1, sharex=True), titles, (True, False), strict=True):
        rows = simulated(cluster, 40, 96, server=around_server, nbytes=4 * MB)
        names = ["worker 0", "worker 1", "worker 2", *(["server"] if around_server else [])]
        for rank in range(len(names)):
            own = [r for r in rows if r.rank == rank]
            axes.broken_barh([(0, end)], (rank - 0.38, 0.76), color=WAIT)
            for kind, colour in (("gradient", COMPUTE), ("update", STEP), ("regroup", AGAIN)):
                bars(axes, own, rank, kind, colour, end)
            bars(axes, own, rank, "down", "white", end, edgecolor=FADED, hatch="////", linewidth=0.0)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlim=(0, end), ylim=(len(names) - 0.5, -0.5))
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.tick_params(length=0, labelcolor=INK)
        axes.spines[:].set_visible(False)
        for moment in (1.2, 1.45, 2.7):
            axes.axvline(moment, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel("seconds; worker 1 is gone at 1.2 s, missed at 1.45 s and back at 2.7 s")
    words = zip(("gradient", "update", "waiting", "regroup"), (COMPUTE, STEP, WAIT, AGAIN), strict=True)
    absent = Patch(facecolor="white", edgecolor=FADED, hatch="////", label="not there")
    figure.legend(handles=[*(Patch(color=colour, label=word) for word, colour in words), absent], loc="outside upper right", ncols=5)
    return figure


PICTURES = (compute, network, racks, collectives, server, faults)

if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        for picture in PICTURES:
            picture().savefig(IMAGES / f"cluster-{picture.__name__}.png", dpi=110, metadata={"Software": None})
