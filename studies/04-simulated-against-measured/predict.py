"""Predict every method on every cluster by simulation: python predict.py [--clusters NAME …] [--folder FOLDER] …

It appends what predictions.csv has not yet, seeds 0 to 4 of each. Commit that file before anything is measured.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cases import HERE, append_row, chosen, missing, row_of, run_words
from measure import parsed

import hetsim


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate what the file lacks."""
    given = parsed(__doc__, arguments)
    path = given.folder / "predictions.csv"
    for cluster, method, repeat in missing(path, chosen(given.clusters), given.methods, given.repeats):
        folder, name = cluster.described(method)
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(HERE):  # the files that calibrated clusters name are relative to it
            words = [f"cluster={name}", *run_words(cluster, method, repeat, given.seconds)]
            run = hetsim.run(*words, config_dir=folder, folder=Path(place) / "run")
            append_row(path, row_of(run.folder, cluster, method, repeat))


if __name__ == "__main__":
    main()
