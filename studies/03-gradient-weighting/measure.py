"""Train where weights change most in real processes: python measure.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what measured.csv has not yet. Eight processes on a padded cluster; times are stretched, so that padding hides the computing
of a few cores. --quick does nothing: processes take a while to start.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import arguments
from real import fill
from train import GRID, HERE
from training import Run

STRETCH = 20.0


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    if not asked.quick:
        world = Run("mlp 10000", 8, "1:16", "shared", method="", epochs=4)
        fill(asked.folder, GRID, [world], ("static", "hetgrad", "ssgd"), asked.data_root, by=STRETCH)


if __name__ == "__main__":
    main()
