"""A config from a stranger names only what a trusted module offers as a workload."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.main import main

pytestmark = pytest.mark.slow

OFFERED = "import hetsim\n@hetsim.workload\ndef build(): open(MARK + 'ran', 'w').close()\n"
NAMES = {
    # trust, what the config names: what the sentence holds
    ("", "os:system"): "workload.module=os:system is not allowed: it must name a function of a module that you trust",
    ("", "theirs:build"): "must name a function of a module that you trust; if theirs is a module of your own, add 'trust=[theirs]'",
    ("os", "os:system"): "workload.module=os:system is not a workload: write @hetsim.workload above a function",
    ("os", "os:_exit"): "workload.module=os:_exit is not allowed: it must name a public function of os",
    ("theirs", "os:system"): "workload.module=os:system is not allowed",
    ("theirs", "theirs:os.system"): "workload.module=theirs:os.system is not the name of a function in a module",
    ("theirs", "theirs.os:system"): "if theirs.os is a module of your own, add 'trust=[theirs.os]'",
    ("theirs", "theirs"): "workload.module=theirs is not the name of a function in a module: give one such as mymodel:build",
    ("theirs", "theirs:"): "is not the name of a function in a module",
    ("theirs", "theirs:plain"): "workload.module=theirs:plain is not a workload",
    ("theirs", "theirs:system"): "workload.module=theirs:system is not a workload",
    ("theirs", "theirs:Some"): "workload.module=theirs:Some is not a workload",
    ("theirs", "theirs:bound"): "workload.module=theirs:bound is not a workload",
    ("theirs", "theirs:gone"): "workload.module=theirs:gone is not there: theirs has no 'gone', so correct the name",
    ("theirs", "theirs.below:build"): "if theirs.below is a module of your own, add 'trust=[theirs.below]'",
    ("theirs.below", "theirs:build"): "if theirs is a module of your own, add 'trust=[theirs]'",
    ("theirs.below", "theirs.below:build"): "Python finds no module 'theirs.below': correct the name",
    ("theirs", "theirs:other"): "workload.module=theirs:other is not a workload",
    ("theirs", "theirs:_private"): "must name a public function of theirs",
    ("theirs", "hetsim.api.calls:run"): "workload.module=hetsim.api.calls:run is not allowed",
    ("hetsim", "hetsim.api.calls:run"): "workload.module=hetsim.api.calls:run is not allowed",
}
THEIRS = """
open(MARK + 'imported', 'w').close()
import functools, hetsim
from os import system
def plain(command): system(command)
def other(function): return function
@other
def other(): pass
class Some: pass
bound = functools.partial(system)
@hetsim.workload
def _private(): pass
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the names of files begin with that code leaves when it runs; `theirs` is a module that would."""
    prefix = str(tmp_path / "mark-")
    (tmp_path / "theirs.py").write_text(THEIRS.replace("MARK", repr(prefix)))
    monkeypatch.syspath_prepend(tmp_path)
    yield prefix
    for name in [name for name in sys.modules if name.split(".")[0] in ("theirs", "ours")]:
        del sys.modules[name]


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.sampled(4)
def test_a_config_names_only_what_is_offered(
    attack: tuple[str, str], mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused in one sentence. No function has run, and no code of a module that is not trusted."""
    trust, name = attack
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "attack.yaml").write_text(
        f"# @package _global_\ndefaults: [{{override /workload: own}}]\n"
        f"workload: {{module: '{name}', options: {{command: 'touch {mark}shell'}}}}\n"
    )
    typed = ("--config-dir", str(tmp_path / "conf"), "experiment=attack", f"trust=[{trust}]", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    told = capsys.readouterr().err
    assert NAMES[attack] in told
    assert told.count("\n") == 1
    ran = {path.name for path in tmp_path.glob("mark-*")}
    assert ran <= ({"mark-imported"} if trust.startswith("theirs") and " is not allowed" not in told else set())


def test_a_name_may_be_imported_into_a_listed_module(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another module of the same package is not imported for it."""
    package = tmp_path / "ours"
    package.mkdir()
    (package / "__init__.py").write_text("from .models import *\n")
    (package / "models.py").write_text(OFFERED.replace("MARK", repr(mark)))
    (package / "script.py").write_text(f"from ours.models import build as renamed\nopen({mark!r} + 'script', 'w')\n")
    told = {
        "ours.script:renamed": "if ours.script is a module of your own, add 'trust=[ours.script]'",
        "ours:build": "workload.module=ours:build returns None: return a hetsim.Training",
    }
    for name, sentence in told.items():
        typed = ("workload=own", f"workload.module={name}", "trust=[ours]", f"hydra.run.dir={tmp_path / 'run'}")
        assert exit_status(monkeypatch, "hetsim", main, *typed) == 1
        assert sentence in capsys.readouterr().err

    assert [path.name for path in tmp_path.glob("mark-*")] == ["mark-ran"]


def test_trust_is_no_key_of_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is typed, as everywhere."""
    folder = tmp_path / "conf" / "workload"
    folder.mkdir(parents=True)
    (folder / "attack.yaml").write_text("_target_: hetsim.workloads.own.Own\nmodule: theirs:build\ntrust: [theirs]\n")
    typed = ("--config-dir", str(tmp_path / "conf"), "workload=attack", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    assert "workload.trust is not a key of hetsim.workloads.own.Own" in capsys.readouterr().err


def test_a_folder_does_not_take_the_place_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's folder beside the user's file may have its name, and Python prefers a folder."""
    (tmp_path / "minetoo.py").write_text("class Mine: pass\n")
    (tmp_path / "minetoo").mkdir()
    (tmp_path / "minetoo" / "__init__.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(ValueError, match=r"Python takes the folder .*/minetoo for minetoo, and .*/minetoo\.py is there, too: rename one"):
        hetsim.run("workload=own", "workload.module=minetoo:build", trust=["minetoo"], folder=tmp_path / "run")
    assert not (tmp_path / "mark").exists()
