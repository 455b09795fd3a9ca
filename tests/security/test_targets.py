"""No config runs code: every way to name an object that was found in an attack, and its relatives."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from hetsim.config.guard.provenance import check_leaves, check_untyped
from hetsim.config.guard.references import check_chosen
from hetsim.sweeps.task import task
from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf
from omegaconf import DictConfig, OmegaConf
from worlds import composed, exit_status

from hetsim.cli.main import main
from hetsim.config.build import build_experiment
from hetsim.sweeps.sweep import Quiet

pytestmark = [pytest.mark.slow, pytest.mark.real_start]

SHELL = "{_target_: os.system, command: 'touch MARK'}"
"""Calls a shell that leaves a mark."""
LOCATE = "{_target_: hetsim.trusted._locate, path: os.system}"
STEP = "{_target_: torch.optim.lbfgs._strong_wolfe, obj_func: " + LOCATE + ", x: 'touch MARK', t: 1, d: 0, f: 0, g: 0, gtd: 0}"
"""The chain that ran a shell command without `trust` in hetsim 0.1."""

CHAINS = {"STEP": STEP, "LOCATE": LOCATE, "SHELL": SHELL}
OBJECTS = {
    # what a config says: what the sentence holds
    "allocation: {_target_: hetsim.policies.allocation.Fixed, parts: STEP}": "allocation.parts._target_ is not allowed",
    "allocation: LOCATE": "allocation._target_=hetsim.trusted._locate is none of the classes",
    "workload: {model_options: STEP}": "workload.model_options._target_ is not allowed",
    "workload: {model_options: {deep: [1, {deeper: [SHELL]}]}}": "workload.model_options.deep.1.deeper.0._target_ is not allowed",
    "cluster: {nodes: [{count: 2, noise: SHELL}]}": "cluster.nodes.0.noise._target_ is not allowed",
    "budget: SHELL": "budget._target_ is not allowed",
    "batch_size: SHELL": "batch_size._target_ is not allowed",
    "optimizer: {betas: SHELL}": "optimizer.betas._target_ is not allowed",
    "optimizer: STEP": "optimizer._target_=torch.optim.lbfgs._strong_wolfe is not allowed: it must name a public class",
    "optimizer: SHELL": "optimizer._target_=os.system is not allowed",
    "optimizer: {_target_: torch.optim.optimizer.functools.partial}": "torch.optim.optimizer.functools.partial does not exist",
    "optimizer: {_target_: torch.optim.sgd.sgd}": "optimizer._target_=torch.optim.sgd.sgd is no Optimizer",
    "optimizer: {_target_: torch.optim.lr_scheduler.LambdaLR, lr_lambda: x}": "is no Optimizer",
    "learning_rate_schedule: LOCATE": "learning_rate_schedule._target_=hetsim.trusted._locate is not allowed",
    "learning_rate_schedule: {_target_: torch.optim.lr_scheduler.LambdaLR, lr_lambda: SHELL}": "schedule.lr_lambda._target_ is not",
    "learning_rate_schedule: {_target_: torch.optim.lr_scheduler.ChainedScheduler, schedulers: [SHELL]}": "schedulers.0._target_=os.sys",
    "learning_rate_schedule: {_target_: torch.optim.lr_scheduler.StepLR, step_size: [SHELL]}": "schedule.step_size.0._target_ is not",
    "coordination: {_target_: hetsim.distributed.launch.local._block_signals, start: x}": "local._block_signals is none of",
    "backend: {_target_: hetsim.distributed.launch.local.launch}": "backend._target_=hetsim.distributed.launch.local.launch is none",
    "backend: {_target_: hetsim.config.build.build_experiment}": "backend._target_=hetsim.config.build.build_experiment is none",
    "backend: {_target_: hetsim.sim.Simulator, _args_: [1]}": "backend._args_ is not a key of the schema",
    "backend: {_target_: hetsim.sim.Simulator, _partial_: true}": "backend._partial_ is not a key of the schema",
    "workload: {_recursive_: true}": "workload._recursive_ is not a key of the schema",
    "admission: {_target_: hetsim.policies.allocation.Even}": "admission._target_=hetsim.policies.allocation.Even is none of the classes",
    "discount: {_target_: hetsim.sim.world.np.f2py.run_main}": "discount._target_=hetsim.sim.world.np.f2py.run_main is none of the classes",
    "discount: {_target_: builtins.eval}": "discount._target_=builtins.eval is not allowed",
    "discount: {_target_: [os, system]}": "discount._target_=['os', 'system'] is not the name of a class",
    "discount: {_target_: 'hetsim..trust'}": "discount._target_=hetsim..trust is not the name of a class",
    "discount: {_target_: 'os.system(\"true\")'}": "is not the name of a class",
    "compression: {_target_: ctypes.CDLL, name: /lib/evil.so}": "compression._target_=ctypes.CDLL is not allowed",
}

FILES = {
    # a config file's text, as experiment=attack: what the sentence holds
    "allocation: {_target_: hetsim.policies.allocation.Fixed, parts: STEP}": "allocation.parts._target_ is not allowed",
    "method: !!python/object/apply:os.system ['touch MARK']": "attack.yaml, line 2, column 9 cannot be read as YAML",
    "cluster: !!python/object/new:subprocess.Popen [['touch', 'MARK']]": "cannot be read as YAML",
    "batch_size: !!python/name:os.system": "cannot be read as YAML",
    "trust: [os, subprocess]": "experiment/attack.yaml sets trust, which only the command line may set",
    "trust: ${oc.env:PATH}": "experiment/attack.yaml sets trust, which only the command line may set",
    "hydra: {callbacks: {mine: SHELL}}": "attack.yaml sets hydra.callbacks.mine._target_, which only the command line may set",
    "hydra: {callbacks: {mine: {_target_: this.zipapp}}}": "sets hydra.callbacks.mine._target_",
    "hydra: {job_logging: {handlers: {mine: {(): os.system, command: 'touch MARK'}}}}": "sets hydra.job_logging.handlers.mine.()",
    "hydra: {hydra_logging: {formatters: {mine: {class: this.that}}}}": "sets hydra.hydra_logging.formatters.mine.class",
    "hydra: {launcher: {_target_: os.system}}": "sets hydra.launcher._target_",
    "hydra: {sweeper: SHELL}": "sets hydra.sweeper._target_",
    "hydra: {sweeper: {custom_search_space: os.system}}": "sets hydra.sweeper.custom_search_space",
    "hydra: {sweeper: {sampler: {_target_: os.system}}}": "sets hydra.sweeper.sampler._target_",
    "hydra: {sweeper: {params: {workload.download: 'true'}}}": "varies workload.download in a sweep",
    "hydra: {sweeper: {params: {trust: '[os]'}}}": "varies trust in a sweep, which only the command line may do",
    "hydra: {sweeper: {params: {++hydra.job.env_set: x}}}": "varies ++hydra.job.env_set in a sweep",
    "hydra: {sweeper: {params: {~+trust: x}}}": "varies ~+trust in a sweep",
    "hydra: {sweeper: {params: {hydra/job_logging: x}}}": "varies hydra/job_logging in a sweep",
    "hydra: {job: {env_set: {LD_PRELOAD: /lib/evil.so}}}": "sets hydra.job.env_set.LD_PRELOAD",
    "hydra: {launcher: {setup: ['touch MARK']}}": "sets hydra.launcher.setup",
    "hydra: {launcher: {pre_dispatch: \"__import__('os').system('true')\"}}": "sets hydra.launcher.pre_dispatch",
    "hydra: {run: {dir: '${oc.env:HOME}/x'}}": "sets hydra.run.dir",
    'hydra: {sweep: {dir: "x\\ntouch MARK"}}': "sets hydra.sweep.dir",
    "hydra: {sweeper: {params: {cluster.name: '${oc.env:HOME},b'}}}": "a reference in hydra.sweeper.params.cluster.name that is no ${key}",
    "hydra: {sweeper: {params: {cluster.name: '${seed},b'}}}": "hydra.sweeper.params.cluster.name refers to another key",
    "defaults: [{optional /whatever: '${oc.env:HOME}'}]": "experiment/attack.yaml has a reference in its defaults list that is no ${group}",
    "defaults: [{/whatever@aa: '${oc.env:HOME}'}, {optional /whatever@bb: '${hetsim.name:seed}'}]": "has a reference in its defaults",
    "defaults: [{optional /whatever: '${now:%Y}'}]": "has a reference in its defaults list that is no ${group}",
    "defaults: [{optional /whatever: '${oc.${workload}:HOME}'}]": "has a reference in its defaults list",
    "%YAML 1.3\n---\na: 1": "attack.yaml, line 2, column 1 cannot be read as YAML (found incompatible YAML document)",
    f"seed: !!int '1{':1' * 6000}'": "attack.yaml, line 2 has an unquoted or tagged text of 12001 letters: quote it",
    "\n".join(f"a{n + 1}: '{f'${{a{n}}}' * 10}'" for n in range(10)) + "\na0: x": "with its references written out, the config would have",
    "\n".join(f"a{n + 1}: {json.dumps([f'${{a{n}}}'] * 10)}" for n in range(10))
    + "\na0: x": "with its references written out, the config would have",
    "\n".join(f"a{n + 1}: {{b: '{f'${{..a{n}.b}}' * 10}'}}" for n in range(10)) + "\na0: {b: x}": "with its references written out",
    "\n".join(f"a{n + 1}: ${{a{n}}}" for n in reversed(range(900))) + "\na0: x": "a key refers to another through hundreds of others",
    "data_root: !!python/object/apply:pathlib.PosixPath [x]": "data_root must be a number, a text, a list or a mapping, not PosixPath",
    "data_root: !!binary aGVsbG8=": "data_root must be a number, a text, a list or a mapping, not b'hello'",
    "a: &a [1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
    + "".join(
        f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]\n" for below, name in zip("bcdefg", "cdefgh", strict=True)
    ): "attack.yaml, line 8: more than 1000000 keys and values, with aliases written out",
    "a: {" + ", ".join(f"{(2**61 - 1) * number}: 0" for number in range(10, 300)) + "}": "has more than 100 numbers of twenty digits",
    "a: " + "[" * 100 + "]" * 100: "attack.yaml, line 2 is nested more than 50 deep",
    "a: " + "9" * 20000: "attack.yaml, line 2 has an unquoted or tagged text of 20000 letters: quote it",
    'method: "asgd\\e[2J"': "method must have printable letters only, not 'asgd\\x1b[2J'",
    "hydra: {overrides: {task: ['trust=[os]']}}": "sets hydra.overrides.task",
    "optimizer: {(): os.system}": "attack.yaml has the key '()', which is not a plain name: leave it out",
    "data_root: [{'${seed}': x}]": "attack.yaml has the key '${seed}', which is not a plain name: leave it out",
    "hydra: {sweeper: {params: {seed: [1, 2]}}}": "must list the values of hydra.sweeper.params.seed in a text",
    "defaults: text": "Invalid defaults list in 'experiment/attack', defaults must be a list (got str)",
    f"a: ${{seed{'.a' * 50}}}": "attack.yaml has a reference in a that is no ${key}",
    "hydra: ${elsewhere}\nelsewhere: {callbacks: {mine: {_target_: os.system}}}": "sets hydra.",
}


REFERENCES = (
    *("${now:%Y}", "${hydra:runtime.cwd}", "${hydra:'..data_root'}", "${hydra.runtime.cwd}", "${..hydra.job}", "${oc.select:seed}"),
    *("${oc.create:'{a: ${oc.env:HOME}}'}", "${oc.deprecated:seed,x}", "${oc.decode:${seed}}", "${oc.dict.values:budget}", "${[hydra]}"),
    *(
        "${hetsim.folder:}",
        "${hetsim.name:seed}",
        "${oc.${seed}:HOME}",
        "${oc.env:HOME,${seed}}",
        "${cluster.${method}}",
        "\\${oc.${seed}:x}",
        "${oc.env:HOME}",
        "x${oc.env:HOME,y}",
        "${oc.decode:${oc.env:HOME}}",
    ),
    *("x${oc.env:HOME}${now:%Y}", "${oc.env: HOME}", "${ seed}", "${oc.decode:'${oc.env:HOME}'}"),
)
FILES |= {
    f"data_root: [{{a: {json.dumps(text)}}}]": "attack.yaml has a reference in data_root.0.a that is no ${key}" for text in REFERENCES
}
"""What resolvers could read."""


@pytest.mark.parametrize("attack", OBJECTS)
def test_a_config_names_objects_only_where_one_belongs(attack: str, tmp_path: Path) -> None:
    """It is refused in one sentence, before anything that it names is imported or called."""
    text = attack
    for name, chain in CHAINS.items():
        text = text.replace(name, chain)
    base = composed("workload=quadratic", "method=asgd").copy()
    OmegaConf.set_struct(base, False)
    config = OmegaConf.merge(base, OmegaConf.create(text.replace("MARK", str(tmp_path / "mark"))))
    assert isinstance(config, DictConfig)

    with pytest.raises(ValueError, match=re.escape(OBJECTS[attack])):
        build_experiment(config)[0].load()

    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("attack", [*((attack, ()) for attack in FILES), *((attack, ("-m",)) for attack in list(FILES)[::8])])
@pytest.mark.sampled(14)
def test_a_file_runs_no_code(
    attack: tuple[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused in one sentence, before anything that it names is imported or called, and nothing is left."""
    mark, folder = tmp_path / "mark", tmp_path / "conf" / "experiment"
    text, sweep = attack
    folder.mkdir(parents=True)
    for name, chain in CHAINS.items():
        text = text.replace(name, chain)
    (folder / "attack.yaml").write_text("# @package _global_\n" + text.replace("MARK", str(mark)) + "\n")
    where = ("--config-dir", str(tmp_path / "conf"), "experiment=attack")
    quick = (
        "workload=quadratic",
        "budget.updates=2",
        "pictures=false",
        f"hydra.run.dir={tmp_path / 'run'}",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    )
    before = set(sys.modules)

    status = exit_status(monkeypatch, "hetsim", main, *sweep, *where, *quick)

    told = capsys.readouterr().err
    assert status == 1
    assert FILES[attack[0]] in told
    assert "Traceback" not in told
    assert not mark.exists()
    assert not (tmp_path / "run").exists()
    assert {"this", "zipapp", "os.system"} & (set(sys.modules) - before) == set()


PACKAGES = {
    "hydra/job_logging": "handlers: {mine: {class: this.that}}",
    "hydra/env": "x: 1",
    "elsewhere": "# @package hydra.callbacks.mine\n_target_: os.system",
}


@pytest.mark.parametrize("group", PACKAGES)
def test_a_file_says_no_more_to_hydra_from_another_group(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What counts is where its keys end up, not where the file lies."""
    folder = tmp_path / "conf" / group
    folder.mkdir(parents=True)
    (folder / "attack.yaml").write_text(PACKAGES[group] + "\n")
    typed = f"{group}=attack" if group.startswith("hydra") else f"+{group}=attack"

    status = exit_status(monkeypatch, "hetsim", main, "--config-dir", str(tmp_path / "conf"), typed, f"hydra.run.dir={tmp_path / 'run'}")

    assert status == 1
    assert f"{tmp_path / 'conf'}/{group}/attack.yaml sets hydra." in capsys.readouterr().err


TYPED = {
    "+hydra.callbacks.mine._target_=os.system": "hydra.callbacks.mine._target_=os.system is not an installed callback",
    "+hydra.callbacks.mine._target_=hydra.experimental.callbacks.logging.shutdown": "is not an installed callback",
    "hydra.callbacks.sweep_record._target_=hetsim.sweeps.record.shutil.rmtree": "is not an installed callback",
    "+hydra.callbacks.sweep_record.more={_target_: os.getcwd}": "hydra.callbacks.sweep_record.more._target_ is not allowed",
    "hydra.launcher._target_=os.system": "hydra.launcher._target_=os.system is not an installed plugin of Hydra's",
    "hydra.sweeper._target_=hydra_plugins.nothing.Sweeper": "is not an installed plugin of Hydra's",
    "hydra.sweeper.params={x: {_target_: os.getcwd}}": "what was typed or read does not make a config (",
    "+hydra.sweeper.sampler={_target_: os.system}": "hydra.sweeper.sampler._target_ is not allowed",
    "hydra/job_logging=default hydra.job_logging.handlers.console.class=os.system": "handlers.console.class=os.system is not allowed",
    "hydra/job_logging=default hydra.job_logging.handlers.console.stream=ext://os.system": "console.stream=ext://os.system is not allowed",
    "--experimental-rerun=run.pickle": "--experimental-rerun is not allowed, because it reads a pickle",
    "--shell-completion": "--shell-completion is not allowed, as Hydra's script for it evaluates the names of files",
    "-sc install=bash": "--shell-completion is not allowed",
    "--exp run.pickle": "--exp is not allowed, because it reads a pickle",
    "trust=[os] discount._target_=os.system": "discount._target_=os.system is no Discount",
    "trust=[os] discount._target_=os._exit": "discount._target_=os._exit is not allowed: it must name a public class of os",
    "trust=['os;'] discount._target_=os.system": "trust must be a list of module names",
}


@pytest.mark.parametrize("typed", TYPED)
def test_what_is_typed_names_only_what_is_installed(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Callbacks, plugins and log handlers by their own names; anything else is one sentence."""
    words = typed.replace(": ", ":\0").split(" ")

    status = exit_status(monkeypatch, "hetsim", main, *(word.replace("\0", " ") for word in words), f"hydra.run.dir={tmp_path / 'run'}")

    told = capsys.readouterr().err
    assert status == 1
    assert TYPED[typed] in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("primary", ["trust: [os]", "hydra: {searchpath: ['pkg://this']}"])
def test_a_primary_config_of_another_name_is_a_file_too(
    primary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra imports the packages of its search path before it composes anything."""
    (tmp_path / "theirs.yaml").write_text(f"defaults: [config, _self_]\n{primary}\n")
    sys.modules.pop("this", None)

    status = exit_status(monkeypatch, "hetsim", main, "--config-dir", str(tmp_path), "--config-name", "theirs")

    assert status == 1
    assert f"{tmp_path}/theirs.yaml sets " in capsys.readouterr().err
    assert "this" not in sys.modules


def test_a_file_may_say_what_a_sweep_varies_and_with_how_many_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that run nothing."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [{override /hydra/launcher: joblib}, {override /method: ssgd}, {override /workload: phantom}]\n"
        "hydra: {mode: MULTIRUN, launcher: {n_jobs: 1}, sweeper: {params: {seed: '0,1'}}}\n"
        "trust: []\npictures: false\nbudget: {epochs: null, updates: 2}\n"
    )

    assert (
        exit_status(monkeypatch, "hetsim", main, "--config-dir", tmp_path, "experiment=mine", f"hydra.sweep.dir={tmp_path / 'sweep'}") == 0
    )

    assert sorted(json.loads(path.read_text())["seed"] for path in tmp_path.glob("sweep/*/summary.json")) == [0, 1]


SITE = "open(__import__('os').environ['MARK'], 'w').close()\n"
"""A sitecustomize.py, which Python imports in every process whose PYTHONPATH holds it."""

ROUNDABOUT = {
    # files below the folder of configs, and what the sentence holds: each wrote hydra.job.env_set, or `trust`, past the check of its file
    "a path out of the folder": (
        {
            "experiment/attack.yaml": "defaults: [../../../../../../../../../../../../../../proc/self/cwd/outside@_global_]",
            "../outside.yaml": "hydra: {job: {env_set: {PYTHONPATH: SITE, MARK: MARKED}}}",
        },
        "lies outside of the folders of configs",
    ),
    "an alias of Hydra's part": (
        {
            "experiment/attack.yaml": (
                "defaults: [_self_, /stage/late]\n"
                "data_root: {}\nlearning_rate_schedule: {a: {params: '${data_root}'}}\n"
                "hydra: {mode: MULTIRUN, sweeper: {params: {++learning_rate_schedule.a.params.env_set.PYTHONPATH: SITE,"
                " ++learning_rate_schedule.a.params.env_set.MARK: MARKED, learning_rate_schedule: 'null', data_root: data}}}"
            ),
            "stage/late.yaml": "data_root: ${hydra.job}",
        },
        "late.yaml has a reference in data_root that is no ${key}",
    ),
    "an alias of the root": (
        {
            "experiment/attack.yaml": (
                "defaults: [_self_]\n"
                "learning_rate_schedule: {a: {params: \"${oc.select:''}\"}}\ndiscount: {_target_: os.system}\n"
                "hydra: {mode: MULTIRUN, sweeper: {params: {++learning_rate_schedule.a.params.trust: '[os]',"
                " learning_rate_schedule: 'null'}}}"
            ),
        },
        "attack.yaml has a reference in learning_rate_schedule.a.params that is no ${key}",
    ),
    "a config of Hydra's own elsewhere": (
        {"experiment/attack.yaml": "defaults: [/hydra/sweeper/basic@learning_rate_schedule.a]"},
        "learning_rate_schedule.a is a config of Hydra's own",
    ),
    "a config of Hydra's own elsewhere, which is gone again": (
        {
            "experiment/attack.yaml": "defaults: [{/hydra/launcher@cluster.faults: submitit_slurm}, /stage/late]",
            "stage/late.yaml": "cluster: {faults: null}",
        },
        "cluster.faults is a config of Hydra's own, hydra/launcher/submitit_slurm, by a defaults list",
    ),
    "a name of a choice that is a reference": (
        {"experiment/attack.yaml": r"defaults: [{override /workload: '\${data_root}'}]"},
        "has a reference in its defaults list that is no ${group}",
    ),
    "a name of a choice that is put together": (
        {
            "experiment/attack.yaml": "defaults: [{/b: dollar}, {/c: rest}, {override /workload: '$${b}${c}'}]",
            "b/dollar.yaml": "{}",
            "c/rest.yaml": "{}",
        },
        "has a reference in its defaults list that is no ${group}",
    ),
    "a name of a file that is no name": (
        {"experiment/attack.yaml": "defaults: [{/c: '{x}'}]", "c/{x}.yaml": "{}"},
        "is not a plain name of a config: rename its file",
    ),
    "another spelling of a key that is typed alone": (
        {"experiment/attack.yaml": "hydra: {mode: MULTIRUN, sweeper: {params: {+DOWNLOAD: 'true', ~DOWNLOAD: 'true'}}}"},
        "varies +DOWNLOAD in a sweep",
    ),
    "names of files": (
        {
            "experiment/attack.yaml": "hydra: {mode: MULTIRUN, sweeper: {params: {cluster: 'glob(*zz*)'}}}",
            "cluster/{name: zz, seed: '${oc.select:trust}'}.yaml": "x: 1",
        },
        "has glob(*zz*) as hydra.sweeper.params.cluster, which takes names of files: list the choices",
    ),
    **{
        f"a reference in a grid, {way}": (
            {"experiment/attack.yaml": f"hydra: {{mode: MULTIRUN}}\ngrid: {{dbs_sgd: {{data_root: {value}}}}}"},
            "grid.dbs_sgd.data_root refers to another key in a grid",
        )
        for way, value in {
            "with its braces escaped": r"'$\{hydra.job\}'",
            "by the environment": r"'$\{oc.env:PWD\}'",
            "in a function": r"'str($\{hydra.job\})'",
            "in a choice": r"'choice($\{hydra.job\})'",
            "in a list": r"['$\{hydra.job\}']",
            "in a mapping": r"[{a: '$\{hydra.job\}'}]",
            "in quotes": r"""'"$\{hydra.job\}"'""",
        }.items()
    },
}


@pytest.mark.parametrize("way", ROUNDABOUT)
@pytest.mark.sampled(6)
def test_a_file_says_no_more_to_hydra_by_a_roundabout_way(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What counts is what Hydra would act on, compared with what hetsim's own files and the command line make."""
    files, reason = ROUNDABOUT[way]
    mark, site = tmp_path / "mark", tmp_path / "site"
    for name, text in {**files, "../site/sitecustomize.py": SITE}.items():
        path = Path(os.path.normpath(tmp_path / "conf" / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "# @package _global_\n" if path.suffix == ".yaml" else ""
        path.write_text(head + text.replace("SITE", str(site)).replace("MARKED", str(mark)) + "\n")
    monkeypatch.chdir(tmp_path)
    typed = ("--config-dir", "conf", "experiment=attack", "backend=dist", "workload=quadratic", "budget.updates=2", "pictures=false")

    status = exit_status(monkeypatch, "hetsim", main, *typed, "hydra.run.dir=run", "hydra.sweep.dir=sweep")

    assert status == 1
    assert reason in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["{model: '${oc.deprecated:seed,${oc.env:HETSIM_TEST_SECRET}}'}", "a,b", "a b", "$x", "'x'", "choice(a,b)"]
)
def test_a_typed_glob_takes_plain_names_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a stranger's file would be read as more than a choice."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", "correct-horse-battery")
    (tmp_path / "conf" / "workload").mkdir(parents=True)
    (tmp_path / "conf" / "workload" / f"{name}.yaml").write_text("x: 1\n")

    typed = ("-m", "--config-dir", tmp_path / "conf", "workload=glob(*)", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    told = capsys.readouterr()
    assert "workload=glob(*) finds " in told.err
    assert "which is not a plain name: rename the file" in told.err
    assert "correct-horse" not in told.out + told.err


@pytest.mark.parametrize("key", ["data_root", "workload.path", "budget.updates"])
def test_a_folder_makes_no_group_of_a_key(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed for the key would choose one of its files."""
    for name, text in {"experiment/nice": f"defaults: [{{/{key}: mydata}}]", f"{key}/mydata": "data_root: elsewhere"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    typed = ("--config-dir", tmp_path, "experiment=nice", f"{key}=mydata", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    assert f"{key}/mydata.yaml would make {key}, which is a key, a group of choices" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"job.env_set.LD_PRELOAD": "x"}, "a config file sets hydra.job.env_set.LD_PRELOAD"),
        ({"run.dir": "elsewhere"}, "a config file sets hydra.run.dir"),
        ({"verbose": 1}, "a config file sets hydra.verbose"),
        ({"job.name": "../x"}, "a config file sets hydra.job.name"),
        ({"sweeper.params.trust": "[os]"}, "a config file varies trust in a sweep"),
        ({"launcher.n_jobs": "${seed}"}, "hydra.launcher.n_jobs refers to another key in a config file"),
    ],
)
def test_what_hydra_would_act_on_is_what_was_typed(found: dict[str, object], reason: str) -> None:
    """However a file brought it in."""
    own = {"run.dir": "runs", "verbose": True, "job.name": "main", "launcher.n_jobs": 1}
    check_leaves(own | {"launcher.n_jobs": 2, "sweeper.params.seed": "1,2", "runtime.cwd": "here"}, own)

    with pytest.raises(ValueError, match=re.escape(reason)):
        check_leaves(own | found, own)


@pytest.mark.parametrize("name", ["${seed}", "{a: 1}", "a b", "", "../x", "a,b", "$x"])
def test_what_hydra_keeps_of_a_choice_is_a_name(name: str) -> None:
    """It is a value of the config, and part of folders' names."""
    check_chosen({"method": "dbs_sgd", "hydra/launcher": "basic", "compression": None, "mine/deep": "x/y-1.2"})
    with pytest.raises(ValueError, match="is not a plain name of a choice: rename its file"):
        check_chosen({"method": name})


def test_a_process_that_gets_a_job_of_a_sweep_checks_configs() -> None:
    """A launcher sends it there, and the config is composed there."""
    code = (
        "import pickle, sys\n"
        "from hydra._internal.config_loader_impl import ConfigLoaderImpl\n"
        "assert not hasattr(ConfigLoaderImpl.load_configuration, 'checked_by_hetsim')\n"
        "pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "assert ConfigLoaderImpl.load_configuration.checked_by_hetsim\n"
    )
    for job in (Quiet(), task):
        subprocess.run([sys.executable, "-c", code, pickle.dumps(job).hex()], check=True)


def test_no_type_of_hydras_is_left_under_a_key() -> None:
    """Not of a mapping itself, nor of what a field of Hydra's may hold; and nothing that stands for another mapping."""
    config = OmegaConf.create({"hydra": {}, "a": {"b": 1}, "c": [{"d": "${a}"}], "e": "${a}", "f": None})
    check_untyped(config)
    field = OmegaConf.structured(BasicSweeperConf)
    for value, reason in (
        (field, "a.x has a type"), (DictConfig({}, key_type=str, element_type=Any), "a.x has a type"),
        (DictConfig({}, ref_type=dict[str, Any]), "a.x has a type"), (DictConfig("${a}"), "a.x is a reference in place of a mapping"),
    ):  # fmt: skip
        changed = config.copy()
        changed.a._set_item_impl("x", value)
        with pytest.raises(ValueError, match=reason):
            check_untyped(changed)


@pytest.mark.parametrize("default", ["../../mine", "//FOLDER/mine", "link", "link.yaml", "./mine", "/./hydra/output/default"])
def test_a_file_reads_no_other_yaml_of_the_user(
    default: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither above the folders of configs, nor by its whole path, nor through a link."""
    (tmp_path / "mine.yaml").write_text("password: correct-horse-battery\n")
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "link.yaml").symlink_to(tmp_path / "mine.yaml")
    default = default.replace("FOLDER", str(tmp_path).lstrip("/"))
    (folder / "attack.yaml").write_text(
        f"# @package _global_\ndefaults: ['{default}@data_root']\ncluster: {{name: '${{data_root.password}}'}}\n"
    )
    typed = ("--config-dir", str(tmp_path / "conf"), "experiment=attack", "workload=quadratic", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    assert "lies outside of the folders of configs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["/proc/self/environ", "mine.txt"])
def test_a_sentence_quotes_no_file_of_the_user(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config may be a stranger's, and error.txt may be handed on."""
    (tmp_path / "mine.txt").write_text("correct-horse-battery\n")
    monkeypatch.setenv("HETSIM_TEST_SECRET", "correct-horse-battery")
    monkeypatch.chdir(tmp_path)
    nodes = f"cluster.nodes=[{{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 0, slowdown: {file}}}]"

    assert exit_status(monkeypatch, "hetsim", main, "workload=quadratic", nodes, "hydra.run.dir=run") == 1

    told = capsys.readouterr().err
    assert f"cluster.nodes.0.slowdown={file} " in told
    assert "correct-horse" not in told


def test_a_link_out_of_the_folder_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some files, such as /proc/kmsg, can be read for ever."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text("a: [")
    (tmp_path / "conf" / "experiment" / "attack.yaml").symlink_to(tmp_path / "mine.yaml")

    assert exit_status(monkeypatch, "hetsim", main, "--config-dir", tmp_path / "conf", "experiment=attack") == 1

    assert "experiment/attack.yaml lies outside of the folders of configs" in capsys.readouterr().err


def test_a_searched_folder_is_no_part_of_what_files_are_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its launcher is not installed, and moves no file of hetsim's own into Hydra's part."""
    for name, text in {
        "hydra/launcher/mine": "# @package hydra.launcher\ndefaults: [joblib, /optimizer@_global_.hydra.job.env_set: sgd, _self_]"
        "\nn_jobs: 1",
        "experiment/nice": "# @package _global_\ndefaults: [{override /hydra/launcher: mine}]",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    searched = f"hydra.searchpath=[{tmp_path}]"

    assert exit_status(monkeypatch, "hetsim", main, searched, "experiment=nice", f"hydra.run.dir={tmp_path / 'run'}") == 1
    assert "a choice of Hydra's own groups is not installed" in capsys.readouterr().err

    (tmp_path / "experiment" / "nice.yaml").write_text("# @package _global_\nseed: 3\n")
    quick = ("workload=phantom", "budget.epochs=null", "budget.updates=2", "pictures=false", f"hydra.run.dir={tmp_path / 'run'}")
    assert exit_status(monkeypatch, "hetsim", main, searched, "experiment=nice", *quick) == 0


def test_a_pipe_is_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever opened it would wait for a writer."""
    (tmp_path / "experiment").mkdir()
    os.mkfifo(tmp_path / "experiment" / "attack.yaml")

    assert exit_status(monkeypatch, "hetsim", main, "--config-dir", tmp_path, "experiment=attack", f"hydra.run.dir={tmp_path / 'run'}") == 1

    assert capsys.readouterr().err == f"hetsim: error: {tmp_path}/experiment/attack.yaml is not a file that can be read: move it away\n"


@pytest.mark.long
def test_a_matplotlibrc_in_the_current_folder_is_not_read(tmp_path: Path) -> None:
    """Up to version 3.10, Matplotlib evaluates Python in it when it is imported; it complains about what it cannot read."""
    (tmp_path / "matplotlibrc").write_text("axes.prop_cycle: nothing\n")
    typed = ["workload=quadratic", "budget.updates=2", "hydra.run.dir=run"]

    ended = subprocess.run([sys.executable, "-m", "hetsim", *typed], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "run" / "curve.png").exists()


def test_a_matplotlibrc_in_the_current_folder_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could have TeX called, with a preamble of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setitem(matplotlib.rcParams, "text.latex.preamble", "nothing that TeX knows")

    assert exit_status(monkeypatch, "hetsim", main, "workload=quadratic", "budget.updates=2", "hydra.run.dir=run") == 0

    assert (tmp_path / "run" / "curve.png").exists()
    assert matplotlib.rcParams["text.usetex"]


IMPORTS = "from hetsim.policies.weighting import Discount\n"
MODULES = {
    # the text of a module that is trusted: the name of a class, why it is refused
    "class Rule: pass": ("Rule", "mine_too.Rule is no Discount"),
    "def Rule(): pass": ("Rule", "mine_too.Rule is no Discount"),
    "Rule = print": ("Rule", "mine_too.Rule is no Discount"),
    "x = 1": ("Rule", "mine_too has no 'Rule'"),
    "from os import system as Rule": ("Rule", "mine_too.Rule is no Discount"),
    "import os": ("os.system", "if mine_too.os is a module of your own, add 'trust=[mine_too.os]'"),
    "from hetsim.policies.weighting import Discount": ("Discount", "mine_too.Discount lacks factor"),
    "from hetsim.policies.allocation import Even\nclass Rule(Even): pass": ("Rule", "mine_too.Rule is no Discount"),
    "from threading import *\nclass Rule(Thread): pass": ("Rule", "mine_too.Rule is no Discount"),
    "class Rule(Rule): pass": ("Rule", "mine_too cannot be imported (NameError: name 'Rule' is not defined, line 2)"),
    "class Rule(": ("Rule", "mine_too cannot be imported (SyntaxError: "),
    f"{IMPORTS}if __name__ == '__main__':\n    class Rule(Discount): pass": ("Rule", "mine_too has no 'Rule'"),
    f"{IMPORTS}class Rule(Discount): pass\ndel Rule": ("Rule", "mine_too has no 'Rule'"),
    "class _Rule: pass": ("_Rule", "it must name a public class of mine_too"),
}


@pytest.mark.parametrize("text", MODULES)
def test_a_trusted_module_gives_public_classes_of_the_right_kind(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else of it is refused in one sentence, and not called."""
    (tmp_path / "mine_too.py").write_text(f"x = 1\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_too", raising=False)
    name, reason = MODULES[text]

    typed = ("trust=[mine_too]", "method=asgd", f"discount._target_=mine_too.{name}", f"hydra.run.dir={tmp_path / 'run'}")
    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    told = capsys.readouterr().err
    assert reason in told
    assert told.count("\n") == 1


LISTED = {
    # what is trusted, and named: the modules that run, or the sentence
    ("my_package.rules", "my_package.rules.Rule"): {"my_package", "my_package.base", "my_package.rules"},
    ("my_package", "my_package.Rule"): {"my_package", "my_package.base", "my_package.rules"},
    ("my_package.script", "my_package.script.Renamed"): {"my_package", "my_package.base", "my_package.rules", "my_package.script"},
    ("my_space.below.rules", "my_space.below.rules.Rule"): {"my_space.below.rules"},
    ("my_package", "my_package.rules.Rule"): "if my_package.rules is a module of your own, add 'trust=[my_package.rules]'",
    ("my_package", "my_package.script.Renamed"): "if my_package.script is a module of your own, add 'trust=[my_package.script]'",
    ("my_package.rules", "my_package.Rule"): "if my_package is a module of your own, add 'trust=[my_package]'",
    ("my_package.rules", "my_package.rules_too.Rule"): "if my_package.rules_too is a module of your own, add",
    ("my_space", "my_space.below.rules.Rule"): "if my_space.below.rules is a module of your own, add 'trust=[my_space.below.rules]'",
    ("", "my_package.Rule"): "if my_package is a module of your own, add 'trust=[my_package]'",
}


@pytest.mark.parametrize("listed", LISTED)
def test_only_a_listed_module_is_imported(
    listed: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the packages above it and what it imports itself. What is a name in it may be defined elsewhere."""
    below = f"{IMPORTS}class Rule(Discount):\n    def factor(self, staleness): return 1.0\n"
    texts = {
        "my_package/__init__": "from .rules import *\n", "my_package/base": below.replace("Rule", "Base"),
        "my_package/rules": "from .base import Base as Above\nclass Rule(Above): pass\n", "my_package/rules_too": below,
        "my_package/script": "from .rules import Rule as Renamed\n", "my_space/below/rules": below,
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path)!r} + '/ran-' + __name__, 'w').close()\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.startswith(("my_package", "my_space"))]:
        del sys.modules[module]
    trust, name = listed
    quick = ("method=asgd", "workload=quadratic", "budget.updates=2", "pictures=false", f"hydra.run.dir={tmp_path / 'run'}")
    expected = LISTED[listed]

    status = exit_status(monkeypatch, "hetsim", main, f"trust=[{trust}]", f"discount._target_={name}", *quick)

    told = capsys.readouterr().err
    assert status == (1 if isinstance(expected, str) else 0), told
    assert not isinstance(expected, str) or expected in told
    assert {path.name.removeprefix("ran-") for path in tmp_path.glob("ran-*")} == ({*()} if isinstance(expected, str) else expected)


def test_all_names_are_checked_before_any_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_three.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    typed = ("trust=[mine_three]", "allocation._target_=mine_three.Rule", "discount._target_=mine_three.sub.Rule")

    assert exit_status(monkeypatch, "hetsim", main, *typed, f"hydra.run.dir={tmp_path / 'run'}") == 1

    assert "discount._target_=mine_three.sub.Rule is not allowed" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


def test_a_trusted_module_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the line of the module."""
    (tmp_path / "broken_rules.py").write_text("from hetsim.policies.weighting import Discount\nx = y\nclass Rule(Discount): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    typed = ("trust=[broken_rules]", "method=asgd", "discount._target_=broken_rules.Rule", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    told = "discount._target_=broken_rules.Rule: broken_rules cannot be imported (NameError: name 'y' is not defined, line 2): correct it"
    assert told in capsys.readouterr().err


def test_nothing_of_a_stranger_is_imported_by_a_fresh_command(tmp_path: Path) -> None:
    """In a process of its own, where `this` would print when it is imported."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "attack.yaml").write_text("# @package _global_\nhydra: {callbacks: {x: {_target_: this.d}}}\n")

    ended = subprocess.run(
        [sys.executable, "-m", "hetsim", "--config-dir", str(tmp_path), "experiment=attack"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
