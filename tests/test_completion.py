"""`hetsim completion bash`: a static script that completes words of a config."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hetsim.config.arguments import SHELLS, completion


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


def test_a_script_is_for_a_known_shell() -> None:
    """One sentence for any other, and nothing in a script that a shell expands."""
    for shell in SHELLS:
        assert "$(hetsim" not in completion([shell])
    with pytest.raises(ValueError, match="bash and zsh"):
        completion(["fish"])
