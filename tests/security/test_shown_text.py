"""The names of a stranger's runs, keys and configs are text, on a terminal and in a notebook."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from worlds import exit_status

import hetsim
from hetsim.answers.text import markdown
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main

STEERING = "\x1b]0;title\a\nnew line"
SUMMARY: dict[str, Any] = {"method": "ssgd", "backend": "sim", "cluster": "mixed4", "workload": "digits", "num_workers": 4, "seed": 0}
SUMMARY |= {"updates_per_second": 2.0, "samples_per_second": 4.0, "staleness_mean": 0.0, "staleness_max": 0, "idle_share": 0.5}
SUMMARY |= {"num_updates": 3, "num_samples": 12, "num_samples_discarded": 0, "batch_sizes": [4], "emulation": None, "warnings": []}
SUMMARY |= {"seconds": 1.5, "final": {"train_loss": 0.5, "test_accuracy": 0.5}}
INERT = {"div", "h1", "h2", "p", "ul", "li", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"}
INERT |= {"svg", "style", "img", "g", "path", "text", "tspan", "use", "defs", "clippath", "rect", "metadata", "rdf:rdf", "cc:work"}
NASTY = (
    "<img src=x onerror=alert(1)>",
    'x\\|![](q "\\("onerror=alert(1) x="\\)")',
    "$\\href{javascript:x}{y}$",
    "@@0@@",
    "`a` &lt;b&gt; </code><b>",
)


def write_run(folder: Path, config: dict[str, Any], accuracy: float = 0.8, **summary: Any) -> None:
    """A finished run."""
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY | summary))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "workload": {"name": "digits"}} | config))
    (folder / "curve.csv").write_text(f"seconds,version,samples,train_loss,test_accuracy\n0.0,0,0,1.0,0.1\n1.5,3,12,0.5,{accuracy}\n")


class Shown(HTMLParser):
    """The tags and attributes of a page, its text in code, and all outside of the first element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.code: list[str] = []
        self.outside: list[str] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._open and self.tags:
            self.outside.append(tag)
        self.tags.append(tag)
        self.attributes += attrs
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.outside.append(data)
        if self._open[-1:] == ["code"]:
            self.code.append(data)


def test_a_notebook_shows_names_as_text(tmp_path: Path) -> None:
    """Jupyter trusts the output of a cell that was run: HTML in it would run, and formulas would be set, but for two classes."""
    for number, text in enumerate(NASTY):
        config = {"method": text, "www.evil.example": text, text: number}
        write_run(tmp_path / str(number), config, 0.8 + 0.01 * number, workload=text)
        write_run(tmp_path / f"again {number} {text.replace('/', ' ')}", config, workload=text)
    table = hetsim.table(tmp_path, baseline=f"method={NASTY[3]}")

    for result in (table, hetsim.compare(tmp_path / "0", tmp_path / "1")):
        shown = Shown(result._repr_html_() or "")

        assert shown.attributes[0] == ("class", "mathjax_ignore tex2jax_ignore")
        assert "".join(shown.outside).strip() == ""
        assert set(shown.tags) <= INERT
        assert not [name for name, _ in shown.attributes if name.startswith("on")]
        assert not hasattr(result, "_repr_markdown_")
    for text in NASTY:
        assert any(text in code for code in Shown(table._repr_html_() or "").code)


def test_a_cell_of_a_file_is_one_cell(tmp_path: Path) -> None:
    """Also where a viewer of Markdown would end it."""
    for number, text in enumerate(NASTY):
        write_run(tmp_path / str(number), {"method": text})

    head, _, *rows = markdown(hetsim.table(tmp_path).answer).splitlines()

    assert {line.count("|") for line in rows} == {head.count("|")}
    assert all(re.fullmatch(r"\| `[^`|<>]+` \| .*", line) for line in rows)


def test_a_run_steers_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by the name of its folder nor by a value, in the command, in Python, and in errors."""
    folder = tmp_path / STEERING
    write_run(tmp_path / "a", {"method": "asgd", "coordination": {"name": STEERING}})
    write_run(folder, {"method": "ssgd", "coordination": {"name": "ring"}})

    assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path) == 0

    printed, run = capsys.readouterr(), hetsim.load(folder)
    texts = [printed.out, printed.err, (tmp_path / "table.md").read_text(), repr(hetsim.table(tmp_path)), repr(run)]
    (folder / "config.yaml").write_text("seed: [")
    for wrong in (
        lambda: hetsim.load(folder / "none"),
        lambda: hetsim.table(folder / "none"),
        run.trace,
        lambda: run.config,
        lambda: hetsim.compare(folder, folder / "x"),
    ):
        with pytest.raises(ValueError, match="title") as failed:
            wrong()
        texts.append(str(failed.value))
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n"))
        assert "\nnew line" not in text


@pytest.mark.parametrize("typed", [("--info", "defaults"), ("--info", "all"), ("--help",), ("--cfg", "job", "-p", "method"), ()], ids=str)
@pytest.mark.parametrize("text", ['method: "x\\e]0;title\\a"', 'defaults: ["override /method: a\\e]0;title\\a"]', 'method: "\\u202etitle"'])
def test_a_config_steers_no_terminal(
    typed: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra lists choices by their names, and prints values."""
    for group in ("method", "experiment"):
        (tmp_path / group).mkdir()
    (tmp_path / "method" / "a\x1b]0;title\a.yaml").write_text("# @package _global_\nmomentum: 0.5\n")
    (tmp_path / "experiment" / "nice.yaml").write_text(f"# @package _global_\n{text}\n", encoding="utf-8")

    exit_status(monkeypatch, "hetsim", main, *typed, "--config-dir", tmp_path, "experiment=nice", f"hydra.run.dir={tmp_path / 'run'}")

    printed = capsys.readouterr()
    assert "title" in printed.out + printed.err
    assert all(line.isprintable() for line in (printed.out + printed.err).replace("\t", " ").split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "rows: hunter2",
        "gpus: hunter2\nrows: []",
        "gpus: {t4: {memory_gb: hunter2}}\nrows: []",
        "models: {mine: {parameters: hunter2}}\nrows: []",
        "rows: [hunter2]",
        "rows: [{gpu: hunter2, model: resnet50, precision: amp, batch: 32, seconds: 1}]",
        "rows: [{gpu: t4, model: hunter2, precision: amp, batch: 32, seconds: 1}]",
        "rows: [{gpu: t4, model: resnet50, precision: hunter2, batch: 32, seconds: 1}]",
        "rows: [{gpu: t4, model: resnet50, precision: amp, batch: hunter2, seconds: 1}]",
        "rows: [{gpu: t4, model: resnet50, precision: amp, batch: 32, seconds: hunter2}]",
    ],
)
def test_no_error_shows_a_value_of_a_file_that_a_config_names(text: str, tmp_path: Path) -> None:
    """The config may come from somebody else, and name any file of the user."""
    (tmp_path / "token").write_text(text, encoding="utf-8")
    (tmp_path / "cluster").mkdir()
    cluster = {"name": "theirs", "machines": [{"gpus": {"t4": 2}, "network": "10 Gbit/s"}]}
    cluster["catalogue"] = {"model": "resnet50", "file": str(tmp_path / "token")}
    (tmp_path / "cluster" / "theirs.yaml").write_text(yaml.safe_dump(cluster), encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows|gpus|models|mapping") as refused:
        hetsim.run("cluster=theirs", "workload=phantom", "method=ddp", "batch_size=64", config_dir=tmp_path, folder=tmp_path / "run")

    assert "hunter2" not in str(refused.value)
