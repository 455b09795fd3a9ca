"""The recipes of docs/guide/describe-a-cluster.md describe clusters, and their commands run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pages
import pytest
from omegaconf import OmegaConf

from hetsim.cli.main import main
from hetsim.cli.table import main as table
from hetsim.cluster.parse.cluster import parse_cluster

PAGE = pages.text("describe-a-cluster.md")
RECIPES: dict[str, str] = {text.split()[1]: text for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)}
COMMANDS: dict[str, Callable[[], object]] = {"hetsim": main, "hetsim-table": table, "hetsim-advise": main}
QUICK = {"hetsim": ["pictures=false"], "hetsim-table": [], "hetsim-advise": ["-m", "budget.updates=2", "pictures=false"]}
"""What is added to each command. An advice is a sweep of its methods here: it has tests of its own."""
TYPED = [shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
NUM_NODES = {"boxes": 6, "desktops": 2, "gpus": 11, "pods": 64, "racks": 16, "spot": 4, "regions": 8, "phones": 40}


@pytest.mark.parametrize("name", NUM_NODES)
def test_a_recipe_describes_a_cluster(name: str) -> None:
    """Of as many GPUs as it says."""
    cluster = parse_cluster(OmegaConf.to_container(OmegaConf.create(RECIPES[name])))

    assert cluster.name == name
    assert cluster.num_workers == NUM_NODES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NUM_NODES)
@pytest.mark.sampled(3)
def test_the_commands_of_a_recipe_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are typed, in the folder that the page names."""
    (tmp_path / "my" / "cluster").mkdir(parents=True)
    (tmp_path / "my" / "cluster" / f"{name}.yaml").write_text(RECIPES[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = [typed for typed in TYPED if f"cluster={name}" in typed or f"cluster.name={name}" in typed or f"runs/{name}" in typed]
    for command, *words in commands:
        monkeypatch.setattr(sys, "argv", [command, *(word for word in words if word != "timing"), *QUICK[command]])
        try:
            code: Any = COMMANDS[command]()
        except SystemExit as ended:
            code = ended.code
        assert not code, (command, words)

    assert commands


def test_every_recipe_and_every_command_is_tested() -> None:
    """None is left out by its name."""
    assert RECIPES.keys() == NUM_NODES.keys()
    assert {command for command, *_ in TYPED} == COMMANDS.keys()
