"""Train LeNet on CIFAR-10 where speeds differ most: python convolutions.py [--quick] [--data-root FOLDER] [--folder FOLDER]

It appends what convolutions.csv has not yet: the papers' methods, ASGD and DANA, tuned as in train.py but for one seed less.
--quick does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from common import Runs, arguments
from compositions import OF_THE_PAPERS, PILOT, PLAIN
from tqdm import tqdm
from train import FOUND, HERE, OTHERS, Trial, Tuning
from training import CachedCIFAR10

from hetsim.workloads.task import Workload

SHOWN = tuple(str(made) for made in (*(PLAIN[name] for name in (*OF_THE_PAPERS, "asgd")), PILOT))


@dataclass(frozen=True)
class Convolution(Trial):
    """With another model, on other images, for longer, as it is at its beginning for long."""

    @property
    def seconds(self) -> float:
        """The time that twenty epochs take if no node ever waits."""
        return 5 * super().seconds

    def workload(self, data_root: str) -> Workload:
        return CachedCIFAR10(model="lenet", data_root=data_root, num_samples=self.num_samples)


def regimes() -> list[Trial]:
    """Two kinds of machines, with data of all."""
    return [Convolution(10000, 8, "half 1:20", "shared")]


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__, HERE, given, runs=True, data=True)
    if asked.quick:
        return
    try:
        regimes()[0].workload(asked.data_root).check()
    except ValueError as error:
        raise SystemExit(f"{error} (here by --data-root FOLDER)") from None
    tuning = Tuning(Runs(asked.folder / "convolutions.csv", [*asdict(regimes()[0])], FOUND), asked.data_root, others=OTHERS[:1])
    for regime in regimes():
        for composition in tqdm(SHOWN, disable=None):
            tuning.tune(regime, composition, "everywhere")
        tuning.report(regime, SHOWN)


if __name__ == "__main__":
    main()
