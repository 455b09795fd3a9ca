"""What is predicted and measured: twenty-eight clusters in nine rounds, ten methods, each run's words, and what it leaves in a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetsim.files.summary_and_curve import read_summary
from hetsim.results.comparison.time_use import COMPONENTS, time_use

HERE = Path(__file__).resolve().parent
SECONDS = 6.0
"""How long a run trains."""
REPEATS = 5
METHODS = {
    # whether it has a server
    "ssgd": False,
    "dbs_sgd": True,
    "hetgrad": False,
    "local_sgd": False,
    "abs_sgd": False,
    "od_sgd": True,
    "asgd": True,
    "ssp": True,
    "softsync": True,
    "dc_asgd": True,
}
LENET = ("workload=digits", "workload.model=lenet", "workload.resize=28")
SMALL = ("workload=digits", "workload.model=lenet", "workload.resize=16")
WIDE = ("workload=digits", "+workload.model_options.hidden=[400,200]")
MIDDLE = ("workload=digits", "workload.model=lenet", "workload.resize=20")
DEEP = ("workload=digits", "+workload.model_options.hidden=[256,256,128]")
LARGE = ("workload=digits", "+workload.model_options.hidden=[500,250]")
HALF = ("workload=digits", "workload.model=lenet", "workload.resize=24")
BROAD = ("workload=digits", "+workload.model_options.hidden=[600,120]")
MLP = ("workload=digits", "+workload.model_options.hidden=[300,300]")


LAUNCHED = ("links", "containers")
"""Kinds whose processes somebody else starts, so that they are calibrated once among the workers and once around the server."""


@dataclass(frozen=True)
class Cluster:
    """Of which kind one is, its name in `conf`, the words of its runs, and when it was predicted and measured: in which round."""

    name: str
    kind: str
    words: tuple[str, ...]
    mbits: tuple[int, ...] = ()
    """The rates of the hosts' links in Mbit/s, the server's last."""
    round: int = 1
    shares: tuple[float, ...] = ()
    """The quotas of containers, of one core, the server's last."""
    background: float = 0.0
    """How much of a core another program takes, all the time."""

    @property
    def held_out(self) -> bool:
        """Whether nothing of hetsim was developed with it in view."""
        return "held_out" in self.name or self.round >= 3

    def described(self, method: str) -> tuple[Path, str]:
        """The folder of configs, within the study's, and the name of the cluster that predict a method: as given, or as calibrated."""
        if self.kind == "padded":
            return Path("conf"), self.name
        side = ("_server" if METHODS[method] else "_workers") if self.kind in LAUNCHED else ""
        return Path("calibrated"), self.name + side


CLUSTERS = (
    Cluster("padded", "padded", ("workload=digits", "batch_size=256")),
    Cluster("padded_held_out", "padded", ("workload=digits", "batch_size=320")),
    Cluster("quotas", "quotas", (*LENET, "batch_size=96")),
    Cluster("quotas_held_out", "quotas", (*LENET, "batch_size=160")),
    Cluster("links", "links", (*LENET, "batch_size=192"), (200, 100, 50, 200)),
    Cluster("links_held_out", "links", (*LENET, "batch_size=96"), (120, 120, 30, 80)),
    Cluster("quotas_held_out_2", "quotas", (*LENET, "batch_size=128"), round=2),
    Cluster("links_held_out_2", "links", (*LENET, "batch_size=128"), (90, 90, 45, 120), round=2),
    Cluster("containers", "containers", (*MLP, "batch_size=768"), round=3, shares=(0.5, 0.3, 0.15, 0.4)),
    Cluster("containers_busy", "containers", (*LENET, "batch_size=160"), round=3, shares=(0.4, 0.25, 0.25, 0.12, 0.3), background=0.25),
    Cluster("links_3", "links", (*MLP, "batch_size=768"), (140, 70, 70, 110), round=3),
    Cluster("links_3_busy", "links", (*LENET, "batch_size=240"), (100, 100, 40, 90), round=3, background=0.3),
    Cluster("containers_4", "containers", (*SMALL, "batch_size=200"), round=4, shares=(0.5, 0.45, 0.2, 0.35)),
    Cluster("containers_4_busy", "containers", (*WIDE, "batch_size=512"), round=4, shares=(0.45, 0.35, 0.3, 0.15, 0.4), background=0.2),
    Cluster("links_4", "links", (*LENET, "batch_size=144"), (160, 80, 50, 120), round=4),
    Cluster("links_4_busy", "links", (*WIDE, "batch_size=600"), (110, 60, 60, 80), round=4, background=0.35),
    Cluster("containers_5", "containers", (*MIDDLE, "batch_size=180"), round=5, shares=(0.55, 0.3, 0.25, 0.45)),
    Cluster("links_5", "links", (*LENET, "batch_size=120"), (150, 60, 60, 100), round=5),
    Cluster("containers_6", "containers", (*LARGE, "batch_size=480"), round=6, shares=(0.5, 0.35, 0.2, 0.4)),
    Cluster("links_6", "links", (*MIDDLE, "batch_size=168"), (130, 80, 45, 110), round=6),
    Cluster("containers_7_busy", "containers", (*DEEP, "batch_size=640"), round=7, shares=(0.35, 0.35, 0.2, 0.2, 0.4), background=0.25),
    Cluster("links_7_busy", "links", (*LARGE, "batch_size=576"), (120, 100, 50, 90), round=7, background=0.3),
    Cluster("containers_8", "containers", (*MIDDLE, "batch_size=240"), round=8, shares=(0.6, 0.4, 0.25, 0.5)),
    Cluster("links_8", "links", (*DEEP, "batch_size=512"), (140, 90, 60, 100), round=8),
    Cluster("containers_9", "containers", (*HALF, "batch_size=216"), round=9, shares=(0.55, 0.4, 0.3, 0.45)),
    Cluster("links_9", "links", (*BROAD, "batch_size=540"), (150, 110, 70, 130), round=9),
    Cluster("containers_9_busy", "containers", (*BROAD, "batch_size=600"), round=9, shares=(0.4, 0.4, 0.25, 0.2, 0.45), background=0.2),
    Cluster("links_9_busy", "links", (*HALF, "batch_size=180"), (100, 80, 50, 110), round=9, background=0.25),
)
COLUMNS = (
    "cluster", "method", "repeat", "updates_per_second", *COMPONENTS, "mean_staleness", "contributions_by_staleness", "num_updates",
    "seconds",
)  # fmt: skip
Row = Mapping[str, str]


def run_words(cluster: Cluster, method: str, repeat: int, seconds: float) -> list[str]:
    """The words that a prediction and its measurement share."""
    return [
        f"method={method}", *cluster.words, f"seed={repeat}", "budget.epochs=null", f"budget.seconds={seconds}",
        "evaluate_every_epochs=1e9", "stop_when_diverged=false", "pictures=false", "trace=full",
    ]  # fmt: skip


def row_of(folder: Path, cluster: Cluster, method: str, repeat: int) -> dict[str, Any]:
    """What a finished run says, as a row of a table: rates, shares of the workers' time from 0 to 1, and staleness."""
    summary = read_summary(folder)
    use = time_use(folder, summary)
    assert use is not None
    counts = use.staleness
    mean = sum(value * count for value, count in counts.items()) / max(1, sum(counts.values()))
    numbers = [summary["updates_per_second"], *use.shares, mean]
    by_staleness = " ".join(f"{value}:{count}" for value, count in sorted(counts.items()))
    values = [cluster.name, method, repeat, *(f"{number:.5g}" for number in numbers), by_staleness, use.num_updates, f"{use.seconds:.4f}"]
    return dict(zip(COLUMNS, values, strict=True))


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """One more row at the end of a file, which begins with the columns' names."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def missing(path: Path, clusters: Iterable[Cluster], methods: Sequence[str], repeats: int) -> list[tuple[Cluster, str, int]]:
    """The runs that a file has not yet: a repeat of all methods after the other, so that slow changes touch all."""
    done = {(row["cluster"], row["method"], row["repeat"]) for row in read_rows(path)}
    return [
        (cluster, method, repeat)
        for cluster in clusters
        for repeat in range(repeats)
        for method in methods
        if (cluster.name, method, str(repeat)) not in done
    ]


def chosen(names: Sequence[str]) -> list[Cluster]:
    """The clusters of these names; all if there are none."""
    return [cluster for cluster in CLUSTERS if not names or cluster.name in names]
