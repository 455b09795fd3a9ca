"""Calibrate the clusters that are not padded, each once: python calibrate.py [--clusters NAME …] [--seconds S]

It writes calibrated/cluster/NAME.yaml; a cluster that was calibrated is not calibrated again. From the third round on, a calibration that
says that it is not trustworthy is made once more, unless another program is part of the cluster. Links are calibrated twice, among the
workers and around a server, as hosts under a launcher are. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cases import HERE, LAUNCHED, METHODS, Cluster, chosen
from measure import launch


def calibrate(cluster: Cluster, method: str, file: Path, seconds: float) -> None:
    """Write the cluster as it is measured, with the links and the quotas that are given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    words = [
        str(file),
        "--config-dir",
        str(HERE / "conf"),
        "--seconds",
        str(seconds),
        f"cluster={cluster.name}",
        *cluster.words,
        f"method={method}",
    ]
    if cluster.kind in LAUNCHED:
        launch(cluster, METHODS[method], "hetsim.cli.calibrate", [*words, "backend.emulate=none"])
    else:
        subprocess.run((sys.executable, "-m", "hetsim.cli.calibrate", *words, "backend.emulate=quota"), check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate what was not yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each phase measures")
    given = parser.parse_args(arguments)
    with contextlib.chdir(HERE):  # a calibrated cluster names its files as it is named itself
        for cluster in chosen(given.clusters):
            if cluster.kind == "padded":
                continue
            for method in ("ssgd", "asgd"):
                folder, name = cluster.described(method)
                file = folder / "cluster" / f"{name}.yaml"
                if not file.exists():
                    calibrate(cluster, method, file, given.seconds)
                    if cluster.round >= 3 and not cluster.background and "not trustworthy" in file.read_text().lower():
                        calibrate(cluster, method, file, given.seconds)


if __name__ == "__main__":
    main()
