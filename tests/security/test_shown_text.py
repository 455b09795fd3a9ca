"""What a stranger calls his runs, keys and configs is text, on a terminal and in a notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main
from hetsim.results.tables.files import escaped

STEERING = "\x1b]0;title\a\nnew line"
HTML = "<img src=x onerror=alert(1)> ![p](http://x.example/p) [l](javascript:x) $\\href{x}{y}$ `a` | &lt;b&gt;"
SUMMARY: dict[str, Any] = {
    "method": "ssgd", "backend": "sim", "cluster": "mixed4", "workload": "digits", "num_workers": 4, "seconds": 1.5, "staleness_max": 0,
    "updates_per_second": 2.0, "samples_per_second": 4.0, "staleness_mean": 0.0, "idle_share": 0.5, "seed": 0,
    "final": {"train_loss": 0.5, "test_accuracy": 0.5},
}  # fmt: skip


def finished(folder: Path, accuracy: float, config: dict[str, Any], **summary: Any) -> None:
    """A finished run."""
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY | summary))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "workload": {"name": "digits"}} | config))
    (folder / "curve.csv").write_text(f"seconds,version,samples,train_loss,test_accuracy\n0.0,0,0,1.0,0.1\n1.5,3,12,0.5,{accuracy}\n")


def test_a_notebook_shows_a_table_as_text(tmp_path: Path) -> None:
    """Jupyter trusts the output of a cell that was run: HTML in it would run."""
    finished(tmp_path / "a", 0.8, {"method": "<img src=x onerror=alert(1)>"})
    finished(tmp_path / "b", 0.9, {"method": "asgd"})
    finished(tmp_path / HTML.replace("/", " "), 0.9, {"method": "asgd"})

    table = hetsim.table(tmp_path)
    markdown = table._repr_markdown_()  # type: ignore[no-untyped-call, unused-ignore]

    assert any("<img src=x onerror=alert(1)>" in remark for remark in table.remarks)
    assert any(" ".join(HTML.replace("/", " ").split()) in remark for remark in table.remarks)
    outside = re.sub(r"`[^`]*`", "", re.sub(r"\\.", "", markdown))  # code, and letters that stand for themselves
    assert not re.search(r"[<>$\[\]!]|http:", outside)


def test_a_sentence_in_markdown_is_the_sentence() -> None:
    """Read as CommonMark reads it."""
    marked = escaped(HTML)

    assert not re.search(r"[<>$]", marked)
    read = re.sub(r"\\([!-/:-@\[-`{-~])|&(lt|gt|quot);", lambda found: found[1] or {"lt": "<", "gt": ">", "quot": '"'}[found[2]], marked)
    assert read.replace("＄", "$") == HTML


def test_a_coordinations_name_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a column of its own where rows differ in it."""
    finished(tmp_path / "a", 0.8, {"method": "asgd", "coordination": {"name": STEERING}})
    finished(tmp_path / "b", 0.8, {"method": "ssgd", "coordination": {"name": "ring"}})
    finished(tmp_path / STEERING, 0.8, {"method": "ssgd", "coordination": {"name": "ring"}})

    assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path) == 0

    told = capsys.readouterr()
    for text in (told.out, told.err, (tmp_path / "table.md").read_text(), repr(hetsim.table(tmp_path))):
        assert all(line.isprintable() for line in text.split("\n"))
        assert "\nnew line" not in text


@pytest.mark.slow
@pytest.mark.parametrize("what", ["defaults", "all"])
def test_the_name_of_a_config_steers_no_terminal(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra lists the choices that there are."""
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "a\x1b]0;title\a.yaml").write_text("# @package _global_\nmomentum: 0.5\n")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text('# @package _global_\ndefaults: ["override /method: a\\e]0;title\\a"]\n')

    exit_status(monkeypatch, "hetsim", main, "--info", what, "--config-dir", tmp_path, "experiment=nice")

    told = capsys.readouterr()
    assert "title" in told.out + told.err
    assert "\x1b" not in told.out + told.err
    assert "\a" not in told.out + told.err
