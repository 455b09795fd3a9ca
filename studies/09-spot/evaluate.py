"""The tables of 09 from results.csv and measured.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence

from cases import HERE, INTERVAL, MIXES, ON_DEMAND, SERVER, SERVERS
from common import Row, arguments, rows, table, where, write_tables

NAMES = {
    "ssgd": "SSGD, all-reduce", "ssgd_torchrun": "SSGD, torchrun restarts", "local_sgd": "local SGD, 10 steps",
    "ssgd_server": "SSGD, server", "asgd": "ASGD, server", "ssp": "SSP, server", "softsync": "2-softsync, server",
}  # fmt: skip


def values(found: Sequence[Row], name: str) -> list[str]:
    """The different values of a column, in order."""
    return list(dict.fromkeys(row[name] for row in found))


def numbers(found: Sequence[Row], name: str) -> list[float]:
    """A column, by starts."""
    return [float(row[name]) for row in found]


def mean(found: Sequence[Row], name: str) -> float:
    """Of a column over starts."""
    return sum(numbers(found, name)) / len(found)


def spread(found: Sequence[Row], name: str, digits: int) -> str:
    """The mean of a column over starts, with the extremes if there are several."""
    each = numbers(found, name)
    extremes = f" ({min(each):,.{digits}f} … {max(each):,.{digits}f})" if len(each) > 1 else ""
    return f"{mean(found, name):,.{digits}f}{extremes}"


def costs(found: Sequence[Row], trace: str) -> str:
    """Dollars and hours of each method and mix; the cheapest mix is bold."""
    body = []
    for method, name in NAMES.items():
        runs = {mix: where(found, trace=trace, method=method, mix=mix, interval=INTERVAL) for mix in MIXES}
        cheapest = min(MIXES, key=lambda mix: mean(runs[mix], "dollars"))
        paid = [f"**{spread(runs[mix], 'dollars', 0)}**" if mix == cheapest else spread(runs[mix], "dollars", 0) for mix in MIXES]
        body.append([name, *paid, *(spread(runs[mix], "hours", 1) for mix in MIXES)])
    return table([f"{trace}: dollars and hours", *(f"{mix}, $" for mix in MIXES), *(f"{mix}, h" for mix in MIXES)], body)


def even(on_demand: Sequence[Row], spot: Sequence[Row], method: str) -> float:
    """The price of a spot node over one on demand at which both mixes cost the same."""
    rate = SERVER if method in SERVERS else 0.0
    paid = mean(on_demand, "dollars") - rate * mean(spot, "hours") - ON_DEMAND * mean(spot, "on_demand_hours")
    return paid / (ON_DEMAND * mean(spot, "spot_hours"))


def survival(found: Sequence[Row]) -> str:
    """What losses did to jobs on spot nodes alone, and up to which spot price these are cheaper."""
    body = []
    for trace in values(found, "trace"):
        for method, name in NAMES.items():
            of = {mix: where(found, trace=trace, method=method, mix=mix, interval=INTERVAL) for mix in MIXES}
            spot = of["spot"]
            begun_again = sum(number > 0 for number in numbers(spot, "restarts"))
            losses = ["–", "–", "–"]
            if method not in SERVERS:
                losses = [f"{begun_again} of {len(spot)}", f"{mean(spot, 'restarts'):.1f}", f"{100 * mean(spot, 'repeated'):.1f} %"]
            prices = [f"{100 * even(of['on demand'], of[mix], method):.0f} %" for mix in ("spot", "half")]
            body.append([trace, name, *losses, *prices])
    head = ["trace", "method", "jobs that began again", "restarts of a job", "samples repeated", "spot pays up to", "half pays up to"]
    return table(head, body)


def checkpoints(found: Sequence[Row]) -> str:
    """torchrun's restarts on spot nodes alone, by the time between checkpoints."""
    body = []
    part = where(found, method="ssgd_torchrun", mix="spot")
    for interval in sorted(values(part, "interval"), key=float):
        cells = [f"{float(interval) / 60:g} min"]
        for trace in values(part, "trace"):
            runs = where(part, trace=trace, interval=interval)
            cells += [f"{mean(runs, 'dollars'):,.0f}", f"{mean(runs, 'hours'):.1f}", f"{100 * mean(runs, 'repeated'):.1f} %"]
        body.append(cells)
    columns = [f"{trace}, {what}" for trace in values(part, "trace") for what in ("$", "h", "repeated")]
    return table(["a checkpoint every", *columns], body)


def measured(found: Sequence[Row]) -> str:
    """The real job that was killed: medians of its repeats, with the extremes."""
    names = {
        "step_seconds": "a step", "save_seconds": "a checkpoint of 205 MB to a local disk", "to_begin": "kill → rank 0 runs again",
        "to_ready": "kill → the checkpoint is loaded", "to_step": "kill → the first step is made",
    }  # fmt: skip
    body = []
    for name, shown in names.items():
        each = sorted(numbers(found, name))
        body.append([shown, f"{each[len(each) // 2]:.2f} ({each[0]:.2f} … {each[-1]:.2f})"])
    return table(["a real job of three ranks, one killed", "seconds, median of three (extremes)"], body)


def main(given: Sequence[str] | None = None) -> None:
    folder = arguments(__doc__, HERE, given).folder
    found, real = rows(folder / "results.csv"), rows(folder / "measured.csv")
    tables = [*(costs(found, trace) for trace in values(found, "trace")), survival(found), checkpoints(found)]
    write_tables(folder, [*tables, *([measured(real)] if real else [])])


if __name__ == "__main__":
    main()
