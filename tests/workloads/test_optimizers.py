"""torch.optim on one flat vector as a pure step: torch's own numbers, torch's own schedules, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from worlds import experiment, simulate

from hetsim.effects import Batch
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import OptimizerRecipe, Recipe

WORKING: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1},
    "Adamax": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "centered": True},
    "Rprop": {"lr": 0.1},
    "Adagrad": {"lr": 0.1},
    "Adadelta": {"lr": 0.1},
    "Adafactor": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
}
SCHEDULE = "torch.optim.lr_scheduler"


def flat(name: str, size: int = 6, *, schedule: Recipe | None = None, **options: Any) -> FlatOptimizer:
    """The wrapped optimizer of this name."""
    return FlatOptimizer(OptimizerRecipe(Recipe(f"torch.optim.{name}", options), schedule), size)


def gradients(count: int, size: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Some that point in no one direction."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, dtype=dtype, generator=generator) for _ in range(count)]


def steps_of_torch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows whenever torch's own SGD steps, of optimizers that are built from now on."""
    steps: list[Any] = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda its, *given: steps.append(its) or step(its, *given))
    return steps


def test_sgd_with_momentum_is_torchs_own_on_a_module():
    """Layer by layer or as one vector: the same parameters after ten steps."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    theirs = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    at = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    ours = flat("SGD", len(at), lr=0.1, momentum=0.9)
    memory = ours.initial()

    for gradient in gradients(10, len(at)):
        parts = gradient.split([parameter.numel() for parameter in module.parameters()])
        for parameter, part in zip(module.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()
        theirs.step()
        memory, at = ours.step(memory, at, gradient, 0)

    assert torch.equal(at, nn.utils.parameters_to_vector(module.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.03])
@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.7}, {"momentum": 0.7, "dampening": 0.3}, {"momentum": 0.7, "nesterov": True}])
def test_sgd_written_out_is_torchs_bit_for_bit(
    momentum: dict[str, Any], weight_decay: float, maximize: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    """With every option that it has, over ten steps of 1000 numbers."""
    options = {"lr": 0.1, **momentum, "weight_decay": weight_decay, "maximize": maximize}
    asked = steps_of_torch(monkeypatch)
    parameter = nn.Parameter(torch.linspace(-1, 1, 1000, dtype=dtype))
    theirs, ours = torch.optim.SGD([parameter], **options), flat("SGD", 1000, **options)
    memory, at = ours.initial(), parameter.detach().clone()

    for gradient in gradients(10, 1000, dtype):
        parameter.grad = gradient.clone()
        theirs.step()
    asked.clear()
    for gradient in gradients(10, 1000, dtype):
        memory, at = ours.step(memory, at, gradient, 0)

    assert torch.equal(at, parameter)
    assert asked == []


def test_sgd_goes_on_with_a_memory_of_another_precision():
    """As every optimizer does: the memory is taken in the precision of the weights."""
    ours, double = flat("SGD", lr=0.1, momentum=0.9), torch.linspace(0, 1, 6, dtype=torch.float64)
    memory = {"momentum_buffer": double.float()}

    _, at = ours.step(memory, double, double, 0)

    assert torch.equal(at, double - 0.1 * (0.9 * double.float().double() + double))


def test_a_fused_sgd_is_torchs_own(monkeypatch: pytest.MonkeyPatch):
    """Which is another kernel."""
    asked = steps_of_torch(monkeypatch)
    parameter = nn.Parameter(torch.linspace(-1, 1, 1000))
    theirs, ours = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, fused=True), flat("SGD", 1000, lr=0.1, momentum=0.9, fused=True)
    memory, at = ours.initial(), parameter.detach().clone()

    for gradient in gradients(10, 1000, torch.float32):
        parameter.grad = gradient.clone()
        theirs.step()
    asked.clear()
    for gradient in gradients(10, 1000, torch.float32):
        memory, at = ours.step(memory, at, gradient, 0)

    assert torch.equal(at, parameter)
    assert len(asked) == 10


@pytest.mark.parametrize(
    "options", [{"momentum": 0.9, "dampening": "abc"}, {"momentum": 0.9, "dampening": None}, {"foreach": True, "fused": True}]
)
def test_an_option_that_is_none_of_sgds_is_refused_before_the_run(options: dict[str, Any]):
    """In one sentence, also where it is not read before the second step."""
    with pytest.raises(ValueError, match=r"^optimizer.*torch\.optim\.SGD (refuses|does not work)"):
        flat("SGD", lr=0.1, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WORKING)
def test_every_optimizer_that_works_on_a_vector_gives_torchs_own_numbers(name: str, dtype: torch.dtype):
    """Bit by bit over ten steps, with all of its memory handed in and out."""
    parameter = nn.Parameter(torch.ones(6, dtype=dtype))
    theirs = getattr(torch.optim, name)([parameter], **WORKING[name])
    ours = flat(name, **WORKING[name])
    memory, at = ours.initial(), torch.ones(6, dtype=dtype)

    for gradient in gradients(10, dtype=dtype):
        parameter.grad = gradient.clone()
        theirs.step()
        memory, at = ours.step(memory, at, gradient, 0)

        assert torch.equal(at, parameter.detach())


@pytest.mark.parametrize("name", WORKING)
def test_a_step_changes_nothing_that_it_was_given(name: str):
    """A slower worker may still hold the weights, a committed state the memory: the same step twice is the same step."""
    ours = flat(name, **WORKING[name])
    first, second = gradients(2)
    memory, at = ours.step(ours.initial(), torch.ones(6, dtype=torch.float64), first, 0)
    held = [at.clone(), second.clone(), {key: value.clone() for key, value in memory.items()}]

    once, twice = ours.step(memory, at, second, 0), ours.step(memory, at, second, 0)

    assert torch.equal(once[1], twice[1])
    assert torch.equal(at, held[0])
    assert torch.equal(second, held[1])
    assert memory.keys() == held[2].keys()
    assert all(torch.equal(memory[key], held[2][key]) for key in memory)


COMPILER = """
import sys
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import OptimizerRecipe, Recipe
for name in sys.argv[1:]:
    recipe = OptimizerRecipe(Recipe(f"torch.optim.{name}", {"lr": 0.1}))
    optimizer = FlatOptimizer(recipe, 3)
    optimizer.step(optimizer.initial(), *2 * [optimizer._parameters[0].data], 0)
    print("torch._dynamo" in sys.modules, bool(recipe.imports))
"""


@pytest.mark.slow
@pytest.mark.parametrize("names", [["SGD"], pytest.param(["SGD", "Adam"], marks=pytest.mark.long)], ids=",".join)
def test_plain_sgd_does_not_import_pytorchs_compiler(names):
    """Two seconds of each process that trains. What ranks are forked from imports it where they need it."""
    printed = subprocess.run([sys.executable, "-c", COMPILER, *names], capture_output=True, text=True, check=True).stdout

    assert printed.splitlines() == ["False False", "True True"][: len(names)]


def test_adam_trains():
    """A method with another optimizer from the command line: `optimizer=adam`."""
    run = simulate(experiment("method=ssgd", "workload=quadratic", "optimizer=adam", optimizer={"lr": 0.05}, budget={"epochs": 40}))

    first, *_, last = (point.evaluation.train_loss for point in run.simulation.curve.points)
    assert last < first / 50


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("SGD", {"differentiable": True}, r"^optimizer\._target_=torch\.optim\.SGD does not work on one flat dense vector"),
        ("LBFGS", {}, r"^optimizer\._target_=torch\.optim\.LBFGS does not work on one flat dense vector"),
        ("SparseAdam", {}, r"^optimizer\._target_=torch\.optim\.SparseAdam does not work on one flat dense vector"),
        ("Muon", {}, r"^optimizer\._target_=torch\.optim\.Muon is for matrices alone: take hetsim\.workloads\.muon\.Muon"),
        ("Sgd", {}, r"^optimizer\._target_=torch\.optim\.Sgd does not exist: name a class such as"),
        ("Optimizer", {"defaults": {}}, r"^optimizer\._target_=torch\.optim\.Optimizer does not work"),
        ("lr_scheduler.StepLR", {}, r"^optimizer\._target_=torch\.optim\.lr_scheduler\.StepLR is no Optimizer"),
        ("functional.sgd", {}, r"^optimizer\._target_=torch\.optim\.functional\.sgd "),
        ("sgd.torch.nn.Linear", {}, r"^optimizer\._target_=torch\.optim\.sgd\.torch\.nn\.Linear does not exist"),
        (
            "Adam",
            {"momentum": 0.9},
            r"^optimizer\.momentum is not an option of torch\.optim\.Adam: add '~optimizer\.momentum' to leave it out",
        ),
        ("SGD", {"lr": -1.0}, r"^optimizer: torch\.optim\.SGD refuses .*Invalid learning rate: -1\.0"),
        ("SGD", {"lr": "fast"}, r"^optimizer: torch\.optim\.SGD refuses"),
    ],
)
def test_what_cannot_step_a_flat_dense_vector_is_refused_in_one_sentence(name: str, options: dict[str, Any], sentence: str):
    """It needs a closure, a sparse gradient or a matrix, is no optimizer, or has no such option."""
    with pytest.raises(ValueError, match=sentence) as error:
        flat(name, **options)
    assert "\n" not in str(error.value)


# Weights that an optimizer does not feel


@pytest.mark.parametrize(
    ("name", "feels"), [("SGD", True), ("ASGD", True), *((name, False) for name in WORKING if name not in ("SGD", "ASGD"))]
)
def test_adams_family_does_not_feel_a_gradients_scale(name: str, feels: bool):
    """In the long run twice the gradients make the same steps; of SGD twice as long ones."""
    options = {key: value for key, value in WORKING[name].items() if key != "weight_decay"}

    assert flat(name, **options).scale_sensitive == feels


@pytest.mark.parametrize("rate", [1.0, 1e-3, 1e-9])
def test_sgd_feels_scale_at_any_rate(rate: float):
    """A small step is a step; so is one of a schedule that begins at zero."""
    cyclic = Recipe(f"{SCHEDULE}.CyclicLR", {"base_lr": 0.0, "max_lr": rate})

    assert flat("SGD", lr=rate).scale_sensitive
    assert flat("SGD", lr=rate, momentum=0.9, schedule=cyclic).scale_sensitive


def test_weights_that_would_silently_do_nothing_are_refused():
    """Adam with single gradients weighted per sample; behind a barrier the weights act on the mean, and are allowed."""
    with pytest.raises(
        ValueError, match=r"^optimizer\._target_=torch\.optim\.Adam does not depend on a gradient's scale.* weighting=per_worker"
    ):
        experiment("method=asgd", "workload=quadratic", "optimizer=adam", "weighting=per_sample").load()
    for choices in (
        ("method=ssgd", "weighting=per_sample"),
        ("method=ssgd", "coordination=parameter_server", "weighting=per_sample"),
        ("method=asgd",),
    ):
        experiment("workload=quadratic", "optimizer=adam", *choices).load()


# Schedules


def schedule(name: str, **options: Any) -> Recipe:
    """A scheduler of torch's."""
    return Recipe(f"{SCHEDULE}.{name}", options)


SCHEDULES: dict[str, Recipe] = {
    "StepLR": schedule("StepLR", step_size=3, gamma=0.5),
    "MultiStepLR": schedule("MultiStepLR", milestones=[2, 5], gamma=0.1),
    "ExponentialLR": schedule("ExponentialLR", gamma=0.9),
    "CosineAnnealingLR": schedule("CosineAnnealingLR", T_max=7),
    "CosineAnnealingWarmRestarts": schedule("CosineAnnealingWarmRestarts", T_0=3, T_mult=2),
    "LinearLR": schedule("LinearLR", start_factor=0.1, total_iters=4),
    "PolynomialLR": schedule("PolynomialLR", total_iters=6, power=2.0),
    "ConstantLR": schedule("ConstantLR", factor=0.5, total_iters=3),
    "CyclicLR": schedule("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=3),
    "OneCycleLR": schedule("OneCycleLR", max_lr=1.0, total_steps=12),
    "SequentialLR": schedule(
        "SequentialLR", schedulers=[schedule("LinearLR", start_factor=0.1), schedule("ExponentialLR", gamma=0.8)], milestones=[4]
    ),
    "ChainedScheduler": schedule("ChainedScheduler", schedulers=[schedule("StepLR", step_size=2), schedule("ExponentialLR", gamma=0.9)]),
}


def built(recipe: Recipe, optimizer: torch.optim.Optimizer) -> Any:
    """The scheduler, by torch's own hands."""
    options = {
        name: [built(part, optimizer) for part in value] if name == "schedulers" else value for name, value in recipe.options.items()
    }
    return getattr(torch.optim.lr_scheduler, recipe.target.rpartition(".")[2])(optimizer=optimizer, **options)


@pytest.mark.parametrize("recipe", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_gives_torchs_own_settings_epoch_by_epoch(recipe: Recipe):
    """Rate and momentum, in whichever order epochs are asked for, and in the very step."""
    parameter = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    theirs = torch.optim.SGD([parameter], lr=0.4, momentum=0.5)
    scheduler, settings = built(recipe, theirs), []
    for _ in range(12):
        settings.append((theirs.param_groups[0]["lr"], theirs.param_groups[0]["momentum"]))
        theirs.step()
        if len(settings) < 12:
            scheduler.step()
    ours = flat("SGD", lr=0.4, momentum=0.5, schedule=recipe)
    zero, one = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)

    for epoch in (7, 2, 11, *range(12)):
        rate, momentum = settings[epoch]
        memory, at = ours.step({"momentum_buffer": one}, zero, one, epoch)

        assert ours.learning_rate(epoch) == rate
        assert at.tolist() == [-rate * (momentum * 1.0 + 1.0)] * 6
        assert memory["momentum_buffer"].tolist() == [momentum * 1.0 + 1.0] * 6


def test_the_schedules_tried_are_not_all_constant():
    """Otherwise the law above would hold of a wrapper that ignores them."""
    assert all(
        len({flat("SGD", lr=0.4, momentum=0.5, schedule=recipe).learning_rate(epoch) for epoch in range(12)}) > 1
        for recipe in SCHEDULES.values()
    )


def test_a_schedule_counts_epochs_of_applied_samples():
    """Four times the updates an epoch decay alike: the rate follows the samples."""
    keys: dict[str, Any] = {"workload": {"num_samples": 96}, "budget": {"epochs": 3}, "optimizer": {"lr": 1.0, "momentum": 0.0}}
    halving = {"_target_": f"{SCHEDULE}.StepLR", "step_size": 1, "gamma": 0.5}
    moves = {}
    for size in (48, 12):
        run = simulate(
            experiment("method=ssgd", "workload=quadratic", batch_size=size, learning_rate_schedule=halving, dtype="float64", **keys)
        )
        weights = [run.simulation.task.initial(), *(state.weights for state in run.states)]
        slopes = [run.simulation.task.gradient(at, Batch(step * size, size))[0] for step, at in enumerate(weights[:-1])]
        moves[size] = [
            round(((before - after) / slope).mean().item(), 9) for before, after, slope in zip(weights, weights[1:], slopes, strict=False)
        ]

    assert moves == {48: [1.0] * 2 + [0.5] * 2 + [0.25] * 2, 12: [1.0] * 8 + [0.5] * 8 + [0.25] * 8}


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (schedule("ReduceLROnPlateau"), r"^learning_rate_schedule\._target_=\S+ReduceLROnPlateau needs a validation loss"),
        (schedule("StepLR"), r"^learning_rate_schedule: \S+StepLR refuses .*step_size"),
        (schedule("StepLR", step_size=3, gama=0.5), r"^learning_rate_schedule\.gama is not an option of \S+StepLR; did you mean 'gamma'"),
        (schedule("StepLr", step_size=3), r"^learning_rate_schedule\._target_=\S+StepLr does not exist"),
        (schedule("LambdaLR", lr_lambda=0.5), r"^learning_rate_schedule: \S+LambdaLR refuses"),
        (Recipe("torch.optim.SGD", {}), r"^learning_rate_schedule\._target_=torch\.optim\.SGD is no LRScheduler"),
        (schedule("math.exp"), r"^learning_rate_schedule\._target_=\S+math\.exp does not exist"),
    ],
)
def test_what_is_no_schedule_by_epochs_is_refused_in_one_sentence(recipe: Recipe, sentence: str):
    """It needs a loss, an option or a function, has a misspelt one, or is something else."""
    with pytest.raises(ValueError, match=sentence) as error:
        flat("SGD", lr=0.1, schedule=recipe)
    assert "\n" not in str(error.value)


LATE = {"schedulers": [{"_target_": f"{SCHEDULE}.ExponentialLR", "gamma": 0.9}], "milestones": []}


@pytest.mark.parametrize(
    "schedule",
    [
        {"_target_": f"{SCHEDULE}.OneCycleLR", "max_lr": 0.1, "total_steps": 4},
        {
            "_target_": f"{SCHEDULE}.SequentialLR",
            "schedulers": [{"_target_": f"{SCHEDULE}.ConstantLR"}, {"_target_": f"{SCHEDULE}.SequentialLR", **LATE}],
            "milestones": [3],
        },
    ],
    ids=["one cycle of four epochs", "a nesting that torch cannot do"],
)
def test_a_schedule_that_breaks_off_during_the_run_is_told_so(schedule: dict[str, Any]):
    """One sentence that names the key, and no epoch trained in vain, for what torch notices in the fourth of eight epochs."""
    with pytest.raises(ValueError, match=r"^learning_rate_schedule"):
        experiment("method=ssgd", "workload=quadratic", learning_rate_schedule=schedule, budget={"epochs": 8}).load()
