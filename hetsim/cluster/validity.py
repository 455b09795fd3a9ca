"""The validity of a calibrated cluster: its times hold for the workload with which they were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 3
"""The maximum number of doubts in a warning."""
KNOWN_ERROR, KNOWN_RUNS = 0.10, 4
"""The root mean square of 60 errors on six clusters (studies/04-simulated-against-measured), and the number of runs that it counts as."""
QUANTILES = (2.132, 2.015, 1.943, 1.895)
"""The 95 % quantiles of Student's t with 4, 5, 6 and 7 degrees of freedom."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How the times of a cluster were measured, and how large their errors are. It does not change any time."""

    date: str
    machine: str
    workload: str
    num_parameters: int
    """The length of a gradient, including the statistics of a model's buffers."""
    samples: tuple[int, int]
    """The smallest and the largest measured batch."""
    dtype: str
    torch: str
    threads: int
    device: str
    error: float
    """The mean relative error of the `tried` predictions. Without any, the error of gradients' times at batch sizes outside the fit."""
    tried: tuple[tuple[str, float], ...] = ()
    """Methods with the signed relative errors of their predicted updates per second, from real runs at the end of the calibration."""
    composed: tuple[str, ...] = ()
    """The calibrated clusters from which the nodes were taken; empty: the cluster was measured as a whole."""
    doubts: tuple[str, ...] = ()
    """Reasons not to trust the times, a clause for each node and reason."""

    @property
    def spread(self) -> float:
        """The factor between a measured rate and its prediction, up or down, that is not exceeded with a probability of 90 %.

        The logarithm of the ratio is assumed to be normal with a mean of zero. Its variance combines earlier studies and the `tried`
        methods.
        """
        tried = [math.log1p(error) for _, error in self.tried] or [math.log1p(self.error)]
        variance = (KNOWN_RUNS * KNOWN_ERROR**2 + math.fsum(log_ratio**2 for log_ratio in tried)) / (KNOWN_RUNS + len(tried))
        return math.exp(QUANTILES[min(len(tried), len(QUANTILES) - 1)] * math.sqrt(variance))

    @property
    def doubtful(self) -> str | None:
        """A warning for every prediction that uses these times; None if they are trustworthy."""
        if not self.doubts:
            return None
        more = f" (and {len(self.doubts) - SHOWN} more)" if len(self.doubts) > SHOWN else ""
        return f"the calibration is not trustworthy: {'; '.join(self.doubts[:SHOWN])}{more}: calibrate again while no other program runs"

    def workload_warning(self, *, workload: str | None, num_parameters: int, dtype: str, shares: Sequence[int]) -> str | None:
        """A warning if a run differs from what was measured. `workload` is None for a phantom, which stands for any workload."""
        shares = [share for share in shares if share] or self.samples
        return self._sentence(
            (f"workload {self.workload}", workload in (None, self.workload), workload),
            (f"{self.num_parameters} parameters", num_parameters == self.num_parameters, num_parameters),
            (f"dtype {self.dtype}", dtype == self.dtype, dtype),
            (f"{self.samples[0]} to {self.samples[1]} samples a gradient", self._covers(shares), _range(shares)),
        )

    def process_warning(self, *, torch: str, threads: int, device: str) -> str | None:
        """A warning if real processes compute in another way than the measured processes."""
        return self._sentence(
            (f"PyTorch {self.torch}", torch == self.torch, torch),
            (f"threads={self.threads}", threads == self.threads, threads),
            (f"device={self.device}", device.partition(":")[0] == self.device.partition(":")[0], device),
        )

    def _covers(self, shares: Sequence[int]) -> bool:
        return self.samples[0] <= min(shares) and max(shares) <= self.samples[1]

    def _sentence(self, *properties: tuple[str, bool, object]) -> str | None:
        """A warning from properties (measured value, whether it holds, this run's value); None if all hold."""
        differences = [f"{measured} (here {current})" for measured, holds, current in properties if not holds]
        if not differences:
            return None
        return f"the cluster was calibrated with {_join(differences)}, so its times may be wrong here: calibrate again with what you train"


def _range(shares: Sequence[int]) -> str:
    return f"{min(shares)}" if min(shares) == max(shares) else f"{min(shares)} to {max(shares)}"


def _join(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])
