"""What 02 runs: clusters by the ratio of communication to computing, methods, and a run: its time alone, training, or real processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import training
from real import in_processes, stretched
from training import BATCH, FOUND

from hetsim.cluster import Cluster, Network, NodeSpec, Server
from hetsim.cluster.distributions import Distribution
from hetsim.coordination.all_reduce import SynchronousAllReduce
from hetsim.coordination.base import Coordination
from hetsim.coordination.delayed_all_reduce import DelayedAllReduce
from hetsim.coordination.delayed_server import DelayedParameterServer
from hetsim.coordination.parameter_server import ParameterServer
from hetsim.policies.admission import Barrier, EveryGradient
from hetsim.policies.allocation import Static
from hetsim.policies.compensation import AdaptiveDelayCompensation, DelayCompensation
from hetsim.policies.weighting import PerSample
from hetsim.runtime.budget import Budget
from hetsim.runtime.experiment import Experiment
from hetsim.sim import Simulation
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.phantom import PhantomWorkload
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload

HERE = Path(__file__).resolve().parent
SHARE = 32
"""Samples of an equal share where only time is simulated."""
PER_SAMPLE = 1e-3
"""Seconds of the fastest node."""
NUM_PARAMETERS = {
    "mlp": 784 * 32 + 32 + 32 * 10 + 10,
    "digits": 64 * 32 + 32 + 32 * 10 + 10,
    "digits lenet": 21_386,
    "cifar10 10000": 136_886,
}
"""Of the models, by the first word of the workload, or all of it: what a message carries. Where nothing is trained, it is the first."""
NUM_ROUNDS = 300
"""Gradients of each node where only time is simulated."""
WARM_UP = 20
"""Updates of synchronous SGD before the delay begins, in training; none where only time is simulated."""
STRETCH = 2.0
"""How many times longer everything takes in real processes than in the simulation, so that padding hides the computing of a few cores."""
NOISE = {"steady": None, "noisy": 0.5}
"""The deviation of the log of a gradient's time, by the second word of a regime; 0.1 without one."""


def slowness(regime: str, num: int) -> list[float]:
    """How many times as long as the fastest each node takes, the slowest first; `steady` and `noisy` regimes are of equal nodes."""
    found = training.speeds(regime.partition(" ")[0] if regime.endswith(tuple(NOISE)) else regime, num)
    return [max(found) / speed for speed in found]


def cluster(regime: str, num: int, links: str, ratio: float, *, nbytes: float, share: int) -> Cluster:
    """So many nodes, on links by which the communication of a synchronous step takes `ratio` times the fastest node's gradient.

    That is a push, an update and a pull, on links of one's own (private) or on one link in each direction that all share (shared), or an
    all-reduce (ring).
    """
    seconds = ratio * share * PER_SAMPLE
    deviation = NOISE.get(regime.partition(" ")[2], 0.1)
    noise = None if deviation is None else Distribution("lognorm", {"s": deviation})
    one_way = nbytes / (seconds / 2)
    described = {"uplink_bytes_per_second": num * one_way, "downlink_bytes_per_second": num * one_way} if links == "shared" else {}
    fastest = {"private": one_way, "shared": num * one_way, "ring": 2 * (num - 1) * nbytes / (num * seconds)}
    return Cluster(
        name=regime,
        nodes=tuple(NodeSpec(seconds_per_sample=PER_SAMPLE * slow, noise=noise) for slow in slowness(regime, num)),
        network=Network(latency_seconds=0.0, bytes_per_second=fastest[links], sharing="none"),
        server=Server(seconds_per_update=1e-4, **described),
    )


def delayed(run: Run, **policies: Any) -> Coordination:
    """A delay of one step, around a server or on a ring."""
    kind = DelayedAllReduce if run.links == "ring" else DelayedParameterServer
    return kind(admission=Barrier(), warm_up=0 if run.workload == "phantom" else WARM_UP, **policies)


def synchronous(run: Run, **policies: Any) -> Coordination:
    """Synchronous SGD, around a server or on a ring."""
    kind = SynchronousAllReduce if run.links == "ring" else ParameterServer
    return kind(admission=Barrier(), **policies)


CONSTANT, ADAPTIVE = DelayCompensation(strength=0.04), AdaptiveDelayCompensation(strength=2.0, decay=0.0)
SPLIT = {"allocation": Static(), "weighting": PerSample()}
BARE, DECAYED = " without momentum", " decayed"
"""At the end of a method's name: the same method with other settings; with rates of a tenth in the last third of the epochs."""
METHODS: Mapping[str, Callable[[Run], Coordination]] = {
    "ssgd": synchronous,
    "ssgd split": partial(synchronous, **SPLIT),
    "asgd": lambda _: ParameterServer(admission=EveryGradient()),
    "pipe_sgd": delayed,
    "od_sgd": delayed,
    "od_sgd split": partial(delayed, **SPLIT),
    "od_sgd constant, previous": partial(delayed, compensation=CONSTANT),
    "od_sgd constant, used": partial(delayed, compensation=CONSTANT, against="used"),
    "od_sgd adaptive, previous": partial(delayed, compensation=ADAPTIVE),
    "od_sgd adaptive, used": partial(delayed, compensation=ADAPTIVE, against="used"),
}


@dataclass(frozen=True)
class Run(training.Run):
    """What identifies a run; `phantom` is no training, in virtual time (sim) or in padded processes (dist)."""

    links: str = "private"
    ratio: float = 1.0
    momentum: float = 0.0
    local_rate: float = 0.0
    backend: str = "sim"

    def cluster(self) -> Cluster:
        """Its nodes and links."""
        share = SHARE if self.workload == "phantom" else BATCH // self.num_nodes
        return cluster(self.speeds, self.num_nodes, self.links, self.ratio, nbytes=4 * self.num_parameters, share=share)

    @property
    def num_parameters(self) -> int:
        """Of the model."""
        return NUM_PARAMETERS.get(self.workload) or NUM_PARAMETERS["mlp"]

    def load(self, data_root: str) -> Workload:
        """Besides the workloads of other studies, LeNet on digits."""
        return Digits(model="lenet") if self.workload == "digits lenet" else super().load(data_root)

    @property
    def num_samples(self) -> int:
        """Of the training set."""
        return 1437 if self.workload.startswith("digits") else super().num_samples

    @property
    def schedule(self) -> Recipe | None:
        """Of both rates."""
        if not self.method.endswith(DECAYED):
            return None
        return Recipe("torch.optim.lr_scheduler.StepLR", {"step_size": 2 * self.epochs // 3, "gamma": 0.1})

    @property
    def local_optimizer(self) -> OptimizerRecipe | None:
        """Of OD-SGD's local step."""
        if not self.method.startswith("od_sgd"):
            return None
        sgd = Recipe("torch.optim.SGD", {"lr": self.local_rate})
        return OptimizerRecipe(sgd, self.schedule, key="local_optimizer", schedule_key="local_learning_rate_schedule")

    @property
    def ideal_seconds(self) -> float:
        """The equal time: when the faster of OD-SGD and ASGD would have done the epochs, without noise and warm-up."""
        alone = [BATCH / self.num_nodes * PER_SAMPLE * slow for slow in slowness(self.speeds, self.num_nodes)]
        message = self.ratio * min(alone)
        one_step_delay = BATCH / max(*alone, message)
        asynchronous = sum(BATCH / self.num_nodes / (seconds + message) for seconds in alone)
        return self.epochs * self.num_samples / max(one_step_delay, asynchronous)

    def coordination(self) -> Coordination:
        """Its method."""
        return METHODS[self.method.removesuffix(BARE).removesuffix(DECAYED)](self)

    def make(self, data_root: str) -> Mapping[str, object]:
        """Run it; what FOUND names, and nothing for what such a run has not."""
        if self.workload == "phantom":
            return dict.fromkeys(FOUND, "") | self.time()
        if self.backend == "sim":
            return training.train(self, self.coordination(), data_root, momentum=self.momentum)
        return dict.fromkeys(FOUND, "") | self.measure(data_root)

    def time(self) -> Mapping[str, object]:
        """Simulate its time alone."""
        rounds = NUM_ROUNDS * self.num_nodes if self.method == "asgd" else NUM_ROUNDS
        experiment = Experiment(
            method=self.method.partition(" ")[0],
            coordination=self.coordination(),
            cluster=self.cluster(),
            workload=PhantomWorkload(num_parameters=self.num_parameters, num_samples=100 * SHARE * self.num_nodes),
            optimizer=OptimizerRecipe(Recipe("torch.optim.SGD", {"lr": 0.1})),
            local_optimizer=self.local_optimizer,
            budget=Budget(updates=rounds),
            batch_size=SHARE * self.num_nodes,
            seed=self.seed,
            trace="none",
            pictures=False,
            evaluate_every_epochs=1e9,
        )
        return _timed(Simulation(experiment).run())

    def measure(self, data_root: str) -> Mapping[str, object]:
        """Train in processes, one for each node and the server, that hold each result until it is due; samples/s as if not stretched."""
        experiment = training.experiment(self, self.coordination(), data_root, momentum=self.momentum)
        experiment = replace(
            experiment, cluster=stretched(self.cluster(), STRETCH), evaluate_every_epochs=self.epochs, evaluate_every_seconds=None
        )
        summary, _ = in_processes(experiment, f"{self.method}, {self.speeds}, seed {self.seed}")
        final, timed = summary["final"], _timed(summary)
        per_second = STRETCH * summary["samples_per_second"]
        return timed | {"samples_per_second": per_second, "loss": final["train_loss"], "accuracy": final["test_accuracy"]}


def _timed(summary: Mapping[str, object]) -> dict[str, object]:
    return {name: summary[name] for name in ("samples_per_second", "staleness_mean", "staleness_max")}
