"""How many samples of the next global batch of B each worker takes."""

from hetsim.policies.allocation.adaptive_tasks import AdaptiveTasks
from hetsim.policies.allocation.base import Allocation, Even, Fixed, proportional
from hetsim.policies.allocation.gradual_shift import GradualShift
from hetsim.policies.allocation.optperf import OptPerf
from hetsim.policies.allocation.periodic import Periodic, ProportionalController, SpeedProportional
from hetsim.policies.allocation.static import Static

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
