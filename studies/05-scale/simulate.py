"""Simulate what is missing in results.csv: python simulate.py [--quick] [--folder FOLDER]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from cases import HERE, LINK, SHARE, cluster, compute_seconds, first_gradients, simulate
from common import Runs, arguments
from tqdm import tqdm

SEEDS = 5
FOUND = [
    "samples_per_second",
    "first_samples_per_second",
    "settled_at",
    "seconds_per_version",
    "staleness_mean",
    "staleness_max",
    "idle_share",
]
SIZES = (8, 32, 128, 512, 2048, 10_000)
LARGEST = {"racks": 512}
"""Of clusters on which a server's messages are simulated one by one, by regime."""
SCALED = ("ssgd", "hetgrad", "local_sgd", "ssgd_server", "m_sync 0.9", "asgd", "softsync 4")
RATIOS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
SERVERS = ("ssgd_server", "asgd", "softsync", "m_sync", "rennala")
ALLOCATIONS = ("ssgd", "lb_bsp", "dbs", "omnilearn", "optperf", "hetgrad")
WAITS = (
    *(f"{word} {part}" for word in ("m_sync", "m_stops") for part in (0.25, 0.5, 0.75, 0.9, 1)),
    *(f"rennala {part}" for part in (0.25, 0.5, 1, 2, 4)),
    *(f"stops {part}" for part in (0.25, 0.5, 0.75, 0.9, 1, 2, 4, 8)),
)


@dataclass(frozen=True)
class Run:
    """What identifies a run: to which part of the study it belongs, and its world."""

    part: str
    regime: str
    method: str
    num_nodes: int
    nbytes: float = 4e6
    shards: int = 8
    share: int = SHARE
    num_updates: int = 60
    seed: int = 0

    def make(self) -> Mapping[str, object]:
        """Simulate it."""
        on = cluster(self.regime, self.num_nodes, self.seed, shards=self.shards, links=self.part != "waiting")
        word, _, number = self.method.partition(" ")
        if word in ("stops", "m_stops"):
            count = round(float(number) * self.num_nodes)
            each = 1 if word == "m_stops" else count
            seconds = first_gradients(on, count, each=each, seed=self.seed, num_versions=self.num_updates)
            found = dict.fromkeys(FOUND, "")
            return found | {"seconds_per_version": seconds, "samples_per_second": count * self.share / seconds}
        summary, commits = simulate(self.method, on, seed=self.seed, num_updates=self.num_updates, nbytes=self.nbytes, share=self.share)
        shown = {name: summary[name] for name in ("staleness_mean", "staleness_max", "idle_share")}
        return shown | {
            "samples_per_second": commits.rate(0.5),
            "first_samples_per_second": commits.rate(0.0, 1 / 3),
            "settled_at": commits.settled(),
            "seconds_per_version": commits.seconds[-1] / self.num_updates,
        }


def updates(method: str, num: int, rounds: int) -> int:
    """How many versions are `rounds` gradients of each node."""
    word, _, number = method.partition(" ")
    if word == "asgd":
        return rounds * num
    if word == "softsync":
        return rounds * num // (num // int(number))
    return rounds if word in SERVERS else 60


def scaling(sizes: Sequence[int]) -> Iterator[Run]:
    """Methods by number of nodes, a model of 4 MB, a server of eight machines."""
    for regime, num, method in product(("equal", "unequal", "stragglers", "racks"), sizes, SCALED):
        if method.split()[0] not in SERVERS or num <= LARGEST.get(regime, 10_000):
            yield Run("scaling", regime, method, num, num_updates=updates(method, num, 10 if num < 2048 else 4))


def crossing(sizes: Sequence[int]) -> Iterator[Run]:
    """Where a server loses to an all-reduce, by the size of the model and the machines of the server."""
    for regime, nbytes, shards, num, method in product(
        ("equal", "unequal"), (4e5, 4e6, 4e7), (1, 4, 16), sizes, ("ssgd", "hetgrad", "ssgd_server", "asgd")
    ):
        if method in SERVERS or shards == 1:
            yield Run("crossing", regime, method, num, nbytes, shards, num_updates=updates(method, num, 10))


def thirty(ratios: Sequence[float]) -> Iterator[Run]:
    """n-softsync with 30 learners and 128 samples each, by the time of a pull and a push over that of a gradient."""
    for ratio, shards, method in product(
        ratios,
        (1, 4, 30),
        ("softsync 1", "softsync 2", "softsync 5", "softsync 15", "softsync 30", "ssgd_server"),
    ):
        nbytes = ratio * compute_seconds(128) * LINK / 2
        yield Run("thirty", "equal", method, 30, nbytes, shards, 128, num_updates=updates(method, 30, 40))


def allocation(sizes: Sequence[int]) -> Iterator[Run]:
    """Splits of the batch behind a barrier."""
    for regime, num, method in product(("equal", "1:2", "1:4", "unequal", "stragglers", "spells"), sizes, ALLOCATIONS):
        if num <= 64 or regime in ("unequal", "stragglers"):
            yield Run("allocation", regime, method, num, 4e5, num_updates=600)


def waiting() -> Iterator[Run]:
    """The fastest m of 64, or the first b gradients of a version, where messages cost nothing."""
    for regime, method in product(("equal", "exponential", "unequal", "stragglers", "1:20"), WAITS):
        yield Run("waiting", regime, method, 64, 4.0, 1, num_updates=60)


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True)
    sizes = (8, 64) if asked.quick else SIZES
    crossed = (4, 64) if asked.quick else tuple(2**k for k in range(1, 10))
    plan = [
        *scaling(sizes),
        *crossing(crossed),
        *thirty(RATIOS[1::2] if asked.quick else RATIOS),
        *allocation((8,) if asked.quick else (8, 64, 512)),
        *waiting(),
    ]
    if asked.quick:
        plan = [run for run in plan if run.part == "scaling" or run.regime in ("equal", "unequal")]
    runs = Runs(asked.folder / "results.csv", [*asdict(plan[0])], FOUND)
    for seed, one in tqdm(list(product(range(2 if asked.quick else SEEDS), plan)), disable=None):
        run = Run(**(asdict(one) | {"seed": seed}))
        runs.row(asdict(run), run.make)


if __name__ == "__main__":
    main()
