"""Checkpoints of a stranger's, and broken ones: each is one sentence, and nothing of them runs."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from saved import CONFIG, run
from worlds import UNEVEN, experiment

import hetsim
from hetsim.checkpoints import file as checkpoint_file
from hetsim.checkpoints.folder import newest, place
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment

QUICK = ("workload=quadratic", "workload.num_parameters=6", "pictures=false", "budget.epochs=null", "checkpoint.every_updates=100")
NOT_KEPT = "which is none of those that this run keeps"


def described(updates: int = 4, *choices: str, num_parameters: int = 6) -> Experiment:
    """A small run that is saved."""
    keys: dict[str, Any] = {"workload": {"num_parameters": num_parameters, "num_samples": 90}, "batch_size": 31, "momentum": 0.9}
    keys |= {"checkpoint": {"every_updates": 100}, "trace": "full"}
    return experiment("method=dbs_sgd", "workload=quadratic", *choices, budget={"updates": updates}, cluster=UNEVEN, **keys)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is saved."""
    folder = tmp_path_factory.mktemp("half")
    run(described(), folder)
    return folder


@pytest.fixture
def folder(half: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(half, tmp_path / "copy"))


def refused(folder: Path, resumed: Experiment | None = None) -> str:
    """The sentence with which a run refuses to resume from this folder. It leaves nothing."""
    rest = folder.parent / "rest"
    with pytest.raises(ValueError, match=r"[a-z]") as error:
        run(resumed or described(8), rest, resume=folder)
    assert not rest.exists() or not any(rest.iterdir())
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600
    return str(error.value)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object], **metadata: str) -> None:
    """Change the JSON of the newest checkpoint, and make its digest right again."""
    tensors = load_file(newest(folder))
    entries = json.loads(tensors.pop("json").numpy().tobytes())
    change(entries)
    text = np.frombuffer(json.dumps(entries).encode(), np.uint8)
    about = {"format": str(checkpoint_file.FORMAT), "hetsim": "0.1.0", "sha256": checkpoint_file.digest(text, tensors), **metadata}
    save_file({"json": torch.from_numpy(text.copy()), **tensors}, newest(folder), metadata=about)


class Boom:
    """Ends the tests if it is unpickled."""

    def __reduce__(self) -> Any:
        return exit, ("a checkpoint was unpickled",)


def test_a_file_that_is_no_checkpoint_is_one_sentence(folder: Path) -> None:
    """An empty one, pickles, a part, another program's, a folder in its place; and one with any changed byte."""
    path, dice = newest(folder), random.Random(1)
    content = path.read_bytes()
    torch.save(Boom(), folder / "boom.pt")
    for other in (b"", pickle.dumps(Boom()), (folder / "boom.pt").read_bytes(), content[:-1], content[8:], content * 2):
        path.write_bytes(other)
        assert "remove it to resume from the one before" in refused(folder)
    for position in [0, 3, 9, len(content) - 1, *(dice.randrange(len(content)) for _ in range(30))]:
        path.write_bytes(bytes([*content[:position], content[position] ^ (1 << dice.randrange(8)), *content[position + 1 :]]))
        refused(folder)
    save_file({"weight": torch.zeros(3)}, path)
    assert "it is not hetsim's" in refused(folder)
    path.unlink()
    path.mkdir()
    assert "it is not a file" in refused(folder)


def test_links_are_not_followed(folder: Path, half: Path) -> None:
    """Neither for the file nor for its folder nor for a part of the trace: they might lead to a file of the user's."""
    for link, target in ((newest(folder), newest(half)), (next(place(folder).glob("rows-*")), next(place(half).glob("rows-*")))):
        content = link.read_bytes()
        link.unlink()
        link.symlink_to(target)
        assert "link" in refused(folder) or "it is not a file of its own" in refused(folder)
        link.unlink()
        link.write_bytes(content)
    shutil.move(place(folder), folder / "moved")
    place(folder).symlink_to(folder / "moved")
    with pytest.raises(ValueError, match="is a link, and is not followed"):
        newest(folder)


def test_a_checkpoint_of_another_run_is_refused(folder: Path) -> None:
    """Of another model and another version; and at the end of the budget."""
    assert checkpoint_file.read(newest(folder))[0]["config"] == CONFIG
    larger = refused(folder, described(8, num_parameters=7))
    assert "it has weights of 6 numbers of float32, and this workload of 7 numbers of float32" in larger
    assert "where budget.updates=3 has been reached: type a larger budget" in refused(folder, described(3))
    rewrite(folder, lambda _: None, format="7", hetsim="9.1")
    said = refused(folder)
    assert "has format '7', of hetsim '9.1'" in said
    assert "reads format 2 alone" in said


def test_another_method_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its policies keep other states. The sentence names both methods, if their names differ."""
    assert "is of another method than this run's (it has an object of the class" in refused(folder, described(8, "allocation=even"))

    run(described(), tmp_path / "named", config="method: dbs_sgd\nseed: 0\n")
    sentence = refused(tmp_path / "named", described(8, "method=ssgd"))
    assert "is of method=dbs_sgd, and this run of method=ssgd (" in sentence
    assert sentence.endswith(": resume it with the method that it was made with")


def test_no_class_but_those_of_the_table_is_made(folder: Path) -> None:
    """A name is looked up in a table, and never imported."""
    for name in ("os.system", "builtins.eval", "hetsim.trust.names.resolve", "collections.OrderedDict"):
        state = {"object": [name, {"command": "touch owned"}]}
        rewrite(folder, lambda entries, state=state: entries["checkpoint"]["object"][1].update(state=state))  # type: ignore[misc]
        assert NOT_KEPT in refused(folder)


WRONG: list[Any] = [None, True, -1, 10**30, 1e308, {"float": "nan"}, "text", [], [1, "a"], {"dict": []}, {"tensor": "t0"}, {"tensor": "x"}]
WRONG += [{"object": []}, {"object": ["a"]}, {"object": [{}, {}]}, {"range": [0, 10**15, 1]}, {"set": [[], {}]}, {"cursors": [-1]}]
WRONG += [{"phantom": [1]}, {"float": "a"}, {"unknown": 1}, {}, {"list": 1}, {"dict": [1]}, {"dict": [[{"list": []}, 1]]}, 2.5]


def places(entry: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON text: its container, and its key."""
    found = []
    for key, part in entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ():
        found += [(entry, key), *places(part)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dbs_sgd", "ssgd", "ringleader"])
def test_a_wrong_value_in_any_place_is_a_sentence_or_a_run(method: str, tmp_path: Path) -> None:
    """With a digest that is right: a run that ends, or one sentence, and never an error of Python's."""
    run(described(4, f"method={method}"), tmp_path / "half")
    dice = random.Random(method)
    content = newest(tmp_path / "half").read_bytes()
    for number in range(30):
        newest(tmp_path / "half").write_bytes(content)

        def change(entries: dict[str, Any]) -> None:
            container, key = dice.choice(places(entries["checkpoint"]))
            container[key] = dice.choice(WRONG)

        rewrite(tmp_path / "half", change)
        with contextlib.suppress(ValueError, RunFailed):
            run(described(6, f"method={method}"), tmp_path / f"rest {number}", resume=tmp_path / "half")


ATTACKS = {
    # what a checkpoint's config has, and has then: the sentence, or None for a run without trust
    ("trust: []", "trust: [mine]"): None,
    ("hetsim.workloads.quadratic.Quadratic", "mine.Quadratic"): "is not allowed",
    ("hetsim.coordination.all_reduce.SynchronousAllReduce", "os.system"): "coordination._target_",
    ("torch.optim.SGD", "torch.load"): "optimizer._target_",
    ("seed: 0", "hydra: {callbacks: {x: {_target_: mine.X}}}"): "has a config with keys of Hydra's",
    ("method: ssgd", "method: ${oc.env:HOME}"): r"has a reference in method that is no \$\{key\}: begin the run again",
    ("seed: 0", "seed: ${hydra:runtime.cwd}"): "has a reference in seed",
    ("seed: 0", "seed: !!python/name:mine.x ''"): "cannot be read as YAML",
}


def test_the_config_in_it_is_that_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trusts no module, has no reference but to keys, and names no class of another kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    hetsim.run(*QUICK, "method=ssgd", "budget.updates=3", folder="half")
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('owned').touch()\n")
    content = newest(tmp_path / "half").read_bytes()
    for (old, new), sentence in ATTACKS.items():
        newest(tmp_path / "half").write_bytes(content)
        rewrite(tmp_path / "half", lambda entries, old=old, new=new: entries.update(config=entries["config"].replace(old, new)))  # type: ignore[misc]
        with contextlib.nullcontext() if sentence is None else pytest.raises(ValueError, match=sentence):
            hetsim.run("resume=half", "budget.updates=5", folder="rest")
    assert "trust: []" in (tmp_path / "rest" / "config.yaml").read_text()
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_the_words_of_the_run_itself_may_be_typed_again_and_few_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job script has one command for every restart; a word that agrees however it is written changes nothing."""
    monkeypatch.chdir(tmp_path)
    words = (*QUICK, "method=asgd", "learning_rate=0.01", "optimizer=sgd", "seed=2")
    hetsim.run(*words, "budget.updates=3", folder="half")
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "other.yaml").write_text("# @package _global_\nseed: 3\n")

    for number, more in enumerate(((), words, ("learning_rate=1e-2", "optimizer=sgd"))):
        hetsim.run("seed=2", *more, "resume=half", "budget.epochs=null", "budget.updates=5", folder=f"rest {number}")

    assert len({(tmp_path / f"rest {number}" / "curve.csv").read_text() for number in range(3)}) == 1
    changes = ("seed=1", "method=ssgd", "learning_rate=1", "+new=1", "batch_size=8", "workload=phantom", "weighting=per_sample")
    for word in (*changes, "~optimizer.lr", "experiment=other"):
        with pytest.raises(ValueError, match="as of the run in resume=half, which keeps its keys: leave it out"):
            hetsim.run("resume=half", "budget.updates=5", word, folder="rest", config_dir="configs")
    assert not (tmp_path / "rest").exists()
