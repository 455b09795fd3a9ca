"""Nothing of a stranger's runs code: each way in which a file could, with code that would leave a mark."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from worlds import exit_status

import hetsim
from hetsim.cli.advise import main as advise_main
from hetsim.cli.calibrate import main as calibrate_main
from hetsim.cli.main import main
from hetsim.cli.search import main as search_main
from hetsim.config import sources

DECOY = """open('MARK', 'w').close()
class Rule:
    def __init__(self, *_, **__): pass
    def __getattr__(self, name): return print
"""
"""The module `decoy`, from which Python can import."""
RULE = "{_target_: decoy.Rule}"
HYDRA = f"hydra: {{callbacks: {{mine: {RULE}}}}}"
SEARCHED = "hydra: {searchpath: ['pkg://decoy']}"
WHOLE = f"# @package _global_\n{HYDRA}"
TAG = "!!python/object/apply:os.mkdir ['MARK']"
OUT = "../" * 30 + "ROOT/evil"
"""A path from any folder."""
CHOSEN = ("--config-dir", "ROOT/conf")
COMMANDS = {"hetsim": main, "hetsim-advise": advise_main, "hetsim-calibrate": calibrate_main, "hetsim-search": search_main}
QUICK = ("budget.epochs=null", "budget.updates=2", "pictures=false", "hydra.run.dir=ROOT/run", "hydra.sweep.dir=ROOT/sweep")


class Pickled:
    """Leaves a mark if it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def pickled(mark: Path) -> bytes:
    return pickle.dumps(Pickled(mark))


def archive(mark: Path) -> bytes:
    """Arrays of objects."""
    path = mark.with_name("made.npz")
    np.savez(path, allow_pickle=True, **{name: np.array([Pickled(mark)]) for name in ("x_train", "y_train", "x_test", "y_test")})
    return path.read_bytes()


class Way(NamedTuple):
    """A stranger's files, and the fragment of the sentence in which hetsim refuses them. ROOT stands for the folder, MARK for the mark."""

    files: Mapping[str, str | bytes | Callable[[Path], bytes]]
    sentence: str
    typed: tuple[str, ...]
    command: str = "hetsim"


def config(text: str | bytes, sentence: str, *typed: str, head: str = "# @package _global_\n", **files: str) -> Way:
    """A config of an experiment that the user chooses, and further files of the folder."""
    attack = head + text if isinstance(text, str) else text
    others = {f"conf/{name}.yaml": content for name, content in files.items()}
    return Way({"conf/experiment/attack.yaml": attack, **others}, sentence, (*CHOSEN, "experiment=attack", *typed))


def grid(text: str, sentence: str, *typed: str, **files: str) -> Way:
    """A grid that the user chooses for a sweep, and further files."""
    return Way({"conf/grid/attack.yaml": text, **files}, sentence, (*CHOSEN, "-m", "+grid=attack", "method=ssgd", *typed))


def primary(text: str, sentence: str) -> Way:
    """A primary config."""
    return Way({"conf/theirs.yaml": f"defaults: [config, _self_]\n{text}\n"}, sentence, (*CHOSEN, "--config-name", "theirs"))


SETS, LISTS, REFERS = (
    "hydra, which only the command line may set",
    "in its defaults list, which is no choice of hetsim's",
    "has a reference in ",
)
LATE = dict.fromkeys(("stage/late", "ra/late", "_global_xhydra/callbacks/mine"), "_target_: decoy.Rule\n")

TARGETS = {
    f"discount: {RULE}": "discount._target_=decoy.Rule is not allowed",
    "discount: {_target_: hetsim.trust.names.resolve_function, path: 'decoy:Rule', key: x, trust: [decoy]}": "is none of the classes",
    "discount: {_target_: 'decoy.Rule()'}": "is not the name of a class",
    "discount: {_target_: [decoy, Rule]}": "is not the name of a class",
    f"allocation: {{_target_: hetsim.policies.allocation.Fixed, parts: {RULE}}}": "allocation.parts._target_ is not allowed",
    f"workload: {{model_options: {{deep: [1, {{deeper: [{RULE}]}}]}}}}": "workload.model_options.deep.1.deeper.0._target_ is not allowed",
    f"batch_size: {RULE}": "batch_size._target_ is not allowed",
    f"backend: {{_target_: hetsim.sim.Simulator, _args_: [{RULE}]}}": "backend._args_ is not a key of the schema",
    f"optimizer: {RULE}": "optimizer._target_=decoy.Rule is not allowed",
    f"optimizer: {{_target_: torch.optim.lbfgs._strong_wolfe, obj_func: {RULE}}}": "it must name a public class",
    "optimizer: {_target_: torch.optim.optimizer.functools.partial}": "functools.partial does not exist",
    f"learning_rate_schedule: {{_target_: torch.optim.lr_scheduler.LambdaLR, lr_lambda: {RULE}}}": "lr_lambda._target_ is not allowed",
    f"learning_rate_schedule: {{_target_: torch.optim.lr_scheduler.ChainedScheduler, schedulers: [{RULE}]}}": "schedulers.0._target_=decoy",
    "defaults: [{override /workload: own}]\nworkload: {module: 'decoy:Rule'}": "must name a function of a module that you trust",
    f"data_root: {TAG}": "cannot be read as YAML",
    "data_root: !!python/object/apply:pathlib.PosixPath [x]": "leave its YAML tag out",
}
"""The text of a config: the sentence."""
TYPED = {
    "trust=[subprocess] discount._target_=subprocess.Popen": "discount._target_=subprocess.Popen is no Discount",
    "trust=[os] discount._target_=os._exit": "must name a public class of os",
    "trust=['decoy;'] discount._target_=decoy.Rule": "trust must be a list of module names",
    "--exp ROOT/theirs.pickle": "it reads a pickle, which may run code",
    "-sc install=bash": "evaluates the names of files",
}
TRUST = {
    "trust": config(f"trust: [decoy]\ndiscount: {RULE}", "attack.yaml sets trust, which"),
    "trust as a mapping": config(f"trust: {{decoy: 1}}\ndiscount: {RULE}", "attack.yaml sets trust, which"),
    "trust as a reference": config(f"trust: ${{data_root}}\ndata_root: [decoy]\ndiscount: {RULE}", "attack.yaml sets trust, which"),
    "trust by a package": config("x: 1", "attack.yaml sets trust, which", head="# @package trust\n"),
    "trust by a group": config(f"defaults: [/trust/mine]\ndiscount: {RULE}", LISTS, **{"trust/mine": "# @package _global_\nx: 1\n"}),
    "trust of a workload": config(
        "defaults: [{override /workload: own}]\nworkload: {module: 'decoy:Rule', trust: [decoy]}", "workload.trust is not a key"
    ),
    "trust in a grid": grid("ssgd: {trust: [[decoy]]}", "grid.ssgd.trust cannot be varied in a grid"),
    "trust in another primary config": primary(f"trust: [decoy]\ndiscount: {RULE}", "theirs.yaml sets trust, which"),
}
KEYS = {
    "callbacks": HYDRA,
    "a formatter": "hydra: {hydra_logging: {formatters: {mine: {class: decoy.Rule}}}}",
    "a handler": "hydra: {job_logging: {handlers: {mine: {(): decoy.Rule}}}}",
    "a launcher": f"hydra: {{launcher: {RULE}}}",
    "a line of a job's script": "hydra: {launcher: {setup: ['touch MARK']}}",
    "a sweeper": f"hydra: {{sweeper: {RULE}}}",
    "a variable": "hydra: {job: {env_set: {PYTHONPATH: ROOT/site}}}",
    "a search path": SEARCHED,
    "words": "hydra: {overrides: {task: ['trust=[decoy]']}}",
    "a reference": f"hydra: ${{elsewhere}}\nelsewhere: {{callbacks: {{mine: {RULE}}}}}",
    "a merged mapping": f"x: &x {{{HYDRA}}}\n<<: *x",
    "a tagged key": f"!!str {HYDRA}",
    "Windows' ends of lines": f"seed: 1\r\n{HYDRA}\r\n",
}
PACKAGES = ("hydra.callbacks.mine", "_global_.hydra.callbacks.mine", "hydra.callbacks.mine\r", "a_global_xhydra.callbacks.mine")
DEFAULTS = (
    *("override /hydra/launcher: mine", "optional /hydra/callbacks: mine", "/hydra/launcher: null", "/stage@hydra.callbacks.mine: late"),
    *("/stage@_here_.hydra: late", "/stage@_global_xhydra.callbacks.mine: late", "/ra@hyd_group_.callbacks.mine: late"),
    *("/_global_xhydra/callbacks: mine", "/stage: [late, hydra]", "/stage: '${hydra/launcher}'", "/stage: '${oc.env:HOME}'"),
    *("/stage: '\\${data_root}'", "/stage: '$${b}${c}'", "/stage: '{x}'", f"/stage: '{OUT}'", "/optimizer@_global_.hydra.job.env_set: sgd"),
)
CONFIGS = (
    *("/stage/late@_global_.hydra.callbacks.mine", "/hydra/launcher/joblib@cluster.faults", "/config@hydra", "/stage/late@a:hydra"),
    *("../stage/late@hydra", OUT, "//ROOT/evil"),
)
PART_OF_HYDRA = {
    **{f"hydra: {key}": config(text, SETS) for key, text in KEYS.items()},
    **{f"hydra by the package {package!r}": config(RULE[1:-1], SETS, head=f"# @package {package}\n") for package in PACKAGES},
    **{f"hydra by the default {entry}": config(f"defaults: [{{{entry}}}]", LISTS, **LATE) for entry in DEFAULTS},
    **{f"hydra by the config {entry}": config(f"defaults: ['{entry}']", LISTS, **LATE, evil=HYDRA) for entry in CONFIGS},
    "hydra in a sweep": config(HYDRA, SETS, "-m", "seed=0,1"),
    "hydra by no list of defaults": config("defaults: {/hydra/launcher: mine}", "defaults must be a list"),
    "hydra by a further config": config("defaults: [/stage/late]", "late.yaml sets hydra", **{"stage/late": WHOLE}),
    "hydra by a key of several parts": config(f"hydra.callbacks.mine: {RULE}", "hydra.callbacks.mine is not a key of the config"),
    "hydra by a key that is a list": config(f"? [hydra]\n: {{callbacks: {{mine: {RULE}}}}}", "found unhashable key"),
    "hydra by a key of bytes": config("? !!binary aHlkcmE=\n: {x: 1}", "leave its YAML tag out"),
    "hydra by letters that look alike": config(HYDRA.replace("h", "\uff48"), "ydra is not a key of the config"),
    "hydra after a mark of the byte order": config(HYDRA, SETS, head="\ufeff# @package _global_\n"),
    "hydra in another encoding": config(HYDRA.encode("utf-16"), "can't decode byte"),
    "hydra in a second document": config(f"seed: 1\n---\n{HYDRA}", "found another document"),
    "hydra by the folder": Way({"conf/hydra/job_logging/attack.yaml": RULE}, SETS, (*CHOSEN, "hydra/job_logging=attack")),
    "hydra in another primary config": primary(SEARCHED, "theirs.yaml sets hydra, which"),
    **{
        f"hydra in the primary config {path[:5]}": Way({"evil.yaml": SEARCHED}, "is not the name of a file in", ("--config-name", path))
        for path in ("ROOT/evil", "//ROOT/evil", OUT)
    },
    "hydra in a typed path": Way({"evil.yaml": WHOLE}, "is a path: move it to", (f"experiment={OUT}",)),
    "hydra in a typed file": Way({"conf/cluster/attack.yaml": HYDRA}, SETS, ("cluster=ROOT/conf/cluster/attack.yaml",)),
    "hydra by a typed package": Way({"conf/more/attack.yaml": RULE}, SETS, (*CHOSEN, "+more@hydra.callbacks.mine=attack")),
    "hydra in a searched folder": Way({"conf/more/attack.yaml": WHOLE}, SETS, ("hydra.searchpath=[ROOT/conf]", "+more=attack")),
    "hydra by a grid": grid(f"ssgd: {{hydra.callbacks.mine: [{RULE}]}}", "grid.ssgd.hydra.callbacks.mine cannot be varied in a grid"),
    "hydra by a path in a grid": grid(
        f"ssgd: {{experiment: ['{OUT}']}}",
        "is not a plain name of a config",
        "hydra.output_subdir=x",
        **{"conf/experiment/x.yaml": "{}", "evil.yaml": WHOLE},
    ),
    **{
        f"hydra by {command}": Way({"conf/more/attack.yaml": WHOLE}, SETS, (*words, *CHOSEN, "+more=attack"), command)
        for command, words in {
            "hetsim-advise": ("timing",),
            "hetsim-calibrate": ("ROOT/lab.yaml",),
            "hetsim-search": ("seed=0", "batch_size=32,64", "--objective", "samples_per_second", "--folder", "ROOT/run"),
        }.items()
    },
}
REFERENCES = {
    **{
        f"a reference: {text}": config(f"data_root: [{{a: '{text}'}}]", f"{REFERS}data_root.0.a that is no ${{key}}")
        for text in (
            *("x${oc.env:HOME}", "\\${oc.env:HOME}", "${oc.${seed}:HOME}", "${oc.select:trust}", "${now:%Y}", "${hydra:runtime.cwd}"),
            *("${hydra.job}", "${..hydra.job}", "${[hydra]}", "${.trust}", "${cluster.${method}}", "${ seed}"),
        )
    },
    "a reference for a key": config("data_root: [{'${oc.env:HOME}': x}]", f"{REFERS}data_root.0 that is no ${{key}}"),
    "a reference in a grid": grid(r"ssgd: {data_root: '$\{oc.env:HOME\}'}", "grid.ssgd.data_root refers to another key in a grid"),
    "another name of Hydra's part": grid(
        "ssgd: {++discount.a.env_set.PYTHONPATH: [ROOT/site]}",
        f"late.yaml {REFERS}data_root that is no ${{key}}",
        "experiment=attack",
        **{
            "conf/experiment/attack.yaml": "# @package _global_\ndefaults: [_self_, /stage/late]\ndiscount:\n  a: ${data_root}",
            "conf/stage/late.yaml": "# @package _global_\ndata_root: ${hydra.job}",
        },
    ),
}
CHECKPOINT, TENSORS = "theirs/checkpoints/000000000004.safetensors", "data/MNIST/processed/training.pt"
FILES = {
    "a pickle for a checkpoint": Way({CHECKPOINT: pickled}, "is not a complete checkpoint", ("resume=ROOT/theirs",)),
    "arrays of objects": Way({"data.npz": archive}, "data.npz", ("workload=arrays", "workload.path=ROOT/data.npz")),
    "tensors of an old torchvision": Way({TENSORS: pickled}, "is of an old torchvision", ("workload=mnist", "data_root=ROOT/data")),
}
WAYS = {
    **{text: config(text, sentence) for text, sentence in TARGETS.items()},
    **{typed: Way({"theirs.pickle": pickled}, sentence, tuple(typed.split())) for typed, sentence in TYPED.items()},
    **(TRUST | PART_OF_HYDRA | REFERENCES | FILES),
}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a decoy leaves. The current folder is empty."""
    mark = tmp_path / "mark"
    for name in ("modules/decoy.py", "site/sitecustomize.py", "here/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(DECOY.replace("MARK", str(mark)))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "decoy", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    return mark


def typed_by(way: Way, root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the command with a stranger's files."""

    def there(text: str) -> str:
        return text.replace("/ROOT", str(root)).replace("ROOT", str(root)).replace("MARK", str(root / "mark"))

    for name, content in way.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        raw = content if isinstance(content, bytes) else there(content).encode() if isinstance(content, str) else content(root / "mark")
        (root / name).write_bytes(raw)
    words = (*way.typed, *(QUICK if way.command == "hetsim" else ()))
    return exit_status(monkeypatch, way.command, COMMANDS[way.command], *map(there, words))


@pytest.mark.parametrize("way", WAYS)
def test_no_file_runs_code(way: str, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is refused in one sentence before anything that it names is imported or called, and no folder of a run is left."""
    status = typed_by(WAYS[way], mark.parent, monkeypatch)

    errors = capsys.readouterr().err
    assert status == 1
    assert WAYS[way].sentence in errors
    assert "Traceback" not in errors
    assert not mark.exists()
    assert "decoy" not in sys.modules
    assert not [name for name in ("run", "sweep") if (mark.parent / name).exists()]


@pytest.mark.parametrize("way", [way for way in WAYS if "hydra by the package" in way])
def test_what_is_put_into_hydras_part_is_checked_twice(
    way: str, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is read by its names, and where Hydra puts it."""
    monkeypatch.setattr(sources, "_reserved", lambda _: set())

    assert typed_by(WAYS[way], mark.parent, monkeypatch) == 1
    assert "attack.yaml sets hydra, which" in capsys.readouterr().err
    assert not mark.exists()


IMPORTS = (
    "workload=phantom +hydra.callbacks.mine._target_=decoy.Rule",
    "workload=phantom hydra/job_logging=default hydra.job_logging.handlers.console.class=decoy.Rule",
    "workload=phantom hydra.searchpath=[pkg://decoy]",
    "workload=phantom trust=[decoy] discount._target_=decoy.Rule",
    "workload=own trust=[decoy] workload.module=decoy:Rule",
)


@pytest.mark.parametrize("typed", IMPORTS)
def test_a_decoy_leaves_a_mark_where_the_user_types_it(typed: str, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's own keys and `trust` are the user's own affair."""
    typed_by(Way({}, "", tuple(typed.split())), mark.parent, monkeypatch)

    assert mark.exists()


def test_the_other_decoys_leave_a_mark(mark: Path) -> None:
    """Where nothing is checked."""
    marks = [mark.with_name(name) for name in ("tag", "pickle", "arrays")]

    yaml.unsafe_load(TAG.replace("MARK", str(marks[0])))
    pickle.loads(pickled(marks[1]))
    marks[2].with_name("data.npz").write_bytes(archive(marks[2]))
    assert np.load(marks[2].with_name("data.npz"), allow_pickle=True)["x_test"].size
    subprocess.run([sys.executable, "-c", ""], env={"PYTHONPATH": str(mark.parent / "site")}, check=True)

    assert [path.exists() for path in (*marks, mark)] == [True] * 4


def test_the_files_of_a_run_are_data(mark: Path) -> None:
    """A tag in a config; and what a version of pyarrow took for the pickle of a type, in a trace."""
    run = hetsim.run("workload=phantom", "method=ssgd", "budget.epochs=null", "budget.updates=2", "pictures=false", folder="run")
    trace = pyarrow.parquet.read_table("run/trace.parquet")
    about = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickled(mark)}
    fields = [field.with_metadata(about) for field in trace.schema]
    pyarrow.parquet.write_table(pyarrow.table(trace.columns, pyarrow.schema(fields)), "run/trace.parquet")

    assert run.trace().num_rows == trace.num_rows

    (mark.parent / "here/run/config.yaml").write_text(f"data_root: {TAG.replace('MARK', str(mark))}\n")
    with pytest.raises(ValueError, match="cannot be read as YAML"):
        _ = hetsim.load("run").config
    assert not mark.exists()
