"""How many samples of the next global batch of B each worker takes."""

from hetsim.policies.allocation.adaptive_tasks import AdaptiveTasks
from hetsim.policies.allocation.base import Allocation, Even, Fixed, Static, proportional
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import Periodic, ProportionalController, SpeedProportional

__all__ = [
    "AdaptiveTasks",
    "Allocation",
    "Even",
    "Fixed",
    "GradualShift",
    "OptPerf",
    "Periodic",
    "ProportionalController",
    "SpeedProportional",
    "Static",
    "proportional",
]
