"""Gradients that are computed together are the same as one by one up to rounding, in any model and any run."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from worlds import Run, cluster, computed, experiment, node

from hetsim.effects import Batch
from hetsim.files.identity import identity_of
from hetsim.sim.backend import Simulator
from hetsim.sim.gradient_batching import GradientBatcher
from hetsim.vector import Vector
from hetsim.workloads.device import device, num_cuda_devices
from hetsim.workloads.own.task import OwnTask
from hetsim.workloads.task import Task
from hetsim.workloads.tasks.flat_model import FlatModel

pytestmark = pytest.mark.slow

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
NODES = [node(1e-4 * (1 + rank % 3), noise={"distribution": "lognorm", "s": 0.2}) for rank in range(20)]
WORKERS = cluster(*NODES)
FAULTS = {"faults": {"detection_seconds": 1e-3, "schedule": [{"nodes": [1, 7], "crash": 0.01, "repair": 0.02}]}}


def simulated(*words: str, batched: bool | str = "auto", change: Callable[[Task], None] | None = None, **keys: Any) -> Run:
    """A run of digits with twenty workers; `change` changes its task."""
    made = experiment("workload=digits", *words, **{"cluster": WORKERS, "batch_size": 160, "budget": {"epochs": 1}, **keys})
    return computed(made, change, batched=batched)


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


@pytest.mark.parametrize("place", ["cpu", GPU])
@pytest.mark.parametrize("model", MODELS)
def test_together_is_one_by_one_up_to_rounding(model: str, place: str) -> None:
    task, _ = experiment(*MODELS[model], f"device={place}").load()
    chance = torch.Generator().manual_seed(0)
    count, start = task.num_parameters, task.initial()
    points = [start.clone() for _ in range(3)]
    for point in points:
        point[:count] += 0.01 * torch.randn(len(start[:count]), generator=chance, dtype=start.dtype).to(start.device)
    batches = [Batch(5 * i, 5, i % 2) for i in range(3)]

    with task.device.in_full_precision():
        together = task.gradients(points, batches)
        alone = [task.gradient(point, batch) for point, batch in zip(points, batches, strict=True)]

    for (gradient, loss), (expected, mean) in zip(together, alone, strict=True):
        assert loss == pytest.approx(mean, rel=1e-5)
        assert distance(gradient[:count], expected[:count]) < 1e-4
        assert gradient[count:].tolist() == pytest.approx(expected[count:].tolist(), rel=1e-4, abs=1e-6)


class Odd(nn.Module):
    """Parameters that are tied, frozen, unused, empty, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused, self.empty, self.scale = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0, 2)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x).tanh() * self.frozen) * self.scale + self.empty.sum()
        return found


def test_any_parameters_go_together() -> None:
    torch.manual_seed(0)
    flat = FlatModel(Odd(), [], seed=0, device=device("cpu"))
    points, inputs = [flat.initial + torch.randn_like(flat.initial) for _ in range(3)], torch.randn(3, 5, 4)

    together = flat.gradients(points, (inputs,), lambda model, x: model(x).square().mean())

    for (gradient, loss), at, x in zip(together, points, inputs, strict=True):
        expected, mean = flat.gradient(at, Batch(0, 5), lambda x=x: flat.model(x).square().mean())  # type: ignore[misc]
        assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
        assert loss == pytest.approx(mean, rel=1e-5)
    assert len({gradient.data_ptr() for gradient, _ in together}) == 3


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("method=asgd",), {}),
        (("method=ssgd",), {}),
        (("method=dbs_sgd",), {}),
        (("method=local_sgd",), {"budget": {"epochs": 2}}),
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


def test_a_task_without_a_joint_pass_computes_one_by_one() -> None:
    """Such as that of the user's own code, though its model is a flat one, too."""
    task, _ = experiment("workload=digits").load()
    task.__class__ = type("Alone", (type(task),), {"gradients": Task.gradients})

    assert task.least_together is None
    assert OwnTask.gradients is Task.gradients


def test_gradients_in_micro_batches_are_computed_alone() -> None:
    found: list[int] = []
    rows = [node(1e-4, **({"micro_batch": 4} if rank % 2 else {})) for rank in range(40)]
    made = simulated("method=ssgd", change=groups(found), cluster=cluster(*rows), batch_size=320, budget={"updates": 3})

    assert found == [2, 20, 20, 20]
    assert len(made.rows()) == len(
        simulated("method=ssgd", batched=False, cluster=cluster(*rows), batch_size=320, budget={"updates": 3}).rows()
    )


def refused(change: Callable[[Task], None], *words: str) -> str:
    """The only warning of a run with the changed task, which ends with the bits of one by one."""
    few: dict[str, Any] = {"cluster": cluster(*NODES[:5]), "batch_size": 40, "budget": {"updates": 3}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = simulated(*words, change=change, **few)

    (warning,) = told
    assert torch.equal(run.weights, simulated(*words, batched=False, **few).weights)
    return str(warning.message)


def faulty(fault: Callable[[Task, Vector], Vector]) -> Callable[[Task], None]:
    """Change the second gradient of each group."""

    def change(task: Task) -> None:
        task.least_together = 2
        compute = task.gradients

        def gradients(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            first, (gradient, loss), *others = compute(at, batches)
            return [first, (fault(task, gradient.clone()), loss), *others]

        task.gradients = gradients  # type: ignore[method-assign]

    return change


def no_such_thing(*_: Any) -> Vector:
    raise RuntimeError("vmap: no such thing\nas this")


def twice(task: Task, gradient: Vector) -> Vector:
    """The gradient alone: in a model with batch norm, the averaged entries after it are much larger."""
    gradient[: task.num_parameters] *= 2
    return gradient


def not_averaged(task: Task, gradient: Vector) -> Vector:
    gradient[task.num_parameters : -1] = task.initial()[task.num_parameters : -1]
    return gradient


RESNET = ("method=ssgd", "workload.model=resnet20", "+workload.model_options.width=2")


@pytest.mark.parametrize(
    ("fault", "words", "why"),
    [
        (no_such_thing, ("method=asgd",), "vmap: no such thing"),
        (twice, ("method=asgd",), "differ from themselves"),
        (twice, RESNET, "differ from themselves"),
        (not_averaged, RESNET, "differ from themselves"),
    ],
)
def test_what_does_not_go_together_is_computed_one_by_one(
    fault: Callable[[Task, Vector], Vector], words: tuple[str, ...], why: str
) -> None:
    """It is told once."""
    told = refused(faulty(fault), *words)

    assert told.startswith("backend.batched=auto: gradients are computed one by one, as ")
    assert why in told


def test_a_later_error_is_raised() -> None:
    """As that of a gradient computed alone."""
    calls: list[int] = []

    def change(task: Task) -> None:
        compute = task.gradients

        def gradients(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            calls.append(len(batches))
            if len(calls) == 3:
                raise RuntimeError("of the device")
            return compute(at, batches)

        task.gradients = gradients  # type: ignore[method-assign]

    with pytest.raises(RuntimeError, match="of the device"):
        simulated("method=ssgd", change=change)


def test_gradients_that_are_not_finite_are_no_reason() -> None:
    """The first finite ones are compared."""
    found: list[int] = []

    def change(task: Task) -> None:
        groups(found)(task)
        compute = task.gradient
        calls: list[int] = []

        def gradient(at: Vector, batch: Batch) -> tuple[Vector, float]:
            calls.append(1)
            value, loss = compute(at, batch)
            return (value * torch.nan, loss) if len(calls) == 1 else (value, loss)

        task.gradient = gradient  # type: ignore[method-assign]

    simulated("method=ssgd", change=change, budget={"updates": 3})

    assert found == [20, 2, 20, 20]


@pytest.mark.parametrize("room", [6, 1])
def test_fewer_go_together_where_memory_does_not_suffice(room: int) -> None:
    """The memory of a failed pass is free again before the next one."""
    found: list[int] = []
    held: list[weakref.ref[Any]] = []

    def change(task: Task) -> None:
        task.least_together = 2
        compute = task.gradients

        def limited(at: Sequence[Vector], batches: Sequence[Batch]) -> list[tuple[Vector, float]]:
            assert all(each() is None for each in held)
            activations = torch.zeros(1000)
            held.append(weakref.ref(activations))
            if len(batches) > room:
                raise torch.OutOfMemoryError
            found.append(len(batches))
            return compute(at, batches)

        task.gradients = limited  # type: ignore[method-assign]

    run = simulated("method=ssgd", change=change, budget={"updates": 2})

    assert found == ([2, *[5, 5, 5, 5] * 2] if room == 6 else [])
    assert distance(run.weights, simulated("method=ssgd", batched=False, budget={"updates": 2}).weights) < 1e-5


@pytest.mark.parametrize(("hidden", "expected"), [(1000, 20), (30_000, 0)])
def test_large_gradients_are_computed_alone(hidden: int, expected: int) -> None:
    """64 MiB of them go together on a CPU: 20 of 0.3 MB, and not 16 of 9 MB."""
    found: list[int] = []
    simulated("method=ssgd", f"+workload.model_options.hidden=[{hidden}]", change=groups(found), budget={"updates": 1})

    assert found == ([2, expected] if expected else [])


@pytest.mark.parametrize("wrong", [True, "many", 2, None])
def test_a_wrong_word_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"backend\.batched must be false or auto"):
        Simulator(batched=wrong).check(experiment("method=asgd", "workload=digits"))


def test_one_process_computes_together() -> None:
    with pytest.raises(ValueError, match=r"backend\.batched=auto takes one process, not backend\.processes=2"):
        Simulator(batched="auto", processes=2).check(experiment("method=asgd", "workload=digits"))
    assert type(simulated("method=asgd", batched=False, budget={"updates": 3}).simulation._batcher) is GradientBatcher


def test_a_run_is_another_one_with_it() -> None:
    """Its last bits differ."""
    alone, together = ({"seed": 0, "backend": {"_target_": "hetsim.sim.Simulator", "batched": batched}} for batched in (False, "auto"))

    assert identity_of(alone) != identity_of(together)
