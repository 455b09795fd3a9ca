"""A config names only what a trusted module offers: public classes of the right kind, and functions that are marked as workloads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.main import main

pytestmark = pytest.mark.slow

BASE = "from hetsim.policies.weighting import Discount\nclass {}(Discount):\n    def factor(self, staleness): return 1.0\n"
MODULES = {
    "theirs": """
import functools, hetsim
from os import system
from hetsim.policies.weighting import Discount
from hetsim.policies.allocation import Even
def plain(command): system(command)
class Some: pass
bound = functools.partial(system)
@hetsim.workload
def _private(): pass
""",
    "no_syntax": "class Rule(",
    "no_name": "\nx = y",
    "pack.__init__": "from .rules import *",
    "pack.base": BASE.format("Base"),
    "pack.rules": "from .base import Base\nclass Rule(Base): pass",
    "pack.rules_too": BASE.format("Rule"),
    "space.below.rules": BASE.format("Rule"),
    "twice": "",
    "twice.__init__": "",
}
NAMED: dict[tuple[str, str], str | set[str]] = {
    # the trusted modules, and the name in a config: the sentence, or the modules that run
    ("", "os:system"): "is not allowed: it must name a function of a module that you trust",
    ("os", "os:system"): "is not a workload: write @hetsim.workload above a function",
    ("os", "os:_exit"): "it must name a public function of os",
    ("theirs", "theirs:os.system"): "is not the name of a function in a module",
    ("theirs", "theirs.os:system"): "if theirs.os is a module of your own, add 'trust=[theirs.os]'",
    ("theirs", "theirs:"): "is not the name of a function in a module",
    **{("theirs", f"theirs:{name}"): f"theirs:{name} is not a workload" for name in ("plain", "system", "Some", "bound")},
    ("theirs", "theirs:gone"): "theirs has no 'gone', so correct the name",
    ("theirs", "theirs:_private"): "must name a public function of theirs",
    ("theirs.below", "theirs:build"): "if theirs is a module of your own, add 'trust=[theirs]'",
    ("hetsim", "hetsim.api.calls:run"): "is not allowed",
    **{("theirs", f"theirs.{name}"): f"theirs.{name} is no Discount" for name in ("plain", "system", "Some", "Even")},
    ("theirs", "theirs.Discount"): "theirs.Discount lacks factor",
    ("theirs", "theirs.gone"): "theirs has no 'gone'",
    ("no_syntax", "no_syntax.Rule"): "no_syntax cannot be imported (SyntaxError: ",
    ("no_name", "no_name.Rule"): "no_name cannot be imported (NameError: name 'y' is not defined, line 3): correct it",
    ("pack.rules", "pack.rules.Rule"): {"pack", "pack.base", "pack.rules"},
    ("pack", "pack.Rule"): {"pack", "pack.base", "pack.rules"},
    ("space.below.rules", "space.below.rules.Rule"): {"space.below.rules"},
    ("pack", "pack.rules.Rule"): "if pack.rules is a module of your own, add 'trust=[pack.rules]'",
    ("pack.rules", "pack.Rule"): "if pack is a module of your own, add 'trust=[pack]'",
    ("pack.rules", "pack.rules_too.Rule"): "if pack.rules_too is a module of your own, add",
    ("", "pack.Rule"): "if pack is a module of your own, add 'trust=[pack]'",
    ("twice", "twice:build"): "/twice.py is there, too: rename one of them",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leaves a file when it is imported."""
    for name, text in MODULES.items():
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(tmp_path)!r} + '/ran-' + __name__, 'w').close()\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.split(".")[0] in {name.split(".")[0] for name in MODULES}]:
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.parametrize("named", NAMED)
def test_a_config_names_only_what_a_trusted_module_offers(
    named: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anything else is one sentence, and is not called. Only listed modules are imported, those above them, and those that they import."""
    trust, name = named
    attack = "defaults: [{override /workload: own}]\nworkload: {module: 'NAME', options: {command: 'touch FOLDER/ran-command'}}"
    attack = attack if ":" in name else "defaults: [{override /method: asgd}]\ndiscount: {_target_: NAME}"
    (tmp_path / "experiment").mkdir()
    text = attack.replace("NAME", name).replace("FOLDER", str(tmp_path))
    (tmp_path / "experiment" / "attack.yaml").write_text(f"# @package _global_\n{text}\n")
    quick = ("budget.epochs=null", "budget.updates=2", "pictures=false", f"hydra.run.dir={tmp_path / 'run'}")
    typed = ("--config-dir", tmp_path, "experiment=attack", f"trust=[{trust}]", *quick)

    status = exit_status(monkeypatch, "hetsim", main, *typed)

    errors, expected = capsys.readouterr().err, NAMED[named]
    ran = {path.name.removeprefix("ran-") for path in tmp_path.glob("ran-*")}
    assert (status, errors.count("\n")) == ((1, 1) if isinstance(expected, str) else (0, 0)), errors
    if isinstance(expected, str):
        assert expected in errors
        assert ran <= ({trust} - {"pack", "pack.rules", "twice"})
    else:
        assert ran == expected


def test_all_names_are_checked_before_any_module_is_imported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"discount\._target_=pack\.sub\.Rule is not allowed"):
        hetsim.run("allocation._target_=pack.Rule", "discount._target_=pack.sub.Rule", trust=["pack"], folder=tmp_path / "run")

    assert not list(tmp_path.glob("ran-*"))
