"""A model, data, a loss and metrics of the user's own: trained as plain PyTorch would, in both worlds."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_modules import EVERY_KIND, LANGUAGE, REGRESSION, own, written
from processes import run_all_in_processes
from torch.nn.utils import parameters_to_vector
from torch.utils.data import default_collate
from worlds import UNEVEN, exit_status, experiment, simulate

import hetsim
from hetsim.cli.main import main
from hetsim.effects import Batch
from hetsim.workloads.own import Training
from hetsim.workloads.own.task import OwnTask
from hetsim.workloads.tasks.sequence import Sequence


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What writes a module of this text, and says its name."""
    return lambda text: written(tmp_path, text, monkeypatch)


def task(name: str, **keys: Any) -> OwnTask:
    """The loaded task of a module's `build`."""
    loaded = own(name, **keys).load()[0]
    assert isinstance(loaded, OwnTask)
    return loaded


def by_hand(name: str, *, updates: int, batch: int = 8, rate: float = 0.1, momentum: float = 0.9) -> torch.Tensor:
    """The parameters after so many steps of PyTorch's own training loop, in float64."""
    torch.manual_seed(0)
    made: Training = importlib.import_module(name).build()
    model = made.model.double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    sequence = Sequence(len(made.train), seed=0)
    for update in range(updates):
        data = default_collate([made.train[int(index)] for index in sequence.indices(Batch(update * batch, batch))])
        inputs, target = data if isinstance(data, list | tuple) else (data, data)
        if isinstance(inputs, dict):
            inputs = target = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        elif inputs.is_floating_point():
            inputs, target = inputs.double(), target.double()
        optimizer.zero_grad()
        made.loss(model(inputs), target).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_one_worker_is_plain_pytorch(kind: str, module: Any) -> None:
    """Step by step, on the same sample sequence: regression, floats, a language model, dictionaries."""
    name = module(EVERY_KIND[kind])

    run = simulate(own(name, optimizer={"lr": 0.1, "momentum": 0.9}, budget={"updates": 12}))

    assert torch.allclose(run.weights, by_hand(name, updates=12), rtol=0, atol=1e-12)
    assert (run.weights - run.simulation.task.initial()).abs().max() > 1e-3


@pytest.mark.slow
def test_both_worlds_train_it_alike(module: Any) -> None:
    """Regression, floats, a language model and dictionaries, with synchronous SGD: the same parameters, bit by bit, on every rank."""
    experiments = [own(module(text), cluster=UNEVEN, dtype="float32", batch_size=12) for text in EVERY_KIND.values()]

    measured = run_all_in_processes(experiments)

    for each, parts in zip(experiments, measured, strict=True):
        states = simulate(each).states
        for part in parts:
            assert [state.version for state in part.states] in ([], [state.version for state in states])
        assert torch.equal(parts[0].states[-1].weights, states[-1].weights)


UNSEEDED = """
@hetsim.workload
def build():
    x = torch.tensor(np.random.default_rng().standard_normal((40, 1)))
    return hetsim.Training(model=nn.Linear(1, 1), train=TensorDataset(x, x), loss=F.mse_loss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "asgd"])
def test_data_that_differ_by_rank_are_one_sentence(
    method: str, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before each rank trains on its own."""
    name = module(UNSEEDED)

    assert command(monkeypatch, name, f"method={method}", "backend=dist", f"hydra.run.dir={tmp_path / 'run'}") == 1

    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"hetsim: error: workload={name}:build differs by rank: the same samples at the first weights have")
    assert not (tmp_path / "run").exists()


DIGITS = """
from sklearn.datasets import load_digits
from hetsim.workloads.models.small import mlp

def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).float().mean()

@hetsim.workload
def build():
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = torch.tensor(bunch.images[order, None], dtype=torch.float32), torch.tensor(bunch.target[order])
    mean, deviation = x[:1437].double().mean(), x[:1437].double().std(correction=0)
    x = (x - mean.float()) * (1 / deviation).float()
    return hetsim.Training(
        model=mlp((1, 8, 8), 10), train=TensorDataset(x[:1437], y[:1437]), test=TensorDataset(x[1437:], y[1437:]),
        loss=F.cross_entropy, metrics={"test_accuracy": accuracy},
    )
"""


def test_the_digits_rebuilt_are_the_digits(module: Any) -> None:
    """The same initial weights, and the same curve as workload=digits, with a server and without."""
    name = module(DIGITS)
    keys: dict[str, Any] = {"cluster": UNEVEN, "budget": {"epochs": 1}, "batch_size": 96, "dtype": "float32", "optimizer": {"lr": 0.1}}
    for choice in ("method=ssgd", "method=dbs_sgd"):
        ours, theirs = simulate(own(name, choice, **keys)), simulate(experiment(choice, "workload=digits", **keys))

        assert torch.equal(ours.simulation.task.initial(), theirs.simulation.task.initial())
        assert torch.allclose(ours.weights, theirs.weights, rtol=0, atol=1e-5)
        assert ours.seconds == theirs.seconds
        for one, other in zip(ours.simulation.curve.points, theirs.simulation.curve.points, strict=True):
            assert one.evaluation.train_loss == pytest.approx(other.evaluation.train_loss, rel=1e-4)
            assert one.evaluation.test_accuracy == pytest.approx(other.evaluation.test_accuracy, abs=2 / 360)


def test_the_serial_law_holds(module: Any) -> None:
    """Weighted per sample, any split of the batch gives the parameters of one worker."""
    name = module(LANGUAGE)
    split = own(
        name, "method=ssgd", "allocation=fixed", "weighting=per_sample", cluster=UNEVEN, allocation={"parts": [1, 3, 2]}, batch_size=12
    )

    assert torch.allclose(simulate(split).weights, simulate(own(name, batch_size=12)).weights, rtol=0, atol=1e-12)


# What is evaluated


def test_losses_and_metrics_are_means_over_samples(module: Any) -> None:
    """Over the whole sets, however many samples are evaluated together."""
    name = module(REGRESSION.replace("100)", "1400)"))
    loaded = task(name)
    at = loaded.initial() + 0.1

    evaluation = loaded.evaluate(at)

    torch.manual_seed(0)
    made = importlib.import_module(name).build()
    model = made.model.double()
    torch.nn.utils.vector_to_parameters(at, model.parameters())
    with torch.no_grad():
        train, test = ((model(data.tensors[0].double()), data.tensors[1].double()) for data in (made.train, made.test))
    assert evaluation.train_loss == pytest.approx(torch.nn.functional.mse_loss(*train).item())
    assert evaluation.metrics["test_loss"] == pytest.approx(torch.nn.functional.mse_loss(*test).item())
    assert evaluation.metrics["test_error"] == pytest.approx(torch.nn.functional.l1_loss(*test).item())
    assert evaluation.test_accuracy is None


def command(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> int:
    """The command's exit status, for a quick run of this module's `build`."""
    quick = ("workload=own", f"workload.module={name}:build", f"trust=[{name}]", "batch_size=12", "budget.updates=3", "learning_rate=0.01")
    return exit_status(monkeypatch, "hetsim", main, *quick, *words)


@pytest.mark.slow
def test_metrics_of_ones_own_are_in_every_file(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under their names in the summary and as columns of the curve, in words in what is printed; no accuracy where there is none."""
    monkeypatch.chdir(tmp_path)
    name = module(REGRESSION)
    for folder, method in (("one", "ssgd"), ("two", "asgd")):
        assert command(monkeypatch, name, f"method={method}", f"hydra.run.dir={folder}") == 0

    told = capsys.readouterr().out
    run = hetsim.load("one")
    final = run.summary["final"]
    assert list(final) == ["train_loss", "test_accuracy", "test_loss", "test_error"]
    assert final["test_accuracy"] is None
    assert f", test loss {final['test_loss']:.4g}, test error {final['test_error']:.4g}\n" in told
    assert "accuracy" not in told
    assert run.summary["workload"] == f"{name}:build"
    assert run.curve().column_names == ["seconds", "version", "samples", "train_loss", "test_accuracy", "test_loss", "test_error"]
    assert run.curve()["test_error"].to_pylist()[-1] == final["test_error"]
    assert [row["name"] for row in hetsim.compare("one", "two").rows][-2:] == ["test loss", "test error"]
    assert {path.name for path in Path("one").iterdir()} >= {"curve.png", "timeline.png"}


@pytest.mark.slow
def test_a_metric_that_is_called_test_accuracy_is_it(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where tables, searches and the time to an accuracy find it."""
    name = module(EVERY_KIND["dictionary"])

    assert command(monkeypatch, name, f"hydra.run.dir={tmp_path / 'run'}", "pictures=false") == 0

    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    assert list(final) == ["train_loss", "test_accuracy", "test_loss"]
    assert f", test accuracy {final['test_accuracy']:.4f}, test loss " in capsys.readouterr().out


# Samples

RANDOM = """
import random

class Noisy(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor([index + torch.rand(()), np.random.rand(), random.random()]), float(index)

def loss(outputs, targets):
    return F.mse_loss(outputs.squeeze(1), targets)

@hetsim.workload
def build():
    return hetsim.Training(model=nn.Linear(3, 1), train=Noisy(), test=Noisy(), loss=loss)
"""


def test_what_a_sample_draws_is_a_function_of_its_position(module: Any) -> None:
    """Whoever computes, however the batch is cut, whatever was drawn before; not the same in the next epoch, nor for another seed."""
    name = module(RANDOM)
    one, other, another_seed = task(name), task(name), task(name, seed=1)
    at = one.initial()
    for start in range(3):
        other.gradient(at, Batch(start, 3))
    random.random(), np.random.rand(), torch.rand(7)

    (left, _), (right, _), (whole, _) = (one.gradient(at, Batch(*part)) for part in ((3, 2), (5, 4), (3, 6)))
    assert torch.equal(whole, other.gradient(at, Batch(3, 6))[0])
    assert torch.allclose((2 * left + 4 * right) / 6, whole, rtol=1e-12)
    assert one.evaluate(at) == other.evaluate(at) == one.evaluate(at)
    first, second = (one._train.batch(np.array([0]), np.array([position]))[0] for position in (0, 20))
    assert not torch.equal(first, second)
    assert not torch.equal(another_seed._train.batch(np.array([0]), np.array([0]))[0], first)


def test_dropout_draws_by_seed_and_start(module: Any) -> None:
    """As that of hetsim's own workloads."""
    name = module(REGRESSION.replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.5)"))
    one, other = task(name), task(name)
    at = one.initial()
    other.gradient(at, Batch(0, 5))

    assert torch.equal(one.gradient(at, Batch(3, 6))[0], other.gradient(at, Batch(3, 6))[0])
    assert not torch.equal(one.gradient(at, Batch(3, 6))[0], one.gradient(at, Batch(53, 6))[0])
    assert one.evaluate(at) == other.evaluate(at)


def test_building_leaves_random_numbers_where_they_were(module: Any) -> None:
    """A notebook's own draws do not change."""
    name = module(REGRESSION)
    importlib.import_module(name)
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)

    task(name)

    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


DATA = {
    "as a TensorDataset": "TensorDataset(x, y)",
    "as a part of one": "Subset(Subset(TensorDataset(torch.cat([x, x]), torch.cat([y, y])), range(100, 200)), range(100))",
    "as a list": "list(zip(x, y))",
    "as lists": "[[one, other] for one, other in zip(x, y)]",
    "batch by batch": "Batched(x, y)",
    "in numbers of NumPy": "[(one.numpy(), other.item()) for one, other in zip(x.double(), y)]",
}

WAYS = """
class Batched(TensorDataset):
    def __getitem__(self, index):
        raise AssertionError

    def __getitems__(self, indices):
        return [tuple(tensor[index] for tensor in self.tensors) for index in indices]

def loss(outputs, targets):
    return F.mse_loss(outputs.reshape(-1), targets.reshape(-1))

@hetsim.workload
def build():
    x = torch.linspace(-1, 1, 100, dtype=torch.float64).unsqueeze(1)
    y = x ** 2
    return hetsim.Training(model=nn.Linear(1, 1), train=DATA, loss=loss)
"""


def test_every_way_to_hold_the_samples_gives_the_same_batches(module: Any) -> None:
    """Tensors, parts of tensors, lists, batches at a time."""
    tasks = [task(module(WAYS.replace("DATA", data))) for data in DATA.values()]
    at, batch = tasks[0].initial(), Batch(93, 14)

    gradients = {tuple(each.gradient(at, batch)[0].tolist()) for each in tasks}
    assert {each.num_samples for each in tasks} == {100}
    assert len(gradients) == 1


def test_several_inputs_are_the_models_arguments(module: Any) -> None:
    """Of a tuple the last entry is the target; a tuple of one is both."""
    two = task(
        module("""
        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, one, other):
                return self.scale * (one + other)

        @hetsim.workload
        def build():
            x = torch.arange(8.0)
            return hetsim.Training(model=Sum(), train=TensorDataset(x, x + 1, 3 * x), loss=F.mse_loss)
        """)
    )
    text = """
    @hetsim.workload
    def build():
        return hetsim.Training(model=nn.Linear(3, 3), train=DATA, loss=F.mse_loss)
    """
    alone = [task(module(text.replace("DATA", data))) for data in ("TensorDataset(torch.eye(3))", "torch.eye(3)", "list(torch.eye(3))")]

    assert two.evaluate(two.initial()).train_loss == pytest.approx(np.mean((np.arange(8.0) - 1) ** 2))
    assert len({each.evaluate(each.initial()).train_loss for each in alone}) == 1


def test_samples_of_several_lengths_need_a_collate(module: Any) -> None:
    """Of the user's own, such as one that pads."""
    text = """
    def padded(samples):
        return nn.utils.rnn.pad_sequence(samples, batch_first=True).unsqueeze(2)

    def loss(outputs, _):
        return outputs.square().mean()

    @hetsim.workload
    def build():
        return hetsim.Training(model=nn.Linear(1, 1), train=[torch.ones(1 + i % 3) for i in range(9)], loss=loss, collate=padded)
    """

    assert task(module(text)).num_samples == 9
    with pytest.raises(
        ValueError, match=r":build: the samples of train make no batch \(RuntimeError: stack expects each tensor to be equal"
    ):
        task(module(text.replace(", collate=padded", "")))


@pytest.mark.parametrize(
    ("data", "balanced"),
    [
        ("TensorDataset(x, y)", True),
        ("Subset(TensorDataset(x, y), range(40, 90))", True),
        ("Labelled(x)", True),
        ("list(zip(x, y))", False),
        ("TensorDataset(x, x)", False),
    ],
)
def test_a_part_is_balanced_where_labels_are_at_hand(data: str, balanced: bool, module: Any) -> None:
    """Of tensors and of what has `targets`; else it is drawn from all."""
    text = """
    class Labelled(list):
        targets = [int(i >= 80) for i in range(100)]

    def loss(outputs, targets):
        return outputs.square().mean()

    @hetsim.workload
    def build():
        x, y = torch.arange(100.0).unsqueeze(1), torch.arange(100) // 80
        return hetsim.Training(model=nn.Linear(1, 1), train=DATA, loss=loss)
    """
    name = module(text.replace("DATA", data))
    one, other = (task(name, num_samples=20, seed=seed) for seed in (0, 1))

    assert one.num_samples == 20
    assert one._train._chosen.tolist() == other._train._chosen.tolist()
    assert ((one._train._chosen >= 80).sum() == 10) == balanced


# Weights

NORMED = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
        self.register_buffer("scale", torch.tensor([2.0, float("inf")]))

    def forward(self, x):
        return self.layers(x) * self.scale[0]

@hetsim.workload
def build():
    x = torch.linspace(-3, 3, 48).unsqueeze(1)
    return hetsim.Training(model=Normed(), train=TensorDataset(x, x ** 2), loss=F.mse_loss)
"""


def test_running_statistics_are_in_the_vector_and_constants_are_not(module: Any) -> None:
    """What training changes is averaged and sent; a mask, or a table of positions, stays what it is."""
    loaded = task(module(NORMED))
    at = loaded.initial()

    assert loaded.num_parameters == 8 + 8 + 5
    assert at[loaded.num_parameters :].tolist() == [0.0] * 4 + [1.0] * 4 + [1.0]
    gradient, _ = loaded.gradient(at, Batch(0, 8))
    assert gradient.isfinite().all()
    assert (gradient[loaded.num_parameters : -1] != at[loaded.num_parameters : -1]).all()
    assert torch.equal(loaded.gradient(at, Batch(0, 8))[0], gradient)
    assert loaded.model.scale.tolist() == [2.0, float("inf")]


def test_frozen_parameters_stay_what_they_are(module: Any) -> None:
    """They are no part of what is sent and stepped."""
    frozen = REGRESSION.replace("    return hetsim", "    MODEL[0].requires_grad_(False)\n    return hetsim").replace(
        "@hetsim", "MODEL = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))\n\n@hetsim"
    )
    run = simulate(own(module(frozen.replace("model=nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))", "model=MODEL"))))

    assert len(run.weights) == 9
    assert (run.weights != run.simulation.task.initial()).all()


def test_a_module_that_takes_its_shape_from_the_first_batch(module: Any) -> None:
    """Lazy modules have parameters once they were used."""
    loaded = task(module(REGRESSION.replace("nn.Linear(1, 8)", "nn.LazyLinear(8)")))

    assert loaded.num_parameters == 25


def test_options_are_arguments(module: Any) -> None:
    """Of the function, by name."""
    text = REGRESSION.replace("build()", "build(hidden=8, *, activation='Tanh')").replace("nn.Tanh()", "getattr(nn, activation)()")
    name = module(text.replace("8)", "hidden)").replace("(8, 1)", "(hidden, 1)"))

    assert task(name).num_parameters == 25
    assert task(name, options={"hidden": 4, "activation": "ReLU"}).num_parameters == 13
