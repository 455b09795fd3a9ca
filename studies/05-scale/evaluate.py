"""The tables of 05 from results.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cases import HERE, LATENCY, LINK, PER_BYTE, SHARE, compute_seconds
from common import Interval, Row, arguments, change, interval, ratio, rows, table, where, write_tables

NAMES = {
    "ssgd": "SSGD, all-reduce", "hetgrad": "split by speed, all-reduce", "local_sgd": "local SGD", "ssgd_server": "SSGD, server",
    "m_sync 0.9": "fastest 90 %, server", "asgd": "ASGD", "softsync 4": "4-softsync",
}  # fmt: skip
WAITING = (
    (("m_sync",), "best m"),
    (("m_stops",), "best m, late ones stopped"),
    (("m_sync 1",), "m = N"),
    (("rennala",), "Rennala"),
)
NEEDED = (0, 0.25, 1, 4, 16)
"""S = σ²/ε over N: how many gradients of one version a step needs before more of them stop helping."""


def rates(table_: Sequence[Row], name: str = "samples_per_second") -> list[float]:
    """By seed."""
    return [float(row[name]) for row in sorted(table_, key=lambda row: int(row["seed"]))]


def alone(share: int = SHARE) -> float:
    """Samples per second of one median node that communicates with nobody."""
    return share / compute_seconds(share)


def values(found: Sequence[Row], name: str) -> list[str]:
    """The different values of a column, in order."""
    return list(dict.fromkeys(row[name] for row in found))


def short(found: Interval) -> str:
    """A mean and half of its interval."""
    half = (found.high - found.low) / 2
    digits = 0 if found.mean >= 100 else 1 if found.mean >= 10 else 2
    return f"{found.mean:,.{digits}f} ± {half:,.{digits}f}"


def scaling(found: Sequence[Row]) -> str:
    """Speed-up over one node."""
    body = []
    part = where(found, part="scaling")
    for regime in values(part, "regime"):
        for num in values(where(part, regime=regime), "num_nodes"):
            cells = []
            for method in NAMES:
                runs = where(part, regime=regime, num_nodes=num, method=method)
                cells.append(short(interval([rate / alone() for rate in rates(runs)])) if runs else "–")
            body.append([regime, f"{int(num):,}", *cells])
    return table(["regime", "nodes", *NAMES.values()], body)


def crossings(found: Sequence[Row], regime: str, nbytes: str, shards: str, server: str, reduced: str) -> tuple[float, float] | None:
    """Between which numbers of nodes a server falls behind an all-reduce; None: nowhere."""
    part = where(found, part="crossing", regime=regime, nbytes=nbytes)
    sizes = sorted(map(int, values(part, "num_nodes")))
    faster = []
    for num in sizes:
        ours = rates(where(part, method=server, shards=shards, num_nodes=num))
        theirs = rates(where(part, method=reduced, num_nodes=num))
        faster.append(ratio(ours, theirs).mean >= 1)
    if all(faster):
        return None
    last = max((k for k, yes in enumerate(faster) if yes), default=-1)
    return (sizes[last] if last >= 0 else 1), sizes[last + 1] if last + 1 < len(sizes) else math.inf


def saturation(nbytes: float, shards: int) -> float:
    """How many equal nodes keep a server busy: the cycle of one over what an update takes of the busiest resource of the server."""
    per_update = max(nbytes / LINK, 1e-5 + nbytes * PER_BYTE) / shards
    return (compute_seconds() + 2 * (LATENCY + nbytes / LINK)) / per_update


def crossing(found: Sequence[Row]) -> str:
    """The first number of nodes at which a server is slower than an all-reduce."""

    def cell(regime: str, nbytes: str, shards: str, server: str, reduced: str) -> str:
        at = crossings(found, regime, nbytes, shards, server, reduced)
        if at is None:
            return "never"
        return f"≤ {at[1]:g}" if at[0] == 1 else f"{at[1]:g}"

    body = []
    part = where(found, part="crossing", method="asgd")
    for regime in values(part, "regime"):
        for nbytes in values(part, "nbytes"):
            for shards in values(part, "shards"):
                pairs = (("ssgd_server", "ssgd"), ("asgd", "ssgd"), ("asgd", "hetgrad"))
                cells = [cell(regime, nbytes, shards, *pair) for pair in pairs]
                body.append([regime, f"{float(nbytes) / 1e6:g} MB", shards, f"{saturation(float(nbytes), int(shards)):.0f}", *cells])
    head = ["regime", "model", "server's machines", "busy with", "SSGD: server < all-reduce", "ASGD < SSGD", "ASGD < split by speed"]
    return table(head, body)


def thirty(found: Sequence[Row]) -> str:
    """Speed-up of n-softsync with 30 learners."""
    part = where(found, part="thirty")
    methods = values(part, "method")
    body = []
    for shards in values(part, "shards"):
        for nbytes in values(where(part, shards=shards), "nbytes"):
            rate_of = {m: rates(where(part, shards=shards, nbytes=nbytes, method=m)) for m in methods}
            cells = [short(interval([rate / alone(128) for rate in rate_of[m]])) for m in methods]
            asynchronous = change(ratio(rate_of["softsync 30"], rate_of["ssgd_server"]))
            body.append([shards, f"{communication(nbytes):.2f}", *cells, asynchronous])
    named = [f"n = {m.split()[1]}" if " " in m else "SSGD" for m in methods]
    return table(["server's machines", "pull and push / gradient", *named, "ASGD (n = 30) over SSGD"], body)


def communication(nbytes: str) -> float:
    """Of a pull and a push, over the time of a gradient of 128 samples."""
    return 2 * float(nbytes) / LINK / compute_seconds(128)


def allocation(found: Sequence[Row]) -> str:
    """What a split gains in samples/s over equal batches once it is settled, in the first 200 versions, and when LB-BSP has settled."""
    part = where(found, part="allocation")
    methods = [m for m in values(part, "method") if m != "ssgd"]
    body = []
    for regime in values(part, "regime"):
        for num in values(where(part, regime=regime), "num_nodes"):
            here = where(part, regime=regime, num_nodes=num)
            even = where(here, method="ssgd")
            cells = [change(ratio(rates(where(here, method=m)), rates(even))) for m in methods]
            ours = where(here, method="lb_bsp")
            first = change(ratio(rates(ours, "first_samples_per_second"), rates(even, "first_samples_per_second")))
            body.append([regime, num, *cells, first, f"{np.median(rates(ours, 'settled_at')):.0f}"])
    head = [*(f"`{m}`" for m in methods), "`lb_bsp`, first 200 versions", "`lb_bsp` settled after"]
    return table(["regime", "nodes", *head], body)


def costs(found: Sequence[Row], regime: str, words: Sequence[str], needed: float) -> list[float]:
    """The least (1 + S/b) · seconds of a version of b gradients, over the sizes b of a method, by seed."""
    part = where(found, part="waiting", regime=regime)
    every = [
        [(1 + needed / float(method.split()[1])) * seconds for seconds in rates(where(part, method=method), "seconds_per_version")]
        for method in values(part, "method")
        if method in words or method.split()[0] in words
    ]
    return [min(of_seed) for of_seed in zip(*every, strict=True)]


def waiting(found: Sequence[Row]) -> str:
    """m-synchronous SGD's time over the best that the first gradients of a version allow."""
    body = []
    for regime in values(where(found, part="waiting"), "regime"):
        for words, label in WAITING:
            cells = [f"{ratio(costs(found, regime, words, s), costs(found, regime, ('stops',), s)):.2f}" for s in NEEDED]
            body.append([regime, label, *cells])
    return table(["regime", "method", *(f"S = {s:g} N" for s in NEEDED)], body)


def main(given: Sequence[str] | None = None) -> None:
    folder: Path = arguments(__doc__, HERE, given).folder
    found = rows(folder / "results.csv")
    write_tables(folder, [part(found) for part in (scaling, crossing, thirty, allocation, waiting)])


if __name__ == "__main__":
    main()
