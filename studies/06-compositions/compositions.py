"""What a method is made of, as a value: when versions are made, how the batch is split, what counts how much, what is done about delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.base import Coordination
from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.coordination.table_server import TableServer
from hetsim.policies.admission import Admission, Barrier, EveryGradient, Malenia, Ringleader, Ringmaster, SoftSync
from hetsim.policies.admission.bounds import BoundedStaleness
from hetsim.policies.allocation import Even, SpeedProportional, Static
from hetsim.policies.allocation.base import Allocation
from hetsim.policies.compensation import AdaptiveDelayCompensation, Compensation, Dana, GapAware, NoCompensation
from hetsim.policies.weighting import (
    DelayAdaptive,
    Discount,
    InverseStaleness,
    NoDiscount,
    PerSample,
    PerWorker,
    PerWorkerMean,
    Rescaled,
    Weighting,
)
from hetsim.workloads.task import OptimizerRecipe, Recipe

SPLITS: Mapping[str, Allocation] = {"even": Even(), "static": Static(), "dbs": SpeedProportional()}
WEIGHTS: Mapping[str, Weighting] = {"means": PerWorker(), "samples": PerSample()}
DISCOUNTS: Mapping[str, Discount] = {"inverse_staleness": InverseStaleness(), "delay_adaptive": DelayAdaptive(), "rescaled": Rescaled()}
UNTOUCHED = "no correction"
ANY = (UNTOUCHED, "inverse_staleness", "delay_adaptive", "dc_adaptive")
"""What may be done about delays wherever there are any."""
ALONE = ("gap_aware", "dana")
"""Compensations that assume plain steps along each gradient, so that nothing else weights it."""
LOCAL_STEPS = {0.0: 1.0, 0.9: 2.0}
"""The rate of OD-SGD's local step over the global one, by the momentum of the global one."""
WARM_UP = 5
"""Versions of synchronous SGD before a delay of one step."""
ADMISSIONS = ("every_gradient", "softsync", "ssp", "ringmaster", "malenia", "ringleader")
"""When a server makes a version of what arrives."""
CORRECTIONS: Mapping[str, tuple[str, ...]] = {
    "every_gradient": (*ANY, "rescaled", *ALONE),
    "softsync": ANY,
    "ssp": (*ANY, *ALONE),
    "ringmaster": (*ANY, *ALONE),
}
"""By admission, what may be done about delays; elsewhere no gradient is late, or nothing may."""
VERSIONS = ("barrier", "one_step_delay", "od_sgd", *ADMISSIONS)
"""When versions are made: behind a barrier, the same one step later without and with a local step, or by a server."""
MOMENTA = (0.0, 0.9)


@dataclass(frozen=True)
class Composition:
    """One choice on each axis."""

    versions: str
    split: str = "even"
    weights: str = "means"
    delays: str = UNTOUCHED

    def __str__(self) -> str:
        return ", ".join(astuple(self))

    @property
    def label(self) -> str:
        """The choices that are not the plainest."""
        return " + ".join([self.versions, *(one for one in astuple(self)[1:] if one not in ("even", "means", UNTOUCHED))])

    @classmethod
    def of(cls, text: str) -> Composition:
        """From what str gives."""
        return cls(*text.split(", "))

    @property
    def momenta(self) -> tuple[float, ...]:
        """That it is tuned with; DANA's are its own."""
        return MOMENTA[1:] if self.delays == "dana" else MOMENTA

    def coordination(self, num_workers: int, rate: float, momentum: float) -> Coordination:
        """hetsim's, with its policies; the rate and momentum are for the compensations that need them."""
        common = {"allocation": SPLITS[self.split], "weighting": WEIGHTS[self.weights]}
        if self.versions == "barrier":
            return SynchronousAllReduce(admission=Barrier(), **common)
        if self.versions == "one_step_delay":
            return DelayedAllReduce(admission=Barrier(), warm_up=WARM_UP, **common)
        if self.versions == "od_sgd":
            return DelayedParameterServer(admission=Barrier(), warm_up=WARM_UP, **common)
        if self.versions == "malenia" and self.weights == "means":
            common["weighting"] = PerWorkerMean()
        server = TableServer if self.versions == "ringleader" else ParameterServer
        return server(
            admission=admission(self.versions, num_workers),
            discount=DISCOUNTS.get(self.delays, NoDiscount()),
            compensation=compensation(self.delays, rate, momentum),
            **common,
        )

    def optimizer(self, rate: float, momentum: float) -> OptimizerRecipe:
        """SGD; DANA's momenta are its own."""
        return sgd(rate, 0.0 if self.delays == "dana" else momentum)

    def local_optimizer(self, rate: float, momentum: float) -> OptimizerRecipe | None:
        """Of OD-SGD."""
        return sgd(rate * LOCAL_STEPS[momentum], 0.0) if self.versions == "od_sgd" else None


def sgd(rate: float, momentum: float) -> OptimizerRecipe:
    return OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": rate, "momentum": momentum}))


def admission(name: str, num_workers: int) -> Admission:
    """By its name: softsync of four gradients, a bound of 3 steps, gradients that are less than N versions old."""
    return {
        "every_gradient": EveryGradient(),
        "softsync": SoftSync(n=max(1, num_workers // 4)),
        "ssp": BoundedStaleness(bound=3),
        "ringmaster": Ringmaster(max_delay=num_workers),
        "malenia": Malenia(),
        "ringleader": Ringleader(),
    }[name]


def compensation(name: str, rate: float, momentum: float) -> Compensation:
    if name == "dc_adaptive":
        return AdaptiveDelayCompensation(strength=2.0, decay=0.95)
    if name == "gap_aware":
        return GapAware(learning_rate=rate, momentum=momentum)
    if name == "dana":
        return Dana(momentum=0.9, learning_rate=rate)
    return NoCompensation()


def corrections(versions: str) -> tuple[str, ...]:
    """What may be done about delays."""
    return CORRECTIONS.get(versions, (UNTOUCHED,))


def weights(versions: str, split: str, delays: str) -> tuple[str, ...]:
    """What may count how much; with equal batches that is the same."""
    return ("means",) if split == "even" or versions == "ringleader" or delays in ALONE else tuple(WEIGHTS)


PLAIN = {
    "ssgd": Composition("barrier"),
    "hetgrad": Composition("barrier", "static", "samples"),
    "od_sgd": Composition("od_sgd"),
    "asgd": Composition("every_gradient"),
    "softsync": Composition("softsync"),
    "dbs_sgd": Composition("every_gradient", "dbs"),
}
"""The methods of the four papers, and those that they compare with."""
PILOT = Composition("every_gradient", delays="dana")
"""What a pilot of this study had found on shared data, as it was published."""
OF_THE_PAPERS = ("hetgrad", "od_sgd", "dbs_sgd")


def named(composition: str) -> str:
    """The method's name, if it is a plain one, or what it is made of."""
    return {str(made): name for name, made in (*PLAIN.items(), ("dana", PILOT))}.get(composition, Composition.of(composition).label)
