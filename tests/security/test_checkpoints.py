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

SENTENCE = 600
"""Letters of the longest sentence."""


def made(updates: int = 4, *choices: str, **keys: Any) -> Experiment:
    """A small run that is saved."""
    more = {"workload": {"num_parameters": 6, "num_samples": 90}, "batch_size": 31, "momentum": 0.9, **keys}
    saved = {"checkpoint": {"every_updates": 100}, "trace": "full"}
    return experiment("method=dbs_sgd", "workload=quadratic", *choices, budget={"updates": updates}, cluster=UNEVEN, **saved, **more)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is saved."""
    folder = tmp_path_factory.mktemp("half")
    run(made(), folder)
    return folder


@pytest.fixture
def folder(half: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(half, tmp_path / "copy"))


def refused(folder: Path, described: Experiment | None = None) -> str:
    """The sentence with which a run refuses to go on from this folder; it leaves nothing."""
    there = folder.parent / "refused"
    with pytest.raises(ValueError, match=r"[a-z]") as error:
        run(described or made(8), there, resume=folder)
    assert not there.exists() or not any(there.iterdir())
    said = str(error.value)
    assert "\n" not in said
    assert said.isprintable()
    assert len(said) < SENTENCE
    return said


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object], **metadata: str) -> None:
    """Change the JSON of the newest checkpoint, and let its digest be right again."""
    path = newest(folder)
    tensors = load_file(path)
    entries = json.loads(tensors.pop("json").numpy().tobytes())
    change(entries)
    text = np.frombuffer(json.dumps(entries).encode(), np.uint8)
    about = {"format": str(checkpoint_file.FORMAT), "hetsim": "0.1.0", "sha256": checkpoint_file.digest(text, tensors), **metadata}
    save_file({"json": torch.from_numpy(text.copy()), **tensors}, path, metadata=about)


def test_what_is_no_checkpoint_is_one_sentence(folder: Path) -> None:
    """No folder, no file, an empty one, a pickle, another program's, a folder in its place."""
    path = newest(folder)
    whole = path.read_bytes()
    for content in (
        b"",
        b"\x80\x04\x95",
        pickle.dumps(Boom()),
        torch_file(folder),
        whole[: len(whole) // 2],
        whole[:-1],
        whole[8:],
        whole * 2,
    ):
        path.write_bytes(content)
        assert "remove it to resume from the one before" in refused(folder)
    save_file({"weight": torch.zeros(3)}, path)
    assert "it is not hetsim's" in refused(folder)
    path.unlink()
    path.mkdir()
    assert "it is not a file" in refused(folder)
    path.rmdir()
    with pytest.raises(ValueError, match="has no checkpoint"):
        run(made(8), folder / "other", resume=folder)


class Boom:
    """Ends the tests if it is unpickled."""

    def __reduce__(self) -> Any:
        return exit, ("a checkpoint was unpickled",)


def torch_file(folder: Path) -> bytes:
    """A file of torch.save with such an object."""
    torch.save(Boom(), folder / "boom.pt")
    content = (folder / "boom.pt").read_bytes()
    (folder / "boom.pt").unlink()
    return content


def test_a_changed_byte_is_noticed(folder: Path) -> None:
    """Wherever it stands: in the sizes, the names, the numbers or the text."""
    path = newest(folder)
    whole = path.read_bytes()
    dice = random.Random(1)
    for position in [0, 3, 9, len(whole) - 1, *(dice.randrange(len(whole)) for _ in range(30))]:
        path.write_bytes(bytes([*whole[:position], whole[position] ^ (1 << dice.randrange(8)), *whole[position + 1 :]]))
        refused(folder)


def test_links_are_not_followed(folder: Path, half: Path) -> None:
    """Neither for the file nor for its folder nor for a part of the trace: they might lead to a file of the user's."""
    path = newest(folder)
    for link, target in ((path, newest(half)), (next(place(folder).glob("rows-*")), next(place(half).glob("rows-*")))):
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


def test_an_unknown_version_is_refused(folder: Path) -> None:
    """The sentence has both versions."""
    rewritten(folder, lambda _: None, format="7", hetsim="9.1")

    said = refused(folder)

    assert "has format '7', of hetsim '9.1'" in said
    assert "reads format 2 alone" in said


def test_another_model_is_refused(folder: Path) -> None:
    """The sentence has both sizes."""
    said = refused(folder, made(8, workload={"num_parameters": 7, "num_samples": 90}))

    assert "it has weights of 6 numbers of float32, and this workload of 7 numbers of float32" in said


def test_another_method_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its policies keep other states. The sentence names both methods, if their names differ."""
    assert "is of another method than this run's (it has an object of the class" in refused(folder, made(8, "allocation=even"))

    run(made(), tmp_path / "named", config="method: dbs_sgd\nseed: 0\n")
    said = refused(tmp_path / "named", made(8, "method=ssgd"))
    assert "is of method=dbs_sgd, and this run of method=ssgd (" in said
    assert said.endswith(": resume it with the method that it was made with")


def test_a_budget_that_was_reached_is_refused(folder: Path) -> None:
    """There is nothing to do."""
    assert "where budget.updates=3 has been reached: type a larger budget" in refused(folder, made(3))


CLASSES = [
    "os.system",
    "builtins.eval",
    "subprocess.Popen",
    "hetsim.trust.names.resolve",
    "hetsim.config.start.start",
    "collections.OrderedDict",
]


@pytest.mark.parametrize("name", CLASSES)
def test_no_class_but_those_of_the_table_is_made(name: str, folder: Path) -> None:
    """A name is looked up in a table, and never imported."""

    def change(entries: dict[str, Any]) -> None:
        entries["checkpoint"]["object"][1]["state"] = {"object": [name, {"command": "touch owned"}]}

    rewritten(folder, change)

    assert "which is none of those that this run keeps" in refused(folder)


WRONG: list[Any] = [None, True, -1, 10**30, 1e308, {"float": "nan"}, "text", [], [1, "a"], {"dict": []}, {"tensor": "t0"}, {"tensor": "x"}]
WRONG += [{"object": []}, {"object": ["a"]}, {"object": [{}, {}]}, {"range": [0, 10**15, 1]}, {"set": [[], {}]}, {"cursors": [-1]}]
WRONG += [{"phantom": [1]}, {"float": "a"}, {"unknown": 1}, {}, {"list": 1}, {"dict": [1]}, {"dict": [[{"list": []}, 1]]}, 2.5]


def places(entry: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON text: what holds it, and its key."""
    found = []
    parts = entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ()
    for key, part in parts:
        found += [(entry, key), *places(part)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dbs_sgd", "ssgd", "ringleader"])
def test_whatever_stands_in_a_place_is_a_sentence_or_a_run(method: str, tmp_path: Path) -> None:
    """With a digest that is right: a run that goes on, or one sentence, and never an error of Python's."""

    def described(updates: int) -> Experiment:
        return made(updates, f"method={method}")

    run(described(4), tmp_path / "half")
    dice = random.Random(method)
    whole = newest(tmp_path / "half").read_bytes()
    for number in range(30):
        newest(tmp_path / "half").write_bytes(whole)

        def change(entries: dict[str, Any]) -> None:
            holder, key = dice.choice(places(entries["checkpoint"]))
            holder[key] = dice.choice(WRONG)

        rewritten(tmp_path / "half", change)
        with contextlib.suppress(ValueError, RunFailed):
            run(described(6), tmp_path / f"rest {number}", resume=tmp_path / "half")


def test_the_config_in_it_is_that_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trusts nobody, fetches nothing, refers to nothing but keys, and names no class of another kind."""
    monkeypatch.chdir(tmp_path)
    words = ("workload=quadratic", "workload.num_parameters=6", "pictures=false", "budget.epochs=null", "checkpoint.every_updates=100")
    hetsim.run(*words, "method=ssgd", "budget.updates=3", folder="half")
    (tmp_path / "mine.py").write_text("from pathlib import Path\nPath('owned').touch()\n")
    whole = newest(tmp_path / "half").read_bytes()
    attacks = {
        "trust: []": ("trust: [mine]", None),
        "hetsim.workloads.quadratic.Quadratic": ("mine.Quadratic", "is not trusted|trust"),
        "hetsim.coordination.all_reduce.SynchronousAllReduce": ("os.system", "coordination._target_"),
        "method: ssgd": ("method: ${oc.env:HOME}", r"has a reference in method that is no \$\{key\}: begin the run again"),
        "seed: 0": ("seed: ${hydra:runtime.cwd}", "has a reference in seed"),
        "torch.optim.SGD": ("torch.load", "optimizer._target_"),
    }
    for old, (new, sentence) in attacks.items():
        newest(tmp_path / "half").write_bytes(whole)
        rewritten(tmp_path / "half", lambda entries, old=old, new=new: entries.update(config=entries["config"].replace(old, new)))  # type: ignore[misc]
        if sentence is None:
            hetsim.run("resume=half", "budget.updates=5", folder="rest")
            assert "trust: []" in (tmp_path / "rest" / "config.yaml").read_text()
            continue
        with pytest.raises(ValueError, match=sentence):
            hetsim.run("resume=half", "budget.updates=5", folder="rest")
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_what_may_change_is_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on as it began; and no file says that one does."""
    monkeypatch.chdir(tmp_path)
    words = ("workload=quadratic", "method=ssgd", "pictures=false", "budget.epochs=null", "checkpoint.every_updates=100")
    hetsim.run(*words, "budget.updates=3", folder="half")
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "other.yaml").write_text("# @package _global_\nseed: 3\n")
    changes = ("seed=1", "method=asgd", "learning_rate=1", "+new=1", "batch_size=8", "workload=phantom")
    for word in (*changes, "weighting=per_sample", "~optimizer.lr", "experiment=other"):
        with pytest.raises(ValueError, match="which keeps its keys: leave it out"):
            hetsim.run("resume=half", "budget.updates=5", word, folder="rest", config_dir="configs")
    (tmp_path / "configs" / "experiment" / "mine.yaml").write_text("# @package _global_\nresume: half\n")
    with pytest.raises(ValueError, match="resume is set by a config file, but only the command line may set it"):
        hetsim.run("experiment=mine", config_dir="configs", folder="rest")
    assert not (tmp_path / "rest").exists()


def test_a_written_checkpoint_holds_its_config(half: Path) -> None:
    """The text of config.yaml."""
    assert checkpoint_file.read(newest(half))[0]["config"] == CONFIG


def test_the_words_of_the_run_itself_may_be_typed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job script has one command for every restart; a word that agrees however it is written changes nothing."""
    monkeypatch.chdir(tmp_path)
    words = ("workload=quadratic", "method=asgd", "learning_rate=0.01", "optimizer=sgd", "pictures=false", "checkpoint.every_updates=100")
    hetsim.run(*words, "seed=2", "budget.epochs=null", "budget.updates=3", folder="half")

    for number, more in enumerate(((), words, ("learning_rate=1e-2", "workload=quadratic"))):
        hetsim.run(*more, "seed=2", "resume=half", "budget.epochs=null", "budget.updates=5", folder=f"rest {number}")

    assert len({(tmp_path / f"rest {number}" / "curve.csv").read_text() for number in range(3)}) == 1
    with pytest.raises(ValueError, match=r"^learning_rate=0.02 is not 0.01, as of the run in resume=half, which keeps its keys"):
        hetsim.run("resume=half", "budget.updates=5", "learning_rate=0.02", folder="rest")
