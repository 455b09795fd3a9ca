"""Check a Team's arguments: an allocation, which may be given by name, and the ranks' bounds."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim import checks
from hetsim.ddp.exchange import Control
from hetsim.policies.allocation import Allocation, Even, GradualShift, OptPerf, ProportionalController, SpeedProportional

RULES: dict[str, Allocation] = {
    "dbs": SpeedProportional(reallocate_every=5, smoothing=0.5, dead_band=0.05),
    "dbs_per_epoch": SpeedProportional(reallocate_every="epoch"),
    "even": Even(),
    "lb_bsp": GradualShift(),
    "omnilearn": ProportionalController(reallocate_every=5),
    "optperf": OptPerf(),
}
"""Allocations by their names in hetsim's configs. Rules that decide every k steps decide every five here, by the time of all five."""


def allocation_of(given: str | Allocation) -> Allocation:
    """The allocation with this name, or the given one. Raises ValueError for an allocation that a Team cannot use."""
    if isinstance(given, str):
        if given not in RULES:
            raise ValueError(f"allocation must be {', '.join(RULES)} or an Allocation, not {given!r}{checks.suggestion(given, RULES)}")
        return RULES[given]
    if not isinstance(given, Allocation):
        raise ValueError(f"allocation must be a name or an Allocation, not {checks.shown(given)}")
    if given.leaves_out:
        raise ValueError(
            f"{type(given).__name__} may leave out ranks, and DistributedDataParallel needs a batch of each: "
            "take allocation='dbs' or 'optperf'"
        )
    if given.repetitions:
        raise ValueError(
            f"{type(given).__name__} with repetitions={given.repetitions} measures before the run, and a Team in it alone: "
            "take allocation='dbs' or 'optperf', or repetitions=0"
        )
    return given


def bounds_of(max_samples: int | Sequence[int] | None, control: Control, batch_size: int) -> tuple[int, ...] | None:
    """The maximum samples of each rank; None without bounds. A rank gives its own bound or the bounds of all ranks."""
    if isinstance(max_samples, Sequence):
        if len(max_samples) != control.size:
            raise ValueError(f"max_samples has {len(max_samples)} numbers for {control.size} ranks: give one for each, or this rank's own")
        max_samples = max_samples[control.rank]
    own = 0 if max_samples is None else checks.whole("max_samples", max_samples)
    bounds = [bound for (bound,) in control.gather([own])]
    return tuple(bound or batch_size for bound in bounds) if any(bounds) else None
