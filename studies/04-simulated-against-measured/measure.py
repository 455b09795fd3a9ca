"""Measure every method on every cluster in real processes: python measure.py [--clusters NAME …] [--folder FOLDER] [--limit N] …

It appends what results.csv has not yet, a run a row. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cases import HERE, LAUNCHED, METHODS, REPEATS, SECONDS, Cluster, append_row, chosen, missing, row_of, run_words
from containers import busy, run_in_containers, run_on_hosts

import hetsim


def measure(cluster: Cluster, method: str, words: Sequence[str], folder: Path) -> None:
    """Train in real processes, and leave the files of the run in the folder."""
    words = [f"cluster={cluster.name}", *words, "backend=dist"]
    if cluster.kind in LAUNCHED:
        words = [*words, "backend.emulate=none", f"hydra.run.dir={folder}", "--config-dir", str(HERE / "conf")]
        launch(cluster, METHODS[method], "hetsim.cli.main", words)
    else:
        emulate = {"padded": "pad", "quotas": "quota"}[cluster.kind]
        hetsim.run(*words, f"backend.emulate={emulate}", config_dir=HERE / "conf", folder=folder)


def launch(cluster: Cluster, with_server: bool, module: str, words: Sequence[str]) -> None:
    """A command on all hosts, or in all containers, of a cluster, beside its other program."""
    with busy(cluster.background):
        if cluster.kind == "containers":
            run_in_containers(cluster.shares[: None if with_server else -1], module, words)
        else:
            run_on_hosts(cluster.mbits[: None if with_server else -1], module, words)


def parsed(about: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options that predictions and measurements share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE, help="of the tables")
    parser.add_argument("--clusters", nargs="*", default=[], help="all if none is given")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each run trains")
    parser.add_argument("--limit", type=int, help="end after so many runs")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    given.folder = given.folder.resolve()
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the file lacks."""
    given = parsed(__doc__, arguments)
    path = given.folder / "results.csv"
    lacking = missing(path, chosen(given.clusters), given.methods, given.repeats)
    for cluster, method, repeat in lacking[: given.limit]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            measure(cluster, method, run_words(cluster, method, repeat, given.seconds), folder)
            row = row_of(folder, cluster, method, repeat)
            append_row(path, row)
            print(f"{cluster.name} {method} {repeat}: {row['updates_per_second']} updates/s", flush=True)


if __name__ == "__main__":
    main()
