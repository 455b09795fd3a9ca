"""`hetsim completion bash`: a static script that completes options, words of a config, and names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from hetsim.cli import scripts
from hetsim.cli.command import Parser
from hetsim.cli.completion import COMMANDS, SHELLS, completion
from hetsim.cli.main import main


def completed(line: str, breaks: str = " =") -> list[str]:
    """What bash offers for the last word of a line."""
    known = f"COMP_WORDBREAKS='{breaks}' COMP_LINE='{line}' COMP_POINT={len(line)}"
    script = f"{completion(['bash'])}\n{known}; _hetsim; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_choices_and_keys() -> None:
    """Of a word with `=`, bash replaces what follows the sign."""
    assert completed("hetsim method=dbs_") == ["dbs_sgd"]
    assert completed("hetsim method=dbs_", breaks=" ") == ["method=dbs_sgd"]
    assert completed("hetsim cluster=mixed4 budget.up") == ["budget.updates="]
    assert completed("hetsim nothing=") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_options_and_names() -> None:
    """Of each command its own, wherever the command is."""
    assert completed(".venv/bin/hetsim-table --tar") == ["--target-accuracy", "--target-loss"]
    assert completed("hetsim-table method=dbs_") == []
    assert completed("hetsim-advise a100-40gb model=resnet5") == ["resnet50"]
    assert "rtx4090" in completed("hetsim-advise 2*t4 --or rtx40")
    assert completed("hetsim-catalogue t4 vgg") == ["vgg16"]
    assert completed("hetsim-methods dilo") == ["diloco"]


class Described(Exception):
    """Raised with a parser's options instead of parsing."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_are_those_of_the_command(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Except those of Hydra that hetsim refuses."""

    def describe(parser: Parser, *_: object) -> None:
        firsts = ([option for option in action.option_strings if option.startswith("--")][:1] for action in parser._actions)
        raise Described(" ".join(option for first in firsts for option in first))

    if name == "hetsim":
        monkeypatch.setattr(sys, "argv", ["hetsim", "--hydra-help"])
        with pytest.raises(SystemExit):
            main()
        text = capsys.readouterr().out
    else:
        monkeypatch.setattr(Parser, "parse_args", describe)
        monkeypatch.setattr(Parser, "parse_intermixed_args", describe)
        with pytest.raises(Described) as told:
            import_module(f"hetsim.cli.{name.removeprefix('hetsim-').replace('-', '_')}").main()
        text = str(told.value)
    refused = {"--config-path", "--shell-completion", "--run", "--experimental-rerun"}
    assert COMMANDS[name].options.split() == sorted({*re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)} - refused)


def test_every_script_is_a_command() -> None:
    """With a line for each, which hetsim-advise prints."""
    names = {f"hetsim-{name}".replace("_", "-") for name, value in vars(scripts).items() if getattr(value, "__name__", "") == "script"}

    assert {name.removesuffix("-hetsim") for name in names} == {*COMMANDS}


def test_a_script_is_for_a_known_shell() -> None:
    """One sentence for any other, and nothing in a script that a shell expands."""
    for shell in SHELLS:
        assert "$(hetsim" not in completion([shell])
    with pytest.raises(ValueError, match="bash and zsh"):
        completion(["fish"])
