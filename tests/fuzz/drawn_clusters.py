"""A whole cluster written out: a few nodes, links, racks and faults, right or with something hostile in one place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import known_keys
from drawn_values import NUMBERS, SIZES, Raw, hostile, misspelt

from hetsim.cluster.distributions import COMMON
from hetsim.cluster.network.collectives import ALGORITHMS, AUTO

RACKS = ("a", "b", "c")
SLOWDOWN = "load.csv"
"""The file that a `slowdown` names."""

TIMES = (0.0, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 1.0)
RATES = (1e3, 1e6, 1e9, 12.5e9)


def drawn_cluster(rng: Random, *, spoilt: bool) -> dict[str, Any]:
    """A cluster with any of the keys that the parser knows; a spoilt one has something hostile in one place."""
    cluster = _entry(rng, "", required=("name", "nodes", "network", "server"))
    _house(rng, cluster)
    if spoilt:
        _spoil(rng, cluster)
    return cluster


def _house(rng: Random, cluster: dict[str, Any]) -> None:
    """Describe the racks that are used, most of the time, and put nodes into those that are described."""
    if rng.random() < 0.1:
        return
    rows, network = cluster["nodes"], cluster["network"]
    if network.get("all_reduce") == "two_level":
        for row in rows:
            row["rack"] = rng.choice(RACKS[:2])
    used = {row["rack"] for row in (*rows, cluster["server"]) if row.get("rack") is not None}
    racks = {name: _entry(rng, "network.racks", required=(), often=0.3) for name in sorted(used)}
    for rack in racks.values():
        if rng.random() < 0.8:
            rack.pop("within", None)
        for key in ("oversubscription",) if rng.random() < 0.5 else known_keys.LINKS:
            rack.pop(key, None)
    network.pop("racks", None)
    if racks:
        network["racks"] = racks
    if len(racks) < 2:
        network.pop("between", None)


def slowdown(rng: Random) -> str:
    """A recorded slowdown; one of four is wrong."""
    if rng.random() < 0.75:
        return f"seconds,factor\n0,1\n{rng.choice(TIMES[1:])},{rng.choice((0.5, 2, 10))}\n1e3,1\n"
    return rng.choice(
        (
            *("seconds,factor\n0,1\n0.5,2.5\n1,1\n", "seconds,factor\n0,1\n", "\ufeffseconds,factor\n0,2\n\n1,1\n", "", "\n"),
            *("seconds,factor\n", "seconds,factor\n1,1\n", "seconds,factor\n0,1\n0,2\n", "seconds,factor\n0,1\n2,1\n1,1\n"),
            *("seconds,factor\n0,0\n", "seconds,factor\n0,nan\n", "seconds,factor\n0,inf\n", "seconds,factor\n0,-1\n", "seconds\n0\n"),
            *("seconds,factor\n0,1,2\n", "seconds,factor\na,b\n", "factor,seconds\n1,0\n", "seconds,factor\n0,1e300\n1,1e-300\n"),
            *("seconds,factor\n-1,1\n", 'seconds,factor\n"0\n', "seconds;factor\n0;1\n", "seconds,factor\n0,1e-320\n"),
        )
    )


def distribution(rng: Random) -> dict[str, Any]:
    """Any continuous distribution of SciPy, with parameters that it may have, as a law of noise or of times."""
    laws = _laws()
    positive = tuple(name for name, (_, lowest) in laws.items() if lowest >= 0)
    common = tuple(COMMON) if rng.random() < 0.7 else positive
    name = rng.choice(common if rng.random() < 0.95 else tuple(laws))
    drawn: dict[str, Any] = {"distribution": name, **{shape: rng.choice((0.1, 0.5, 1, 2.5)) for shape in laws[name][0]}}
    if rng.random() < 0.5:
        drawn["scale"] = rng.choice((1e-3, 0.1, 1.0, 2))
    if rng.random() < 0.3:
        drawn["loc"] = rng.choice((0, 0.5, 1.0))
    return drawn


@cache
def _laws() -> dict[str, tuple[tuple[str, ...], float]]:
    """Each continuous distribution of SciPy: its shape parameters, and where it begins."""
    from scipy import stats

    laws = {name: getattr(stats, name) for name in sorted(dir(stats))}
    return {
        name: (tuple(law.shapes.split(", ")) if law.shapes else (), law.a)
        for name, law in laws.items()
        if isinstance(law, stats.rv_continuous)
    }


def _entry(rng: Random, place: str, *, required: tuple[str, ...], often: float = 0.25) -> dict[str, Any]:
    """A mapping with the required keys of a place, and some of the others."""
    known = known_keys.cluster_keys()[place]
    return {name: _value(rng, place, name) for name in known if name in required or rng.random() < often}


def _value(rng: Random, place: str, name: str) -> Any:
    if (place, name) == ("faults.schedule", "nodes"):
        return rng.choice(("all", [0], [1], [0, 1]))
    if name in PARTS:
        return PARTS[name](rng)
    if name.endswith("bytes_per_second"):
        return rng.choice(RATES)
    if rng.random() < 0.2 and place == "nodes":
        return {**distribution(rng), "scale": 1e-3}
    return rng.choice(TIMES) if "second" in name else rng.choice(NUMBERS)


def _rows(rng: Random) -> list[dict[str, Any]]:
    rows = [_entry(rng, "nodes", required=("count",), often=0.2) for _ in range(rng.randint(1, 3))]
    for row in rows:
        if "table" not in row or rng.random() < 0.9:
            row.pop("table", None)
            row.update(
                seconds_per_sample=rng.choice((1e-4, 1e-3, {"distribution": "lognorm", "s": 0.3})), overhead_seconds=rng.choice(TIMES)
            )
        elif rng.random() < 0.9:
            row.pop("seconds_per_sample", None)
            row.pop("overhead_seconds", None)
    return rows


def _spells(rng: Random) -> dict[str, Any]:
    means = {name: rng.choice((0.1, 1, 10, distribution(rng))) for name in ("seconds_between", "seconds_lasting")}
    return {"factor": rng.choice((0.5, 1, 3)), **means}


def _table(rng: Random) -> list[list[Any]]:
    sizes = sorted(rng.sample(SIZES, rng.randint(1, 3)))
    return [[size, 1e-3 * (place + 1)] for place, size in enumerate(sizes)]


def _racks(rng: Random) -> dict[str, Any]:
    return {name: _entry(rng, "network.racks", required=()) for name in rng.sample(RACKS, rng.randint(1, 3))}


def _between(rng: Random) -> list[dict[str, Any]]:
    ways: list[dict[str, Any]] = [{"racks": list(RACKS[:2]), "bytes_per_second": rng.choice(RATES)}]
    return [way | ({"latency_seconds": rng.choice(TIMES)} if rng.random() < 0.5 else {}) for way in ways]


def _calibrated(rng: Random) -> dict[str, Any]:
    texts = {name: rng.choice(("digits", "x86_64", "2026-11-23")) for name in ("date", "machine", "workload", "dtype", "torch")}
    samples = sorted(rng.choices(SIZES, k=2))
    error, tried = rng.choice(TIMES), {name: rng.choice((-0.1, 0.1, *TIMES)) for name in ("ssgd", "asgd") if rng.random() < 0.5}
    return {**texts, "num_parameters": rng.choice(SIZES), "samples": samples, "threads": 1, "device": "cpu", "error": error, "tried": tried}


def _schedule(rng: Random) -> list[dict[str, Any]]:
    rows = [_entry(rng, "faults.schedule", required=("nodes",), often=0.2) for _ in range(rng.randint(0, 2))]
    for row in rows:
        if rng.random() < 0.8:  # in an order that makes sense
            times = sorted(rng.sample((1e-4, 1e-3, 2e-3, 0.01, 0.05, 0.1, 0.2, 1.0), 4))
            row.update({name: time for name, time in zip(("join", "crash", "repair", "leave"), times, strict=True) if name in row})
            if "repair" in row:
                row.setdefault("crash", times[1])
            if "seconds_to_repair" in row or not row.keys() & {"join", "crash", "leave"}:
                row.setdefault("seconds_to_crash", {"distribution": "expon", "scale": rng.choice((0.01, 0.1, 1.0))})
    return rows


PARTS: dict[str, Callable[[Random], Any]] = {
    "name": lambda rng: rng.choice(("drawn", "drawn by fuzz", "ü/ö")),
    "seed": lambda rng: rng.randrange(9),
    "nodes": _rows,
    "network": lambda rng: _entry(rng, "network", required=("latency_seconds", "bytes_per_second")),
    "server": lambda rng: _entry(rng, "server", required=("seconds_per_update",)),
    "faults": lambda rng: _entry(rng, "faults", required=(), often=0.6),
    "calibrated": _calibrated,
    "leave_out": lambda rng: rng.choice(([], [0], [0], [1], [0, 1], [0, 0], [99], "all")),
    "count": lambda rng: rng.randint(1, 4),
    "table": _table,
    "noise": lambda rng: rng.choice((None, distribution(rng))),
    "jitter_seconds": lambda rng: {**distribution(rng), "scale": 1e-4},
    "sharing_noise": lambda rng: rng.choice((None, distribution(rng))),
    "slow_spells": _spells,
    "slowdown": lambda _: SLOWDOWN,
    "cpu_quota": lambda rng: rng.choice((0.25, 0.3, 1, None)),
    "max_samples": lambda rng: rng.choice((4, 8, 64, 1000)),
    "cost_per_hour": lambda rng: rng.choice((0, 0.5, 3)),
    "rack": lambda rng: rng.choice((*RACKS[:2], None, None, None)),
    "racks": _racks,
    "between": _between,
    "within": lambda rng: rng.choice((*RACKS, None, None)),
    "all_reduce": lambda rng: rng.choice((*ALGORITHMS, AUTO)),
    "shards": lambda rng: rng.choice((1, 2, 5)),
    "schedule": _schedule,
    "seconds_to_crash": lambda rng: distribution(rng),
    "seconds_to_repair": lambda rng: {**distribution(rng), "scale": 0.1},
}
"""How the keys that are no plain numbers are drawn; any other key is drawn as a number."""


def _spoil(rng: Random, cluster: dict[str, Any]) -> None:
    """Put something wrong somewhere: a hostile value, another key's, an unknown key, a key left out, an entry twice or out of order."""
    places: list[dict[str, Any] | list[Any]] = []

    def collect(entry: Any) -> None:
        if isinstance(entry, dict | list) and entry:
            places.append(entry)
            for part in entry.values() if isinstance(entry, dict) else entry:
                collect(part)

    collect(cluster)
    at = rng.choice(places)
    if isinstance(at, list):
        place = rng.randrange(len(at))
        at[place : place + 1] = rng.choice(([Raw(hostile(rng))], [at[place]] * 2, [at[-1], *at[:place]]))
        return
    name = rng.choice(list(at))
    match rng.randrange(8):
        case 0:
            del at[name]
        case 1:
            at[misspelt(rng, name)] = at.pop(name)
        case 2:
            at[Raw("unknown")] = 1
        case 3:
            at[name] = at[rng.choice(list(at))]
        case 4:
            at[name] = -at[name] if isinstance(at[name], int | float) else [at[name]]
        case _:
            at[name] = Raw(hostile(rng))
