"""The tables of 02 from results.csv: python evaluate.py [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from cases import BARE, DECAYED, HERE, Run
from common import Interval, Row, arguments, change, gain, interval, ratio, rows, table, write_tables
from train import LOCAL, LOCAL_RATE, MAIN, Setting, common, of, tuned
from training import TUNING_SEEDS

WORLD = ("model, data", "links", "speeds", "ratio", "epochs")
NAMES = {"mlp 10000": "MLP", "digits": "MLP, digits", "digits lenet": "LeNet, digits", "cifar10 10000": "LeNet, CIFAR-10"}


@dataclass(frozen=True)
class Results:
    """The runs of the study: comparisons of two methods in a regime, by pairs of runs of the same seed."""

    table: Sequence[Row]

    @cached_property
    def regimes(self) -> dict[Run, list[str]]:
        """Those in which methods are trained in virtual time, with their methods, in the order of the runs."""
        found: dict[Run, list[str]] = {}
        for row in self.table:
            if row["workload"] != "phantom" and row["backend"] == "sim" and int(row["seed"]) not in TUNING_SEEDS:
                methods = found.setdefault(regime(row), [])
                if row["method"] not in methods:
                    methods.append(row["method"])
        return found

    def runs(self, one: Run, setting: Setting) -> list[Row]:
        """Those that count of a method in a regime, by seed."""
        found = (row for row in of(self.table, one) if (float(row["momentum"]), float(row["rate"]), float(row["local_rate"])) == setting)
        return sorted((row for row in found if int(row["seed"]) not in TUNING_SEEDS), key=lambda row: int(row["seed"]))

    def numbers(self, one: Run, method: str, name: str, *, best: bool = True) -> list[float]:
        """A column of them, at the tuned setting or at the common one; of time alone there is one setting."""
        one = replace(one, method=method)
        if one.workload == "phantom":
            return [float(row[name]) for row in self.runs(one, (0.0, 0.0, 0.0))]
        return [float(row[name]) for row in self.runs(one, tuned(self.table, one) if best else common(method))]

    def ratio(self, one: Run, ours: str, theirs: str, name: str, *, best: bool = True) -> Interval:
        """Of losses and of samples per second."""
        return ratio(*(self.numbers(one, method, name, best=best) for method in (ours, theirs)))

    def difference(self, one: Run, ours: str, theirs: str, name: str, *, best: bool = True) -> Interval:
        """Of accuracies."""
        pairs = zip(*(self.numbers(one, method, name, best=best) for method in (ours, theirs)), strict=True)
        return interval([mine - other for mine, other in pairs])

    def timed(self) -> list[Run]:
        """The clusters of which time alone is simulated, in the order of the runs."""
        return list(dict.fromkeys(regime(row) for row in self.table if row["workload"] == "phantom"))

    def centre(self) -> Run:
        """The regime in which all variants are trained, the first one."""
        return next(iter(self.regimes))


def regime(row: Row) -> Run:
    """A row's, without its method, setting and seed."""
    kinds = {"num_nodes": int, "epochs": int, "ratio": float}
    names = [field.name for field in fields(Run) if field.name not in ("method", "rate", "seed", "momentum", "local_rate")]
    return Run(method="", **{name: kinds.get(name, str)(row[name]) for name in names})  # type: ignore[operator]


def world(one: Run) -> list[str]:
    """A regime, as the first cells of a table's row."""
    return [f"{NAMES[one.workload]}, {one.data}", one.links, one.speeds, f"{one.ratio:g}", str(one.epochs)]


def speed(results: Results) -> str:
    """Samples per second by links, spread of speeds and ratio, with eight nodes."""
    body = []
    for one in results.timed():
        if one.num_nodes == 8 and not one.speeds.endswith(("steady", "noisy")):
            server = one.links != "ring"
            pairs = (("od_sgd", "ssgd"), ("od_sgd", "asgd"), ("od_sgd split", "ssgd split"), ("od_sgd split", "asgd"))
            cells = [change(results.ratio(one, *pair, "samples_per_second")) if server or pair[1] != "asgd" else "–" for pair in pairs]
            body.append([one.links, one.speeds, f"{one.ratio:g}", *cells])
    head = ["`od_sgd` over `ssgd`", "over `asgd`", "`od_sgd` split over `ssgd` split", "over `asgd`"]
    return table(["links", "speeds", "ratio", *head], body)


def slices(results: Results) -> str:
    """Samples per second of OD-SGD over ASGD's on equal nodes, by noise, number of nodes and links."""
    equal = [one for one in results.timed() if one.speeds.startswith("1:1") and one.links != "ring"]
    ratios = sorted({one.ratio for one in equal})
    body = []
    for one in dict.fromkeys(replace(one, ratio=0.0) for one in equal):
        cells = [change(results.ratio(replace(one, ratio=ratio), "od_sgd", "asgd", "samples_per_second")) for ratio in ratios]
        word = one.speeds.partition(" ")[2]
        body.append([str(one.num_nodes), {"steady": "none", "noisy": "50 %"}.get(word, "10 %"), one.links, *cells])
    return table(["nodes", "noise", "links", *(f"ratio {ratio:g}" for ratio in ratios)], body)


def against(results: Results, theirs: str) -> str:
    """OD-SGD against another method: losses and accuracies at equal epochs and at equal time, and samples per second."""
    body = []
    for one, methods in results.regimes.items():
        if theirs in methods:
            cells = [change(results.ratio(one, "od_sgd", theirs, "loss", best=best)) for best in (True, False)]
            cells.append(change(results.ratio(one, "od_sgd", theirs, "loss_halfway")))
            cells += [gain(results.difference(one, "od_sgd", theirs, "accuracy", best=best)) for best in (True, False)]
            cells += [change(results.ratio(one, "od_sgd", theirs, "loss_at_time"))]
            cells += [gain(results.difference(one, "od_sgd", theirs, "accuracy_at_time"))]
            cells += [change(results.ratio(one, "od_sgd", theirs, "samples_per_second"))]
            body.append([*world(one), *cells])
    head = ["loss, tuned", "loss, common", "loss, tuned, halfway", "accuracy, tuned", "accuracy, common"]
    head += ["loss, equal time", "accuracy, equal time", f"samples/s of `od_sgd` over `{theirs}`"]
    return table([*WORLD, *head], body)


def suffix(method: str) -> str:
    """By which a method's name says with which settings it was run."""
    return next((end for end in (BARE, DECAYED) if method.endswith(end)), "")


def varied(results: Results) -> list[tuple[Run, str, str]]:
    """The variants that were trained in two of the regimes: without a local step, compensations, other settings; and SSGD with the same."""
    found = []
    for one, methods in results.regimes.items():
        for method in methods if any(map(suffix, methods)) else ():
            if method != "asgd" and not method.startswith("ssgd"):
                found.append((one, method, "ssgd" + suffix(method)))
    return found


def variants(results: Results) -> str:
    """Each variant against SSGD and against plain OD-SGD with the same settings."""
    body = []
    for one, method, base in varied(results):
        cells = [change(results.ratio(one, method, base, "loss", best=best)) for best in (True, False)]
        cells += [gain(results.difference(one, method, base, "accuracy", best=best)) for best in (True, False)]
        cells.append(change(results.ratio(one, method, base, "loss_at_time")))
        cells.append(gain(results.difference(one, method, base, "accuracy_at_time")))
        plain = "od_sgd" + suffix(method)
        cells.append("–" if method == plain else change(results.ratio(one, method, plain, "loss")))
        cells.append(f"{np.mean(results.numbers(one, base, 'loss')):.3f}")
        body.append([str(one.epochs), f"`{method}`", f"`{base}`", *cells])
    head = ["over", "loss, tuned", "loss, common", "accuracy, tuned", "accuracy, common", "loss, equal time", "accuracy, equal time"]
    head += ["loss over `od_sgd`'s, tuned", "loss of SSGD"]
    return table(["epochs", "method", *head], body)


def local_rates(results: Results) -> str:
    """Loss and accuracy by local rate, at one rate; 0 is Pipe-SGD."""
    body = []
    for local, found in local_losses(results):
        loss = interval([float(row["loss"]) for row in found])
        accuracy = interval([float(row["accuracy"]) for row in found])
        body.append([f"{local:g}", f"{local / LOCAL_RATE:g}", f"{loss:.3f}", f"{accuracy:.3f}"])
    return table(["local rate", "over the rate", "loss", "accuracy"], body)


def local_losses(results: Results) -> list[tuple[float, list[Row]]]:
    """The runs by local rate."""
    one = results.centre()
    pairs = [("pipe_sgd", 0.0), *(("od_sgd", local) for local in LOCAL)]
    found = [(local, results.runs(replace(one, method=method), (0.9, LOCAL_RATE, local))) for method, local in pairs]
    return [(local, runs) for local, runs in found if len(runs) > 1]


def levels(results: Results) -> str:
    """What the ratios are of: settings, losses, accuracies."""
    body = []
    for one, methods in results.regimes.items():
        for method in methods:
            momentum, rate, local = tuned(results.table, replace(one, method=method))
            setting = f"{momentum:g}, {rate:g}" + f", {local:g}" * bool(local)
            cells = [f"{np.mean(results.numbers(one, method, 'loss', best=best)):.3f}" for best in (True, False)]
            cells += [f"{np.mean(results.numbers(one, method, 'accuracy', best=best)):.3f}" for best in (True, False)]
            cells += [f"{np.mean(results.numbers(one, method, 'worst_class')):.2f}"]
            staleness = f"{np.mean(results.numbers(one, method, 'staleness_mean')):.2f}"
            body.append([*world(one), f"`{method}`", setting, *cells, staleness])
    head = ["method", "momentum, rate, local rate", "loss, tuned", "common", "accuracy, tuned", "common", "worst class", "mean delay"]
    return table([*WORLD, *head], body)


def measured(results: Results) -> str:
    """The decisive runs in processes, and the same ones simulated."""
    body = []
    found = [regime(row) for row in results.table if row["backend"] == "dist"]
    for one in dict.fromkeys(found):
        for method in MAIN[:3]:
            mine = replace(one, method=method)
            real = results.runs(mine, tuned(results.table, mine))
            seeds = {row["seed"] for row in real}
            virtual = [row for row in results.runs(replace(mine, backend="sim"), tuned(results.table, mine)) if row["seed"] in seeds]
            pairs = {name: [[float(row[name]) for row in side] for side in (real, virtual)] for name in ("samples_per_second", "loss")}
            rate, loss = pairs["samples_per_second"], pairs["loss"]
            same = sum(a == b for a, b in zip(*loss, strict=True))
            cells = [f"{np.mean(side):,.0f}" for side in rate] + [change(ratio(*rate)), change(ratio(*loss)), f"{same} of {len(real)}"]
            body.append([one.speeds, f"{one.ratio:g}", f"`{method}`", *cells])
    head = [
        "method",
        "samples/s, measured",
        "simulated",
        "measured over simulated",
        "final loss, measured over simulated",
        "of the same loss",
    ]
    return table(["speeds", "ratio", *head], body)


def decided(results: Results) -> str:
    """What OD-SGD gains in processes and in simulation, over the same seeds."""
    body = []
    for one in dict.fromkeys(regime(row) for row in results.table if row["backend"] == "dist"):
        count = len(results.numbers(one, "od_sgd", "loss"))
        for theirs in ("ssgd", "asgd"):
            cells = []
            for name in ("samples_per_second", "loss"):
                for backend in ("dist", "sim"):
                    sides = [results.numbers(replace(one, backend=backend), method, name)[:count] for method in ("od_sgd", theirs)]
                    cells.append(change(ratio(*sides)))
            body.append([one.speeds, f"{one.ratio:g}", f"`{theirs}`", *cells])
    return table(["speeds", "ratio", "`od_sgd` over", "samples/s, measured", "simulated", "final loss, measured", "simulated"], body)


def main(given: Sequence[str] | None = None) -> None:
    folder: Path = arguments(__doc__, HERE, given).folder
    results = Results(rows(folder / "results.csv"))
    tables = [speed(results), slices(results), against(results, "ssgd"), against(results, "asgd")]
    if varied(results):
        tables.append(variants(results))
    if local_losses(results):
        tables.append(local_rates(results))
    tables.append(levels(results))
    if any(row["backend"] == "dist" for row in results.table):
        tables += [measured(results), decided(results)]
    write_tables(folder, tables)


if __name__ == "__main__":
    main()
