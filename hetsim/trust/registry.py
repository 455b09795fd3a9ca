"""The shipped classes by config key. A `_target_` may name no other classes of hetsim."""

from __future__ import annotations

from typing import Any

SHIPPED: dict[str, tuple[str, ...]] = {
    "backend": ("hetsim.sim.Simulator", "hetsim.distributed.Processes"),
    "workload": (
        "hetsim.workloads.phantom.PhantomWorkload",
        "hetsim.workloads.quadratic.Quadratic",
        "hetsim.workloads.tiny_lm.TinyLM",
        "hetsim.workloads.own.Own",
        "hetsim.workloads.data.digits.Digits",
        "hetsim.workloads.data.npz.NpzArrays",
        "hetsim.workloads.data.torchvision.CIFAR10",
        "hetsim.workloads.data.torchvision.FashionMNIST",
        "hetsim.workloads.data.torchvision.MNIST",
    ),
    "coordination": (
        "hetsim.coordination.accumulating_all_reduce.AccumulatingAllReduce",
        "hetsim.coordination.all_reduce.SynchronousAllReduce",
        "hetsim.coordination.async_local_steps.AsyncLocalSteps",
        "hetsim.coordination.decoupled_steps.DecoupledSteps",
        "hetsim.coordination.delayed_all_reduce.DelayedAllReduce",
        "hetsim.coordination.delayed_server.DelayedParameterServer",
        "hetsim.coordination.dynamic_local_steps.AsyncDynamicLocalSteps",
        "hetsim.coordination.hierarchical.HierarchicalLocalSteps",
        "hetsim.coordination.local_steps.LocalSteps",
        "hetsim.coordination.overlapped_all_reduce.OverlappedAllReduce",
        "hetsim.coordination.parameter_server.ParameterServer",
        "hetsim.coordination.stopping_server.StoppingServer",
        "hetsim.coordination.streaming_steps.StreamingSteps",
        "hetsim.coordination.table_server.TableServer",
        "hetsim.coordination.trials.Trials",
    ),
    "allocation": (
        "hetsim.policies.allocation.AdaptiveTasks",
        "hetsim.policies.allocation.Even",
        "hetsim.policies.allocation.Fixed",
        "hetsim.policies.allocation.GradualShift",
        "hetsim.policies.allocation.OptPerf",
        "hetsim.policies.allocation.ProportionalController",
        "hetsim.policies.allocation.SpeedProportional",
        "hetsim.policies.allocation.Static",
    ),
    "weighting": (
        "hetsim.policies.weighting.PerLocalStep",
        "hetsim.policies.weighting.PerSample",
        "hetsim.policies.weighting.PerWorker",
        "hetsim.policies.weighting.PerWorkerMean",
        "hetsim.policies.weighting.Tokens",
    ),
    "discount": (
        "hetsim.policies.weighting.DelayAdaptive",
        "hetsim.policies.weighting.Exponential",
        "hetsim.policies.weighting.Hinge",
        "hetsim.policies.weighting.InverseStaleness",
        "hetsim.policies.weighting.NoDiscount",
        "hetsim.policies.weighting.Polynomial",
        "hetsim.policies.weighting.Rescaled",
    ),
    "compensation": (
        "hetsim.policies.compensation.AdaptiveDelayCompensation",
        "hetsim.policies.compensation.Dana",
        "hetsim.policies.compensation.DelayCompensation",
        "hetsim.policies.compensation.GapAware",
        "hetsim.policies.compensation.Mixing",
        "hetsim.policies.compensation.NoCompensation",
    ),
    "admission": (
        "hetsim.policies.admission.Backup",
        "hetsim.policies.admission.Barrier",
        "hetsim.policies.admission.BoundedStaleness",
        "hetsim.policies.admission.Buffer",
        "hetsim.policies.admission.EveryGradient",
        "hetsim.policies.admission.Malenia",
        "hetsim.policies.admission.Rennala",
        "hetsim.policies.admission.RennalaStops",
        "hetsim.policies.admission.Ringleader",
        "hetsim.policies.admission.Ringmaster",
        "hetsim.policies.admission.RingmasterStops",
        "hetsim.policies.admission.SoftSync",
        "hetsim.policies.quorum.Quorum",
    ),
    "optimizer": (
        "hetsim.workloads.delayed_nesterov.DelayedNesterov",
        "hetsim.workloads.lmo.LMO",
        "hetsim.workloads.heloco.HeLoCo",
        "hetsim.workloads.momentum_look_ahead.MomentumLookAhead",
        "hetsim.workloads.muon.Muon",
    ),
    "compression": tuple(f"hetsim.policies.compression.{name}" for name in ("NoCompression", "TopK", "TwoBit")),
    "partition": (
        "hetsim.workloads.partition.ByClass",
        "hetsim.workloads.partition.ByFile",
        "hetsim.workloads.partition.Contiguous",
        "hetsim.workloads.partition.Dirichlet",
        "hetsim.workloads.partition.Even",
    ),
}

FIRST_NAMES = {
    "hetsim.distributed.Processes": "hetsim.dist.Processes",
    "hetsim.coordination.delayed_all_reduce.DelayedAllReduce": "hetsim.coordination.one_step_delay.DelayedAllReduce",
    "hetsim.coordination.delayed_server.DelayedParameterServer": "hetsim.coordination.one_step_delay.DelayedParameterServer",
    "hetsim.policies.allocation.OptPerf": "hetsim.policies.optperf.OptPerf",
    "hetsim.workloads.data.npz.NpzArrays": "hetsim.workloads.arrays.NpzArrays",
    "hetsim.workloads.data.digits.Digits": "hetsim.workloads.digits.Digits",
    "hetsim.workloads.data.torchvision.CIFAR10": "hetsim.workloads.vision.CIFAR10",
    "hetsim.workloads.data.torchvision.FashionMNIST": "hetsim.workloads.vision.FashionMNIST",
    "hetsim.workloads.data.torchvision.MNIST": "hetsim.workloads.vision.MNIST",
}
"""Moved classes: the name in hetsim 0.1's configs, by the present name. A run's identity uses the old name."""

OTHER_NAMES = {
    "hetsim.sim.simulator.Simulator": "hetsim.sim.Simulator",
    "hetsim.dist.launch.Processes": "hetsim.distributed.Processes",
}
"""Present names by other valid names. The configs of hetsim 0.1 did not use them."""

_CURRENT = {**OTHER_NAMES, **{first: current for current, first in FIRST_NAMES.items()}}


def first_name(path: Any) -> Any:
    """A class's first name, by its present name. Other values are unchanged."""
    return FIRST_NAMES.get(path, path) if isinstance(path, str) else path


def current_name(path: str) -> str:
    """A class's present name, by its name in a config."""
    return _CURRENT.get(path, path)


def old_names() -> list[str]:
    """Every old name of a moved class, which configs may still use."""
    return list(_CURRENT)
