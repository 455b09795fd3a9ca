"""What a stranger calls his runs, keys and configs is text, on a terminal and in a notebook."""

from __future__ import annotations

import json
import re
import traceback
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


class Shown(HTMLParser):
    """The tags and attributes of a page, its text in code, and what is outside of the first element."""

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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.outside.append(data)
        if self._open[-1:] == ["code"]:
            self.code.append(data)


INERT = {"div", "h1", "h2", "p", "ul", "li", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"} | {
    *("svg", "style", "img", "g", "path", "text", "tspan", "use", "defs", "clippath", "rect", "metadata", "rdf:rdf", "cc:work"),
}
NASTY = (
    "<img src=x onerror=alert(1)>",
    'x\\|![](q "\\("onerror=alert(1) x="\\)")',
    "$\\href{javascript:x}{y}$",
    "@@0@@",
    "`a` &lt;b&gt; </code><b>",
)


def test_a_notebook_shows_names_as_text(tmp_path: Path) -> None:
    """Jupyter trusts the output of a cell that was run: HTML in it would run, and formulas would be set, but for two classes."""
    for place, text in enumerate(NASTY):
        finished(tmp_path / str(place), 0.8 + 0.01 * place, {"method": text, "www.evil.example": text, text: place}, workload=text)
        finished(
            tmp_path / f"again {place} {text.replace('/', ' ')}",
            0.8,
            {"method": text, "www.evil.example": text, text: place},
            workload=text,
        )
    table = hetsim.table(tmp_path, baseline=f"method={NASTY[3]}")
    comparison = hetsim.compare(tmp_path / "0", tmp_path / "1")

    for result in (table, comparison):
        shown = Shown(result._repr_html_() or "")

        assert shown.attributes[0] == ("class", "mathjax_ignore tex2jax_ignore")
        assert "".join(shown.outside).strip() == ""
        assert set(shown.tags) <= INERT
        assert not [name for name, _ in shown.attributes if name.startswith("on")]
        assert not hasattr(result, "_repr_markdown_")
    for text in NASTY:
        assert any(text in code for code in Shown(table._repr_html_() or "").code)


def test_a_cell_of_a_file_is_one_cell(tmp_path: Path) -> None:
    """Whatever a viewer of Markdown takes for the end of one."""
    for place, text in enumerate(NASTY):
        finished(tmp_path / str(place), 0.8, {"method": text})

    head, _, *rows = markdown(hetsim.table(tmp_path).answer).splitlines()

    assert {line.count("|") for line in rows} == {head.count("|")}
    assert all(re.fullmatch(r"\| `[^`|<>]+` \| .*", line) for line in rows)


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


def test_the_name_of_a_folder_steers_no_terminal_from_python(tmp_path: Path) -> None:
    """Neither in what is shown of a run, nor in errors."""
    folder = tmp_path / "a\x1b]0;title\a"
    finished(
        folder,
        0.8,
        {"method": "ssgd"},
        num_updates=3,
        num_samples=12,
        num_samples_discarded=0,
        batch_sizes=[4],
        emulation=None,
        warnings=[],
    )
    run = hetsim.load(folder)
    (folder / "config.yaml").write_text("seed: [")

    assert all(line.isprintable() for line in repr(run).split("\n"))
    for wrong in (
        lambda: hetsim.load(folder / "none"),
        lambda: hetsim.table(folder / "none"),
        run.trace,
        lambda: run.config,
        lambda: hetsim.compare(folder, folder / "x"),
    ):
        with pytest.raises(ValueError, match="title") as failed:
            wrong()
        assert str(failed.value).isprintable()


def test_an_error_of_a_run_has_no_control_characters(tmp_path: Path) -> None:
    """It quotes what a file says, in the sentence and in those that it came from."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text(
        '# @package _global_\ndefaults: [{override /workload: arrays}]\nworkload: {path: "a\\e[2Jb\\nc.npz"}\n'
    )

    with pytest.raises(ValueError, match="npz") as failed:
        hetsim.run("experiment=nice", folder=tmp_path / "run", config_dir=tmp_path)

    assert "\x1b" not in "".join(traceback.format_exception(failed.value))


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


def test_the_help_of_a_config_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It shows the whole config."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text('# @package _global_\nmethod: "x\\u202eDENWP\\u2066"\n', encoding="utf-8")

    exit_status(monkeypatch, "hetsim", main, "--config-dir", tmp_path, "experiment=nice", "--help")

    told = capsys.readouterr().out
    assert "DENWP" in told
    assert not {"\u202e", "\u2066"} & {*told}


@pytest.mark.parametrize("key", ["method", "data_root", "cluster"])
def test_what_a_config_says_steers_no_terminal(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra prints a key by itself with its value."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text('# @package _global_\nmethod: "x\\e]0;PWNED\\a"\n')

    exit_status(monkeypatch, "hetsim", main, "--config-dir", tmp_path, "experiment=nice", "--cfg", "job", "-p", key)

    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert ("PWNED" in told.out) == (key == "method")
