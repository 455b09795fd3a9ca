"""The allocations that a Team knows by name."""

from __future__ import annotations

from hetsim import checks
from hetsim.policies.allocation import Allocation, Even, GradualShift, OptPerf, ProportionalController, SpeedProportional

RULES: dict[str, Allocation] = {
    "dbs": SpeedProportional(reallocate_every=5, smoothing=0.5, dead_band=0.05),
    "dbs_per_epoch": SpeedProportional(reallocate_every="epoch"),
    "even": Even(),
    "lb_bsp": GradualShift(),
    "omnilearn": ProportionalController(reallocate_every=5),
    "optperf": OptPerf(),
}
"""By the names that they have in hetsim's configs. Rules that decide every k steps decide every five, by the time of all five."""


def allocation_of(given: str | Allocation) -> Allocation:
    """The allocation of this name, or the given one; ValueError with one sentence for what a Team cannot take."""
    if isinstance(given, str):
        if given not in RULES:
            raise ValueError(f"allocation must be {', '.join(RULES)} or an Allocation, not {given!r}{checks.suggestion(given, RULES)}")
        return RULES[given]
    if not isinstance(given, Allocation):
        raise ValueError(f"allocation must be a name or an Allocation, not {checks.shown(given)}")
    if given.repetitions:
        raise ValueError(
            f"{type(given).__name__} with repetitions={given.repetitions} measures before the run, and a Team in it alone: "
            "take allocation='dbs' or 'optperf', or repetitions=0"
        )
    return given
