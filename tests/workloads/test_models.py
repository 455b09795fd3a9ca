"""Gradients of models: what they are, and that it does not matter who computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters
from worlds import Run, cluster, experiment, node, simulate

from hetsim.effects import Batch
from hetsim.workloads.data.base import Augmentation
from hetsim.workloads.device import CPU
from hetsim.workloads.models.registry import OWN
from hetsim.workloads.task import Task
from hetsim.workloads.tasks.flat_model import FlatModel
from hetsim.workloads.tasks.images import augment_images

augmented = partial(augment_images, device=CPU())


def images(folder: Path, *shape: int, samples: int = 24, value: float | None = None, classes: int = 3) -> str:
    """An archive of random images of this shape, or of one constant value in one class."""
    x = np.random.default_rng(0).random((samples, *shape), dtype=np.float32)
    y = np.arange(samples) % classes
    if value is not None:
        x, y = np.full_like(x, value), np.zeros_like(y)
        x[-1], y[-1] = 0.0, classes - 1  # one other, so that there is a deviation and a class to tell apart
    np.savez(folder / "images.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return str(folder / "images.npz")


def task_of(path: str, model: str, *, seed: int = 0, dtype: str = "float64", **workload: Any) -> Task:
    """The loaded task of an archive and a model."""
    return experiment("workload=arrays", workload={"path": path, "model": model, **workload}, seed=seed, dtype=dtype).load()[0]


def inputs(task: Task) -> list[torch.Tensor]:
    """Of training and of test, as the model is given them."""
    seen: list[torch.Tensor] = []
    hook = task.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    task.evaluate(task.initial())
    hook.remove()
    return seen


def differences(f: Callable[[torch.Tensor], float], at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """Central finite differences of f, one coordinate after the other."""
    steps = step * torch.eye(len(at), dtype=at.dtype)
    return torch.tensor([(f(at + each) - f(at - each)) / (2 * step) for each in steps], dtype=at.dtype)


# Gradients


def test_a_gradient_is_the_slope_of_its_loss(tmp_path: Path):
    """Of the mean loss over the batch, against finite differences in float64."""
    task = task_of(images(tmp_path, 5), "mlp", model_options={"hidden": [4]})
    batch = Batch(20, 9)  # across the end of an epoch

    gradient, _ = task.gradient(task.initial(), batch)

    slope = differences(lambda at: task.gradient(at, batch)[1], task.initial())
    assert (gradient - slope).abs().max() < 1e-8
    assert gradient.norm() > 0.1


def test_a_quadratics_gradient_is_the_slope_of_its_loss():
    """Over one whole epoch; its loss is zero at the optimum and nowhere else."""
    task, _ = experiment("workload=quadratic", workload={"num_parameters": 5, "num_samples": 20}, dtype="float64").load()
    at = task.initial() + 0.3

    gradient, _ = task.gradient(at, Batch(0, 20))

    assert (gradient - differences(lambda x: task.evaluate(x).train_loss, at)).abs().max() < 1e-8
    assert task.evaluate(task.optimum).train_loss == 0.0
    assert task.evaluate(at).train_loss > 0.01


@pytest.mark.parametrize(
    "workload",
    [{}, {"augmentation": {"pad": 2, "mirror": True}}, {"resize": 11}, {"model": "lenet"}],
    ids=["mlp", "augmented", "resized", "lenet"],
)
@pytest.mark.parametrize("cut", [1, 7, 12])
def test_gradients_of_two_ranges_make_that_of_their_union(tmp_path: Path, workload: dict[str, Any], cut: int):
    """Weighted by their samples, wherever the union is cut; losses too."""
    task = task_of(images(tmp_path, 8, 8), **{"model": "mlp", **workload})
    at = task.initial()

    (left, left_loss), (right, right_loss), (whole, loss) = (
        task.gradient(at, batch) for batch in (Batch(18, cut), Batch(18 + cut, 13 - cut), Batch(18, 13))
    )

    assert ((cut * left + (13 - cut) * right) / 13 - whole).abs().max() < 1e-12
    assert (cut * left_loss + (13 - cut) * right_loss) / 13 == pytest.approx(loss, rel=1e-12)
    assert (left - right).abs().max() > 1e-3


# Chance


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_dropout_draws_by_seed_and_start_whoever_computes(tmp_path: Path, model: str):
    """The same range gives the same gradient, whatever was computed before and in whichever process."""
    path = images(tmp_path, 8, 8)
    one, other, another_seed = (task_of(path, model, model_options={"dropout": 0.5}, seed=seed) for seed in (5, 5, 6))
    at = one.initial()
    for start in range(4):
        other.gradient(at, Batch(start, 3))
    torch.rand(7)

    gradient = one.gradient(at, Batch(3, 6))[0]

    assert torch.equal(gradient, other.gradient(at, Batch(3, 6))[0])
    assert not torch.equal(gradient, one.gradient(at, Batch(4, 6))[0])
    assert not torch.equal(gradient, another_seed.gradient(at, Batch(3, 6))[0])


def test_another_start_or_seed_draws_another_dropout(tmp_path: Path):
    """Of samples that are all equal: without dropout each range has the same gradient, with it none has another's."""
    path = images(tmp_path, 5, value=1.0)
    at = task_of(path, "mlp").initial()
    gradients = {}
    for dropout in (0.0, 0.5):
        for seed in (0, 1):
            task = task_of(path, "mlp", model_options={"dropout": dropout}, seed=seed)
            odd = task.sequence.indices(Batch(0, 24)).tolist().index(23)
            for start in [start for start in (0, 5, 10, 15, 20) if not start <= odd < start + 4][:3]:
                gradients[dropout, seed, start] = tuple(task.gradient(at, Batch(start, 4))[0].mul(1e12).round().tolist())

    assert len({gradient for (dropout, *_), gradient in gradients.items() if dropout == 0.0}) == 1
    assert len({gradient for (dropout, *_), gradient in gradients.items() if dropout == 0.5}) == 6


def test_evaluation_drops_and_augments_nothing(tmp_path: Path):
    """It is the plain model on the plain images, however often."""
    path = images(tmp_path, 8, 8)
    plain, both = task_of(path, "mlp"), task_of(path, "mlp", model_options={"dropout": 0.5}, augmentation={"pad": 2, "mirror": True})
    at = plain.initial()
    both.gradient(at, Batch(0, 5))

    assert plain.evaluate(at) == both.evaluate(at) == both.evaluate(at)


def test_augmentation_depends_on_the_position_alone():
    """Cutting a batch gives the same images; another seed and other positions give others."""
    batch = torch.rand(30, 2, 7, 6, generator=torch.Generator().manual_seed(0))
    how = Augmentation(pad=2, mirror=True)
    positions = np.arange(100, 130)

    whole = augmented(batch, how, seed=1, positions=positions)

    assert torch.equal(
        torch.cat(
            [augmented(batch[:13], how, seed=1, positions=positions[:13]), augmented(batch[13:], how, seed=1, positions=positions[13:])]
        ),
        whole,
    )
    assert not torch.equal(augmented(batch, how, seed=2, positions=positions), whole)
    assert not torch.equal(augmented(batch, how, seed=1, positions=positions + 1), whole)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_an_augmented_image_is_a_shift_of_it_or_of_its_mirror_image(pad: int, mirror: bool):
    """Each of the (2·pad + 1)² shifts of either is drawn about equally often, and nothing else is."""
    image = torch.arange(1.0, 31.0).reshape(1, 1, 5, 6)
    sides = [image, image.flip(3)] if mirror else [image]
    padded = [functional.pad(side, (pad,) * 4) for side in sides]
    size = 2 * pad + 1
    possible = [side[0, 0, down : down + 5, right : right + 6] for side in padded for down in range(size) for right in range(size)]

    made = augmented(image.expand(4000, -1, -1, -1), Augmentation(pad=pad, mirror=mirror), seed=0, positions=np.arange(4000))

    counts = [int((made[:, 0] == one).flatten(1).all(1).sum()) for one in possible]
    share = 4000 / len(possible)
    assert sum(counts) == 4000
    assert all(abs(count - share) <= 5 * share**0.5 for count in counts)


@pytest.mark.parametrize(("workload", "sentence"), [({"augmentation": {"pad": 1}}, "augmentation"), ({"resize": 9}, "resize")])
def test_plain_features_are_no_images(tmp_path: Path, workload: dict[str, Any], sentence: str):
    """What only makes sense of images is refused of features."""
    with pytest.raises(ValueError, match=rf"^workload\.{sentence}.* needs images, not plain features: leave it out$"):
        task_of(images(tmp_path, 5), "mlp", **workload)


# Models by name


@pytest.mark.slow
@pytest.mark.parametrize("model", ["squeezenet1_1", "googlenet", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 3)], ids=["grey", "colour"])
@pytest.mark.sampled(2)
def test_torchvisions_classifiers_are_models_by_name(tmp_path: Path, model: str, shape: tuple[int, ...]):
    """They build, for grey images too, and have a finite gradient; the seed decides their weights."""
    path = images(tmp_path, *shape, samples=6)
    task = task_of(path, model, dtype="float32")

    gradient, loss = task.gradient(task.initial(), Batch(0, 3))

    assert gradient.isfinite().all()
    assert loss > 0
    assert torch.equal(task.initial(), task_of(path, model, dtype="float32").initial())
    assert not torch.equal(task.initial(), task_of(path, model, dtype="float32", seed=1).initial())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "resnet19",
            r"^workload\.model must be mlp, lenet, resnet20 or a classification model of torchvision, not 'resnet19'; did you mean 'res",
        ),
        ("fcn_resnet50", r"^workload\.model must be mlp, lenet, resnet20 or a classification model"),
        ("alexnet", r"^workload\.model=alexnet cannot take inputs of 1 x 8 x 8 .*set workload\.resize to a larger image side"),
    ],
)
def test_what_is_no_model_for_these_images_is_refused_in_one_sentence(tmp_path: Path, model: str, sentence: str):
    """An unknown name, a model of another task, and one that needs larger images."""
    with pytest.raises(ValueError, match=sentence) as error:
        task_of(images(tmp_path, 8, 8), model)
    assert "\n" not in str(error.value)


def test_an_unknown_option_of_a_model_is_refused_in_one_sentence(tmp_path: Path):
    """It names the option and those there are."""
    with pytest.raises(ValueError, match=r"^workload\.model_options\.widht is not an option of mlp \(hidden, dropout\)"):
        task_of(images(tmp_path, 5), "mlp", model_options={"widht": 3})


# Batch-norm statistics


def normed(shape: Any, num_classes: int) -> nn.Module:
    """The smallest model with running statistics."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, num_classes))


@pytest.fixture
def normed_model(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which it can be built."""
    monkeypatch.setitem(OWN, "normed", normed)
    return "normed"


def statistics(model: nn.Module) -> torch.Tensor:
    """What a model of torch's own keeps beside its parameters."""
    return torch.cat([buffer.reshape(-1) for buffer in model.buffers() if buffer.is_floating_point()])


def committed(task: Task, weights: torch.Tensor) -> torch.Tensor:
    """The statistics in a flat vector: they stand behind the parameters."""
    return weights[task.num_parameters :][: len(statistics(task.model))]


def by_hand(task: Task, model: nn.Module, at: torch.Tensor) -> nn.Module:
    """A model of torch's own with these parameters and these statistics."""
    model = model.double()
    vector_to_parameters(at[: task.num_parameters].clone(), model.parameters())
    rest = at[task.num_parameters :].clone()
    for buffer in (buffer for buffer in model.buffers() if buffer.is_floating_point()):
        buffer.copy_(rest[: buffer.numel()].view_as(buffer))
        rest = rest[buffer.numel() :]
    return model


def statistics_after(task: Task, model: nn.Module, at: torch.Tensor, batch: Batch) -> torch.Tensor:
    """What torch's own model keeps once it has seen this batch."""
    model = by_hand(task, model, at).train()
    model(inputs(task)[0][task.sequence.indices(batch)])
    return statistics(model)


def trained(path: str, model: str, *choices: str, updates: int = 1, workers: int = 2, batch_size: int = 12, **keys: Any) -> Run:
    """Synchronous SGD of a model with batch norm, in float64."""
    world = {"cluster": cluster(node(1e-3, count=workers)), "budget": {"updates": updates}, "dtype": "float64", "batch_size": batch_size}
    return simulate(experiment("method=ssgd", "workload=arrays", *choices, workload={"path": path, "model": model}, **world, **keys))


@pytest.mark.slow
@pytest.mark.parametrize("coordination", ["all_reduce", "parameter_server"])
@pytest.mark.parametrize(("weighting", "weights"), [("per_worker", (1 / 2, 1 / 2)), ("per_sample", (1 / 4, 3 / 4))])
def test_committed_statistics_are_the_mean_of_the_workers(
    tmp_path: Path, normed_model: str, coordination: str, weighting: str, weights: tuple[float, float]
):
    """Each worker goes on from the global ones by its own batch; the committed ones are their mean, weighted like gradients."""
    axes = (f"coordination={coordination}", "allocation=fixed", f"weighting={weighting}")

    run = trained(images(tmp_path, 5), normed_model, *axes, updates=2, batch_size=8, allocation={"parts": [1, 3]})

    task, first, second = run.simulation.task, *run.states
    for before, after, start in ((task.initial(), first.weights, 0), (first.weights, second.weights, 8)):
        own = [statistics_after(task, normed((5,), 3), before, batch) for batch in (Batch(start, 2), Batch(start + 2, 6))]
        mean = sum(weight * each for weight, each in zip(weights, own, strict=True))
        assert (committed(task, after) - mean).abs().max() < 1e-12
        assert (committed(task, after) - committed(task, before)).abs().min() > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_optimizer_does_not_touch_the_statistics(tmp_path: Path, normed_model: str, optimizer: str):
    """Neither its rate nor its memory nor its decay of weights: they are as they are without it."""
    path = images(tmp_path, 5)
    still = trained(path, normed_model, "optimizer=sgd", optimizer={"lr": 0.0, "momentum": 0.9})
    moved = trained(path, normed_model, f"optimizer={optimizer}", optimizer={"lr": 0.5, "weight_decay": 0.5})

    task, size = still.simulation.task, still.simulation.task.num_parameters
    assert torch.equal(committed(task, still.weights), committed(task, moved.weights))
    assert (still.weights[:size] - moved.weights[:size]).abs().min() > 0


def test_evaluation_uses_the_committed_statistics(tmp_path: Path, normed_model: str):
    """The loss and the accuracy of torch's own model with them, and not those of a batch."""
    path = images(tmp_path, 5)

    run = trained(path, normed_model, updates=3)

    task = run.simulation.task
    model = by_hand(task, normed((5,), 3), run.weights).eval()
    with torch.no_grad():
        train, test = map(model, inputs(task))
    evaluation, labels = task.evaluate(run.weights), {name: torch.from_numpy(its) for name, its in np.load(path).items()}
    assert evaluation.train_loss == pytest.approx(functional.cross_entropy(train, labels["y_train"]).item(), rel=1e-12)
    assert evaluation.test_accuracy == (test.argmax(1) == labels["y_test"]).double().mean().item()
    assert task.evaluate(torch.cat([run.weights[: task.num_parameters], task.initial()[task.num_parameters :]])) != evaluation


def test_a_gradient_does_not_depend_on_what_was_computed_before(tmp_path: Path, normed_model: str):
    """A worker starts from the weights that it is given, statistics and all, and leaves nothing behind."""
    task = task_of(images(tmp_path, 5), normed_model)
    at = task.initial()
    before = at.clone()
    first, _ = task.gradient(at, Batch(0, 6))
    task.gradient(at + 1.0, Batch(6, 6))

    assert torch.equal(task.gradient(at, Batch(0, 6))[0], first)
    assert torch.equal(at, before)


def test_a_share_too_small_for_batch_norm_is_told_so(tmp_path: Path, normed_model: str):
    """One sample has no variance."""
    with pytest.raises(ValueError, match=r"^workload\.model: a share of 1 samples is too small for it .*: raise batch_size$"):
        trained(images(tmp_path, 5), normed_model, batch_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [8, 24])
def test_asynchronous_statistics_stay_statistics(tmp_path: Path, normed_model: str, num_workers: int):
    """However late a worker's are, a committed variance is one: never negative, never beyond what the batches have."""
    run = simulate(
        experiment(
            "method=asgd",
            "workload=arrays",
            workload={"path": images(tmp_path, 5, samples=96), "model": normed_model},
            cluster=cluster(node(1e-3, count=num_workers)),
            batch_size=12 * num_workers,
            optimizer={"lr": 0.0},
            budget={"updates": 20 * num_workers},
        )
    )

    variances = torch.stack([committed(run.simulation.task, state.weights)[4:] for state in run.states])
    assert variances.min() > 0
    assert variances.max() < 10


@pytest.mark.slow
def test_resnet18_trains_behind_a_barrier(tmp_path: Path):
    """A whole network of torchvision's: its statistics after a step are the mean of what each worker's batch gives."""
    import torchvision.models

    path = images(tmp_path, 16, 16, 3, samples=8)

    run = trained(path, "resnet18", batch_size=8)

    task = run.simulation.task
    own = [
        statistics_after(task, torchvision.models.resnet18(num_classes=3), task.initial(), batch) for batch in (Batch(0, 4), Batch(4, 4))
    ]
    assert (committed(task, run.weights) - (own[0] + own[1]) / 2).abs().max() < 1e-12
    assert len(own[0]) == 9600


def test_a_gradient_has_the_bits_of_autograd_grad_and_zeros_for_an_unused_parameter() -> None:
    model = nn.ModuleDict({"used": nn.Linear(5, 3), "unused": nn.Linear(5, 2)})
    x, y = torch.randn(7, 5), torch.arange(7) % 3
    flat = FlatModel(model, [], seed=0, device=CPU())

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model["used"](x), y)

    gradient, mean = flat.gradient(flat.initial, Batch(0, 7), loss)

    used = torch.autograd.grad(loss(), list(model["used"].parameters()))
    assert torch.equal(gradient, torch.cat([*(part.reshape(-1) for part in used), torch.zeros(12)]))
    assert mean == loss().item()


def test_a_loss_of_several_numbers_has_no_gradient() -> None:
    model = nn.Linear(5, 3)
    flat = FlatModel(model, [], seed=0, device=CPU())

    with pytest.raises(RuntimeError, match="shape"):
        flat.gradient(flat.initial, Batch(0, 7), lambda: model(torch.ones(7, 5)).sum(1))
