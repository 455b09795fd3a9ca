"""Train where DBS-SGD loses and gains most in real processes: python measure.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what measured.csv has not yet. Nine processes on a padded cluster; times are stretched, so that padding hides the computing
of a few cores. --quick does nothing: processes take a while to start.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import arguments
from real import fill
from train import GRID, HERE, PAPERS
from training import Run


def regimes() -> list[Run]:
    """Data of all where speeds differ, and data that go with two kinds of machines."""
    return [Run("mlp 10000", 8, speeds, data, method="", epochs=2) for speeds, data in (("1:20", "shared"), ("half 1:20", "by speed"))]


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    if not asked.quick:
        fill(asked.folder, GRID, regimes(), PAPERS, asked.data_root)


if __name__ == "__main__":
    main()
