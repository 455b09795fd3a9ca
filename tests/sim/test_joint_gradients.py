"""Gradients that are computed together are the same as one by one up to rounding, in any model and any run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from worlds import Run, cluster, experiment, node

from hetsim.effects import Batch
from hetsim.results.reading.identity import identity_of
from hetsim.runtime.trace import Trace
from hetsim.sim.backend import Simulator
from hetsim.sim.gradient_batching import GradientBatcher
from hetsim.sim.hosts.world import HostWorld
from hetsim.sim.world import EventWorld
from hetsim.vector import Vector
from hetsim.workloads.device import num_cuda_devices
from hetsim.workloads.task import Task

MODELS = {
    "mlp": ("workload=digits",),
    "lenet": (
        "workload=digits",
        "workload.model=lenet",
        "workload.resize=28",
        "workload.augmentation.pad=2",
        "workload.augmentation.mirror=true",
    ),
    "resnet20, with batch norm's statistics": ("workload=digits", "workload.model=resnet20", "+workload.model_options.width=4"),
    "shufflenet, in float64": ("workload=digits", "workload.model=shufflenet_v2_x0_5", "workload.resize=32", "dtype=float64"),
    "tiny_lm": ("workload=tiny_lm",),
}
WORKERS = cluster(*[node(1e-4 * (1 + rank % 3), noise={"distribution": "lognorm", "s": 0.2}) for rank in range(20)])
FAULTS = {"faults": {"detection_seconds": 1e-3, "schedule": [{"nodes": [1, 7], "crash": 0.01, "repair": 0.02}]}}


def simulated(*words: str, batched: bool | str = "auto", change: Callable[[Task], None] | None = None, **keys: Any) -> Run:
    """A run of digits with twenty workers; `change` changes its task."""
    made = experiment("workload=digits", *words, **{"cluster": WORKERS, "batch_size": 160, "budget": {"epochs": 3}, **keys})
    task, optimizers = made.load()
    if change is not None:
        change(task)
    run = Run(Trace(None, "full"))
    kind = HostWorld if made.cluster.shares_cores else EventWorld
    run.simulation = kind(made, task, optimizers, [run.trace, run], batched=batched)
    run.simulation.run()
    return run


def groups(found: list[int]) -> Callable[[Task], None]:
    """Record the sizes of the groups that a task computes."""

    def change(task: Task) -> None:
        compute = task.gradients

        def recorded(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            found.append(len(batches))
            return compute(at, batches)

        task.gradients = recorded  # type: ignore[method-assign]

    return change


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative, of vectors."""
    return float((one - other).norm() / other.norm())


GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not num_cuda_devices(), reason="this machine has no CUDA device")])


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("model", MODELS)
def test_together_is_one_by_one_up_to_rounding(model: str, device: str) -> None:
    task, _ = experiment(*MODELS[model], f"device={device}").load()
    chance = torch.Generator().manual_seed(0)
    count, start = task.num_parameters, task.initial()
    points = [start.clone() for _ in range(3)]
    for point in points:
        point[:count] += 0.01 * torch.randn(len(start[:count]), generator=chance, dtype=start.dtype).to(start.device)
    batches = [Batch(5 * place, 5, place % 2) for place in range(3)]

    with task.device.in_full_precision():
        together = task.gradients(points, batches)
        alone = [task.gradient(point, batch) for point, batch in zip(points, batches, strict=True)]

    for (gradient, loss), (expected, mean) in zip(together, alone, strict=True):
        assert loss == pytest.approx(mean, rel=1e-5)
        assert distance(gradient[:count], expected[:count]) < 1e-4
        assert gradient[count:].tolist() == pytest.approx(expected[count:].tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("method=asgd",), {}),
        (("method=ssgd",), {}),
        (("method=dbs_sgd",), {}),
        (("method=local_sgd",), {}),
        (("method=asgd", "nonfinite=skip"), {"cluster": {**WORKERS, **FAULTS}}),
    ],
    ids=lambda each: " ".join(each),
)
def test_a_run_is_the_same_up_to_rounding(words: tuple[str, ...], keys: dict[str, Any]) -> None:
    """The same rows, and weights nearly as one by one; the same bits each time."""
    found: list[int] = []
    run, again = simulated(*words, change=groups(found), **keys), simulated(*words, **keys)
    alone = simulated(*words, batched=False, **keys)

    assert found
    assert run.rows() == alone.rows()
    assert distance(run.weights, alone.weights) < 1e-4
    assert torch.equal(run.weights, again.weights)


def test_all_gradients_under_way_go_together() -> None:
    """After two of them were tried."""
    found: list[int] = []
    simulated("method=ssgd", change=groups(found), budget={"updates": 3})

    assert found == [2, 20, 20, 20]


def test_the_first_gradient_is_tried_in_full_precision() -> None:
    """Autocast rounds so coarsely that a right gradient differs from itself."""
    found: list[int] = []
    simulated("method=ssgd", "autocast=bfloat16", "workload.model=resnet20", "+workload.model_options.width=2",
              change=lambda task: (setattr(task, "least_together", 2), groups(found)(task)), budget={"updates": 1})  # type: ignore[func-returns-value]  # fmt: skip

    assert found == [2, 20]


ALONE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "a model with dropout": (("method=asgd", "+workload.model_options.dropout=0.5"), {}),
    "convolutions on a CPU": (("method=asgd", "workload.model=lenet", "workload.resize=28"), {"budget": {"updates": 3}}),
    "too few workers": (("method=asgd",), {"cluster": cluster(*[node(1e-4)] * 4)}),
    "an order that is not known before": (
        ("method=asgd",),
        {"cluster": {**cluster(*[node(1e-4, host="a")] * 20), "hosts": {"a": {"cores": 1}}}},
    ),
    "gradients that may be given up": (("method=ringmaster_stops",), {}),
}


@pytest.mark.parametrize("why", ALONE)
def test_some_gradients_are_computed_one_by_one(why: str) -> None:
    words, keys = ALONE[why]
    found: list[int] = []
    run = simulated(*words, change=groups(found), **keys)

    assert not found
    assert torch.equal(run.weights, simulated(*words, batched=False, **keys).weights)


def test_gradients_in_micro_batches_are_computed_alone() -> None:
    found: list[int] = []
    rows = [node(1e-4, **({"micro_batch": 4} if rank % 2 else {})) for rank in range(40)]
    made = simulated("method=ssgd", change=groups(found), cluster=cluster(*rows), batch_size=320, budget={"updates": 3})

    assert found == [2, 20, 20, 20]
    assert len(made.rows()) == len(
        simulated("method=ssgd", batched=False, cluster=cluster(*rows), batch_size=320, budget={"updates": 3}).rows()
    )


@pytest.mark.parametrize("fault", [RuntimeError("vmap: no such thing\nas this"), 2.0])
def test_a_model_that_does_not_go_together_is_computed_one_by_one(fault: Exception | float) -> None:
    """It is told once, and the bits are those of one by one."""

    def change(task: Task) -> None:
        compute = task.gradients

        def faulty(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            if isinstance(fault, Exception):
                raise fault
            return [(gradient * fault, loss) for gradient, loss in compute(at, batches)]

        task.gradients = faulty  # type: ignore[method-assign]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = simulated("method=asgd", change=change)

    (warning,) = told
    assert str(warning.message).startswith("backend.batched=auto: gradients are computed one by one, as ")
    assert ("vmap: no such thing" if isinstance(fault, Exception) else "differs from itself") in str(warning.message)
    assert torch.equal(run.weights, simulated("method=asgd", batched=False).weights)


def test_fewer_go_together_where_memory_does_not_suffice() -> None:
    found: list[int] = []

    def change(task: Task) -> None:
        task.least_together = 2
        compute = task.gradients

        def limited(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            if len(batches) > 6:
                raise torch.OutOfMemoryError
            found.append(len(batches))
            return compute(at, batches)

        task.gradients = limited  # type: ignore[method-assign]

    run = simulated("method=ssgd", change=change, budget={"updates": 2})

    assert found == [2, *[5, 5, 5, 5] * 2]
    assert distance(run.weights, simulated("method=ssgd", batched=False, budget={"updates": 2}).weights) < 1e-5


@pytest.mark.parametrize("wrong", [True, "many", 2, None])
def test_a_wrong_word_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"backend\.batched must be false or auto"):
        Simulator(batched=wrong).check(experiment("method=asgd", "workload=digits"))


def test_one_process_computes_together() -> None:
    with pytest.raises(ValueError, match=r"backend\.batched=auto takes one process, not backend\.processes=2"):
        Simulator(batched="auto", processes=2).check(experiment("method=asgd", "workload=digits"))
    assert type(simulated("method=asgd", batched=False, budget={"updates": 3}).simulation._batcher) is GradientBatcher


def test_a_run_is_another_one_with_it() -> None:
    """Its last bits differ. Without it, it is the run that it was before there was the key."""
    backend = {"_target_": "hetsim.sim.Simulator"}
    of = [identity_of({"seed": 0, "backend": {**backend, **its}}) for its in ({}, {"batched": False}, {"batched": "auto"})]

    assert of[0] == of[1] != of[2]
