"""Optimizers that know shapes: parameters as views of the vector, and Muon for the hidden matrices among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from threads import run_in_threads
from torch import nn
from worlds import cluster, experiment, node, simulate

from hetsim.distributed.rank.run import RankRun
from hetsim.runtime.experiment import Experiment
from hetsim.workloads.device import device
from hetsim.workloads.optimizer import FlatOptimizer
from hetsim.workloads.task import OptimizerRecipe, ParameterSpec, Recipe
from hetsim.workloads.tasks.flat_model import FlatModel

MUON, LMO = "hetsim.workloads.muon.Muon", "hetsim.workloads.lmo.LMO"
SMALL: dict[str, Any] = {"budget": {"epochs": 2}, "cluster": cluster(node(2e-4), node(1e-4), node(1e-4)), "workload": {"num_samples": 300}}


class AdamWByParameter(torch.optim.AdamW):
    """Torch's own, which gets each parameter by itself."""

    by_parameter = True


def model() -> nn.Module:
    """An embedding, a convolution, a hidden layer, a norm, and a head with the embedding's weights."""
    torch.manual_seed(0)
    layers = {
        "embedding": nn.Embedding(9, 5),
        "convolution": nn.Conv2d(2, 6, 3),
        "token": nn.Conv1d(5, 1, 4, bias=False),
        "hidden": nn.Linear(7, 5, bias=False),
        "norm": nn.LayerNorm(5),
        "head": nn.Linear(5, 9),
    }
    layers["head"].weight = layers["embedding"].weight
    return nn.ModuleDict(layers)


def flat(target: str, its: nn.Module, *, schedule: Recipe | None = None, **options: Any) -> FlatOptimizer:
    """The optimizer of this name for a model's vector."""
    made = FlatModel(its, [], seed=0, device=device("cpu"))
    return FlatOptimizer(OptimizerRecipe(Recipe(target, options), schedule, (__name__,)), made.num_parameters, made.parameters)


def steps(optimizer: FlatOptimizer, at: torch.Tensor, gradients: list[torch.Tensor], epoch: int = 0) -> torch.Tensor:
    """The weights after one step for each gradient."""
    memory = optimizer.initial()
    for gradient in gradients:
        memory, at = optimizer.step(memory, at, gradient, epoch)
    return at


def gradients(count: int, like: torch.Tensor) -> list[torch.Tensor]:
    """Some that point in no one direction."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(len(like), dtype=like.dtype, generator=generator) for _ in range(count)]


def by_torch(its: nn.Module, optimizers: list[torch.optim.Optimizer], given: list[torch.Tensor]) -> torch.Tensor:
    """The model's parameters after one step of torch's own optimizers on the model for each gradient."""
    parameters = list(its.parameters())
    for gradient in given:
        for parameter, part in zip(parameters, gradient.split([parameter.numel() for parameter in parameters]), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        for optimizer in optimizers:
            optimizer.step()
    return nn.utils.parameters_to_vector(parameters).detach()


def test_a_task_tells_names_offsets_and_shapes_and_which_are_hidden_matrices():
    """No embedding, no head, no vector, and nothing of a single row; a head that shares the embedding's weights is still the head."""
    assert FlatModel(model(), [], seed=0, device=device("cpu")).parameters == (
        ParameterSpec("embedding.weight", 0, (9, 5)),
        ParameterSpec("convolution.weight", 45, (6, 2, 3, 3), hidden=True),
        ParameterSpec("convolution.bias", 153, (6,)),
        ParameterSpec("token.weight", 159, (1, 5, 4)),
        ParameterSpec("hidden.weight", 179, (5, 7), hidden=True),
        ParameterSpec("norm.weight", 214, (5,)),
        ParameterSpec("norm.bias", 219, (5,)),
        ParameterSpec("head.bias", 224, (9,)),
    )
    digits, quadratic = (experiment(f"workload={name}", **SMALL).load()[0] for name in ("digits", "quadratic"))
    assert [spec.name for spec in digits.parameters() if spec.hidden] == ["1.weight"]
    assert quadratic.parameters() == (ParameterSpec("weights", 0, (50,)),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_by_views_is_adamw_by_one_vector_bit_for_bit(dtype: torch.dtype):
    """Of a model with a thousand numbers in four parameters, over ten steps."""
    its = nn.Sequential(nn.Linear(31, 23), nn.Linear(23, 17))
    at = nn.utils.parameters_to_vector(its.parameters()).detach().to(dtype)
    given = gradients(10, at)

    views, vector = (flat(target, its, lr=0.1) for target in (f"{__name__}.AdamWByParameter", "torch.optim.AdamW"))

    assert len(views.step(views.initial(), at, given[0], 0)[0]) == 4 * len(vector.step(vector.initial(), at, given[0], 0)[0])
    assert torch.equal(steps(views, at, given), steps(vector, at, given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_muon_is_torchs_muon_on_hidden_matrices_and_adamw_on_the_rest(adjust: str, dtype: torch.dtype):
    """Bit for bit over ten steps of a model's own parameters; a convolution's weights are a matrix of one row for each output."""
    ours, its = model().to(dtype), model().to(dtype)
    at = nn.utils.parameters_to_vector(ours.parameters()).detach()
    given = gradients(10, at)
    kernels = its["convolution"].weight
    kernels.data = kernels.data.view(6, 18)
    hidden = [kernels, its["hidden"].weight]
    others = [parameter for parameter in its.parameters() if all(parameter is not other for other in hidden)]
    theirs = [
        torch.optim.Muon(hidden, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust),
        torch.optim.AdamW(others, lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95)),
    ]

    moved = steps(flat(MUON, ours, lr=0.02, adamw_lr=3e-4, adjust_lr_fn=adjust), at, given)

    assert torch.equal(moved, by_torch(its, theirs, given))


@pytest.mark.parametrize(("inputs", "hidden"), [(4, 6), (6, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lmo_steps_along_singular_vectors_and_signs_of_the_momentum(dtype: torch.dtype, inputs: int, hidden: int):
    """Of hidden matrices as torch's Muon does without Nesterov and weight decay, bit for bit; of others written out."""
    its = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, 3, bias=False)).to(dtype)
    at = nn.utils.parameters_to_vector(its.parameters()).detach().clone()
    given = gradients(6, at)
    lr = 0.02 * min(1.0, (hidden / inputs) ** 0.5)  # torch multiplies by √max(1, a/b)
    theirs = torch.optim.Muon([its[0].weight], lr=lr, momentum=0.75, nesterov=False, weight_decay=0.0, adjust_lr_fn="original")
    m, x = torch.zeros(3 * hidden, dtype=dtype), at[24:].clone()
    for gradient in given:
        m = m.lerp(gradient[24:], 0.25)
        x = x - 0.02 * m.sign()

    moved = steps(flat(LMO, its, lr=0.02, alpha=0.25), at, given)

    assert torch.equal(moved[:24], by_torch(its, [theirs], given)[:24])
    assert torch.equal(moved[24:], x)


def test_adafactor_factors_the_second_moments_of_each_matrix():
    """It gets parameters by themselves, as the model has them: on one vector it would be another algorithm."""
    ours, its = (nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4)) for _ in range(2))
    its.load_state_dict(ours.state_dict())
    at = nn.utils.parameters_to_vector(ours.parameters()).detach()
    given = gradients(5, at)
    optimizer = flat("torch.optim.Adafactor", ours, lr=0.1)

    moved = steps(optimizer, at, given)

    assert torch.equal(moved, by_torch(its, [torch.optim.Adafactor(its.parameters(), lr=0.1)], given))
    assert len(optimizer.step(optimizer.initial(), at, given[0], 0)[0]["0.weight/row_var"]) == 6


@pytest.mark.parametrize("target", [MUON, LMO, "torch.optim.Adafactor"])
def test_a_step_by_views_changes_nothing_that_it_was_given(target: str):
    """A slower worker may still hold the weights, a committed state the memory, and another object resumes with that memory."""
    its = model()
    ours, at = flat(target, its, lr=0.01), nn.utils.parameters_to_vector(its.parameters()).detach()
    first, second = gradients(2, at)
    memory, at = ours.step(ours.initial(), at, first, 0)
    held = [at.clone(), second.clone(), {key: value.clone() for key, value in memory.items()}]

    once, twice, resumed = (
        ours.step(memory, at, second, 0),
        ours.step(memory, at, second, 0),
        flat(target, its, lr=0.01).step(memory, at, second, 0),
    )

    assert torch.equal(once[1], twice[1])
    assert torch.equal(once[1], resumed[1])
    assert torch.equal(at, held[0])
    assert torch.equal(second, held[1])
    assert all(torch.equal(memory[key], held[2][key]) and memory[key].ndim <= 1 for key in memory)
    assert memory.keys() == held[2].keys() == once[0].keys()


def test_a_schedule_sets_both_rates():
    """Half of both in the next epoch, in whichever order epochs are asked for."""
    its = model()
    at = nn.utils.parameters_to_vector(its.parameters()).detach().double()
    halving = Recipe("torch.optim.lr_scheduler.StepLR", {"step_size": 1, "gamma": 0.5})
    scheduled = flat(MUON, its, lr=0.02, adamw_lr=0.01, schedule=halving)
    halved = flat(MUON, its, lr=0.01, adamw_lr=0.005)

    assert torch.equal(steps(scheduled, at, gradients(2, at), epoch=1), steps(halved, at, gradients(2, at)))
    assert not torch.equal(steps(scheduled, at, gradients(2, at), epoch=0), steps(halved, at, gradients(2, at)))


def test_a_models_statistics_pass_muon_on():
    """They are averaged, as with every optimizer: what stands after the parameters is set to what the gradient has there."""
    task, optimizers = experiment(
        "optimizer=muon", workload={"num_samples": 300, "model": "resnet20", "model_options": {"width": 4}}
    ).load()
    at, size = task.initial(), task.num_parameters
    assert size is not None

    _, moved = optimizers.main.step(optimizers.main.initial(), at, torch.cat([at[:size], torch.full_like(at[size:], 2.0)]), 0)

    assert moved[size:-1].unique().tolist() == [1.0]


def described(**keys: Any) -> Experiment:
    """Digits with Muon on three nodes."""
    return experiment("method=ssgd", "optimizer=muon", "workload=digits", **{**SMALL, "batch_size": 60, "budget": {"epochs": 6}, **keys})


def test_a_run_with_muon_trains_and_resumes_bit_for_bit():
    """At the shipped rate; the memory of each parameter is in the checkpoint."""
    whole = simulate(described(), saved=True)
    rest = simulate(described(), checkpoint=whole.checkpoints[9], saved=True)

    assert torch.equal(rest.weights, whole.weights)
    first, *_, last = (point.evaluation.train_loss for point in whole.simulation.curve.points)
    assert last < 0.7 * first


@pytest.mark.slow
def test_the_ranks_of_a_real_run_step_as_the_simulator_does():
    """To the last bit, with averages of local steps in between."""
    its = experiment("method=muloco", "workload=digits", **SMALL, batch_size=60, coordination={"period": 2})

    leader = run_in_threads(its)[its.leader]

    assert isinstance(leader, RankRun)
    assert torch.equal(leader.history.last.weights, simulate(its).weights)


def test_a_phantom_takes_as_long_with_muon_as_with_sgd():
    """The cluster says what an update takes."""
    runs = [simulate(experiment(f"optimizer={name}", "workload=phantom", budget={"updates": 5})) for name in ("muon", "sgd")]

    assert runs[0].seconds == runs[1].seconds


@pytest.mark.parametrize(
    ("choices", "keys", "sentence"),
    [
        (
            (),
            {"optimizer": {"_target_": "torch.optim.Muon"}},
            r"^optimizer\._target_=torch\.optim\.Muon is for matrices alone: take hetsim\.workloads\.muon\.Muon, as optimizer=muon does$",
        ),
        (("optimizer=muon",), {"optimizer": {"lr": -1.0}}, rf"^optimizer: {MUON} refuses .*Learning rate should be >= 0 but is: -1\.0$"),
        (("method=ringmaster_lmo",), {"optimizer": {"alpha": 2}}, rf"^optimizer: {LMO} refuses .*alpha must be at most 1, not 2$"),
        (("method=ringmaster_lmo",), {"optimizer": {"alpha": 0}}, rf"^optimizer: {LMO} refuses .*alpha must be a finite number above zero"),
        (("optimizer=muon",), {"optimizer": {"adjust_lr_fn": "mine"}}, rf"^optimizer: {MUON} refuses .*mine is not supported$"),
        (
            ("optimizer=muon",),
            {"optimizer": {"foreach": True}},
            rf"^optimizer\.foreach is not an option of {MUON}: add '~optimizer\.foreach' to leave it out$",
        ),
        (
            ("method=streaming_diloco", "optimizer=muon"),
            {},
            rf"^optimizer\._target_={MUON} steps parameter by parameter, but coordination\.fragments=2 cuts the vector anywhere: "
            r"type coordination\.fragments=1 or optimizer=nesterov$",
        ),
        (
            ("method=asgd", "optimizer=muon", "weighting=per_sample"),
            {},
            rf"^optimizer\._target_={MUON} does not depend on a gradient's scale",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(choices: tuple[str, ...], keys: dict[str, Any], sentence: str):
    """Muon itself on vectors, options that it does not have, fragments that cut matrices, weights that it does not feel."""
    with pytest.raises(ValueError, match=sentence) as error:
        experiment("workload=digits", *choices, **keys).load()
    assert "\n" not in str(error.value)
