"""Which gradients the server applies, and which workers it releases."""

from hetsim.policies.admission.base import Admission, Decision, EveryGradient
from hetsim.policies.admission.bounds import BoundedStaleness, ClockState, Ringmaster, RingmasterStops
from hetsim.policies.admission.groups import ArrivalState, Backup, Barrier, Buffer, Grouped, SoftSync
from hetsim.policies.admission.on_time import Malenia, Rennala, RennalaStops
from hetsim.policies.admission.ringleader import Mean, Ringleader, RoundState

__all__ = [
    "Admission",
    "ArrivalState",
    "Backup",
    "Barrier",
    "BoundedStaleness",
    "Buffer",
    "ClockState",
    "Decision",
    "EveryGradient",
    "Grouped",
    "Malenia",
    "Mean",
    "Rennala",
    "RennalaStops",
    "Ringleader",
    "Ringmaster",
    "RingmasterStops",
    "RoundState",
    "SoftSync",
]
