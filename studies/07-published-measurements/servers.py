"""Compare both predictions for two servers with the measurements, and predict more servers by the rule that deals out whole variables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from predict import HERE, MOST, NUMS_OF_SERVERS, ONE, OWN, SERVER_OF_P100, dealt_out, measured
from rules import Numbers, Simulated, quantile
from variables import BYTES, MODELS, Cost, fitted

TWO_SERVERS = HERE / "async_ps_throughput_two_servers.csv"
PREDICTED_ON = "2026-11-26"


class Point(NamedTuple):
    """A measurement with two servers, the prediction that was committed before, and that of the rule."""

    gpu: str
    model: str
    num_workers: int
    measured: float
    committed: float
    low: float
    high: float
    dealt_out: float

    @property
    def covered(self) -> bool:
        """Whether the measurement is in the committed interval."""
        return self.low <= self.measured <= self.high


def cost_of(simulated: Simulated) -> Cost:
    """Fitted to the P100s' times at one server."""
    return fitted({model: simulated.service_seconds[OWN, "P100", model] for model in MODELS})


def points(folder: Path, simulated: Simulated) -> list[Point]:
    """The 32 measurements with what was predicted for them."""
    cost = cost_of(simulated)
    with (folder / "second_server.csv").open(encoding="utf-8", newline="") as file:
        committed = {
            (row["gpu"], row["model"], int(row["num_workers"])): (float(row["two_servers"]), float(row["low"]), float(row["high"]))
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        }
    found = []
    for series in measured(TWO_SERVERS):
        gpu, model = series.ends.gpu, series.ends.model
        rates = simulated.rates[OWN, gpu, model, dealt_out(cost, model, 2)]
        for workers, (truth, rate) in enumerate(zip(series.rates, rates, strict=True), start=1):
            found.append(Point(gpu, model, workers, truth, *committed[gpu, model, workers], rate))
    return found


def write_compared(path: Path, found: list[Point]) -> None:
    """Every point with both relative errors."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [*Point._fields[:4], "two_servers", "low", "high", "relative_error", "covered", "dealt_out", "dealt_out_relative_error"]
        )
        for one in found:
            committed = [f"{one.committed:.4g}", f"{one.low:.4g}", f"{one.high:.4g}", f"{one.committed / one.measured - 1:.4f}"]
            rule = [f"{one.dealt_out:.4g}", f"{one.dealt_out / one.measured - 1:.4f}"]
            writer.writerow([*one[:3], f"{one.measured:.6g}", *committed, int(one.covered), *rule])


def spread(relative: Numbers) -> str:
    """Mean and median size of the errors, and their range, as cells of a table."""
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in (relative.min(), relative.max()))
    sizes = np.abs(relative)
    return f"{100 * sizes.mean():.1f} % | {100 * np.median(sizes):.1f} % | {low} … {high} %"


def table_of_errors(found: list[Point]) -> list[str]:
    """Both predictions by series; half of an update on each server was committed."""
    lines = [
        "| series | halves: mean | median | errors | in the interval | whole variables: mean | median | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model in [*dict.fromkeys(one.model for one in found), None]:
        ours = [one for one in found if model in (one.model, None)]
        halves, whole = (np.array([getattr(one, name) / one.measured - 1 for one in ours]) for name in ("committed", "dealt_out"))
        name = "all" if model is None else f"{ours[0].gpu} {model}"
        inside = sum(one.covered for one in ours)
        lines.append(f"| {name} | {spread(halves)} | {inside} of {len(ours)} | {spread(whole)} |")
    return lines


def table_of_shares(simulated: Simulated) -> list[str]:
    """What the fit says of one server, and what the busiest of several has."""
    cost, only_bytes = cost_of(simulated), Cost(0, 1)
    shares = " | ".join(f"time, {num}" for num in NUMS_OF_SERVERS)
    lines = [f"| model | variables | MB | S, ms | fitted, ms | bytes, 2 servers | {shares} |", "|---" * (6 + len(NUMS_OF_SERVERS)) + "|"]
    for model, variables in MODELS.items():
        megabytes = BYTES * sum(variable.size for variable in variables) / 1e6
        times = (simulated.service_seconds[OWN, "P100", model], cost.seconds(variables))
        ours = " | ".join(f"{1e3 * seconds:.1f}" for seconds in times)
        largest = [only_bytes.largest_share(model, 2), *(cost.largest_share(model, num) for num in NUMS_OF_SERVERS)]
        lines.append(f"| {model} | {len(variables)} | {megabytes:.1f} | {ours} | " + " | ".join(f"{share:.3f}" for share in largest) + " |")
    return lines


def more_servers(simulated: Simulated) -> Iterator[tuple[str, str, int, float, list[float], list[float]]]:
    """GPU, model, number of servers, the busiest one's share, and the rates with 1 … 8 workers with one server and with all."""
    cost = cost_of(simulated)
    for gpu, candidate, nums in (("P100", OWN, NUMS_OF_SERVERS[1:]), ("K80", SERVER_OF_P100, (2,))):
        for model in MODELS:
            for num in nums:
                servers = dealt_out(cost, model, num)
                alone, rates = (simulated.rates[candidate, gpu, model, which] for which in (ONE, servers))
                yield gpu, model, num, servers.largest_share, alone, rates


def write_more_servers(path: Path, simulated: Simulated, found: list[Point]) -> None:
    """A prediction of what nobody here has seen; its intervals have the width of the rule's errors with two servers."""
    factor = math.exp(quantile(np.abs(np.log([one.measured / one.dealt_out for one in found]))))
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# Predicted on {PREDICTED_ON} from measurements with one server, before any comparison. Steps/s.\n")
        file.write("# The intervals have the width of the errors with two servers and P100 workers.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["gpu", "model", "num_servers", "num_workers", "largest_share", "predicted", "low", "high", "gain"])
        for gpu, model, num, share, alone, rates in more_servers(simulated):
            for workers, (before, rate) in enumerate(zip(alone, rates, strict=True), start=1):
                numbers = (rate, rate / factor, rate * factor, rate / before)
                writer.writerow([gpu, model, num, workers, share, *(f"{number:.4g}" for number in numbers)])


def table_of_more_servers(path: Path) -> list[str]:
    """The committed predictions for four and for eight workers."""
    lines = ["| series | servers | busiest server's share | 4 workers | interval | 8 workers | interval | gain |", "|---" * 8 + "|"]
    with path.open(encoding="utf-8", newline="") as file:
        rows = {
            (row["gpu"], row["model"], row["num_servers"], int(row["num_workers"])): row
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        }
    for (gpu, model, num, workers), most in rows.items():
        if workers == MOST:
            cells = [f"{row['predicted']} | {row['low']} … {row['high']}" for row in (rows[gpu, model, num, 4], most)]
            gain = f"{100 * (float(most['gain']) - 1):+.0f} %"
            lines.append(f"| {gpu} {model} | {num} | {most['largest_share']} | {cells[0]} | {cells[1]} | {gain} |")
    return lines


def compared(folder: Path, simulated: Simulated) -> list[list[str]]:
    """Write second_server_compared.csv, and more_servers.csv if it is missing; the tables of both."""
    found = points(folder, simulated)
    write_compared(folder / "second_server_compared.csv", found)
    predictions = folder / "more_servers.csv"
    if not predictions.exists():  # a prediction is not revised
        write_more_servers(predictions, simulated, found)
    return [table_of_errors(found), table_of_shares(simulated), table_of_more_servers(predictions)]
