"""Reports are files that load nothing and run nothing, whatever the names in them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from worlds import exit_status, experiment

from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.answers.html import MAX_TEXT, POLICY, document
from hetsim.cli.compare import main as compare_main
from hetsim.cli.report import main as report_main
from hetsim.cli.table import main as table_main
from hetsim.files.identity import config_header
from hetsim.sim import Simulator

SCRIPT = "<script>alert(1)</script>"
INERT = {"html", "head", "meta", "title", "style", "body", "main", "footer", "h1", "h2", "p", "figure", "figcaption", "div", "img"} | {
    *("table", "thead", "tbody", "tr", "th", "td", "ul", "li", "pre", "code", "details", "summary"),
    *("svg", "g", "path", "text", "tspan", "use", "defs", "clippath", "rect", "metadata", "rdf:rdf", "cc:work"),
}


class Elements(HTMLParser):
    """The elements of a page and their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Elements:
    """A page, of which nothing runs and nothing is loaded."""
    its = Elements(page)
    names = {name for _, attributes in its.found for name in attributes}
    links = [value for _, attributes in its.found for name, value in attributes.items() if name.split(":")[-1] in ("href", "src")]

    assert {tag for tag, _ in its.found} <= INERT
    assert [name for name in names if name.startswith("on")] == []
    assert [link for link in links if not str(link).startswith(("#", "data:image/png;base64,"))] == []
    assert not re.search(r"url\((?!#)|@import", page)
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}) in its.found
    return its


def ran(folder: Path, seed: int = 0, **entries: Any) -> Path:
    """The folder of a short run, with other entries in its summary."""
    made = experiment("method=ssgd", "workload=quadratic", budget={"updates": 4}, seed=seed, trace="full", pictures=False)
    header = config_header("-", ["method=ssgd", f"seed={seed}"])
    Simulator().run(made, folder, f"{header}method: ssgd\nseed: {seed}\nbatch_size: '{SCRIPT}'\n")
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two repeats whose names are a stranger's."""
    folder = tmp_path_factory.mktemp("runs") / "<img src=x onerror=alert(1)>"
    names = {"method": SCRIPT, "cluster": f"'{SCRIPT}", "workload": f'"{SCRIPT}', "warnings": [SCRIPT]}
    return [ran(folder / f"{seed}", seed, **names) for seed in range(2)]


def test_a_run_is_one_page_in_which_a_name_is_only_text(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the answer, both pictures, a row for each worker, the command and the config."""
    file = tmp_path / "run.html"

    assert exit_status(monkeypatch, "hetsim-report", report_main, runs[0], "--html", file) == 0

    its = read(file.read_text(encoding="utf-8"))
    assert f"How does {SCRIPT} train \"{SCRIPT} on '{SCRIPT}?" in its.text
    assert "4 updates in " in its.text
    assert f"batch_size: '{SCRIPT}'" in its.text
    assert "hetsim method=ssgd seed=0" in its.text
    assert [tag for tag, _ in its.found].count("svg") == 2
    assert "worker 0" in its.text  # the timeline's text is text


def test_a_comparison_and_a_table_are_pages_with_the_command_that_made_them(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same law for the commands that read several runs."""
    compared, listed = tmp_path / "compare.html", tmp_path / "table.html"

    assert exit_status(monkeypatch, "hetsim-compare", compare_main, *runs, "--html", compared) == 0
    assert exit_status(monkeypatch, "hetsim-table", table_main, runs[0].parent, "--to", tmp_path, "--html", listed) == 0

    its, other = (read(file.read_text(encoding="utf-8")) for file in (compared, listed))
    assert "The first side makes" in its.text
    assert f"--html {compared}" in its.text
    assert "Where the time went" in its.text
    assert "ranks first of 1" in other.text
    assert f"--html {listed}" in other.text


@pytest.mark.slow
def test_a_page_is_small_however_much_is_in_it() -> None:
    """Long texts and tables are cut, and say so; a picture of very many parts is a PNG."""
    figure = Figure()
    figure.subplots().broken_barh([(place, 0.5) for place in range(6_000)], (0, 1))
    sheet = Sheet("many", ("a", "b"), [("x" * 1000, str(row)) for row in range(100_000)])

    pictures = [Picture("f", "a figure", lambda: figure)]
    page = document(
        Answer(question="q", answer=["a"], pictures=pictures, sheets=[sheet] * 3, texts=[("t", "<" * 10**6)] * 2), "hetsim-report"
    )

    assert len(page) < 3_000_000
    assert "more rows are left out" in page
    assert f"and {10**6 - MAX_TEXT} letters more" in page
    assert [tag for tag, _ in read(page).found].count("img") == 1


def test_the_same_run_makes_the_same_page(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No moment and no random name is in it."""
    files = [tmp_path / name for name in ("one.html", "two.html")]
    for file in files:
        exit_status(monkeypatch, "hetsim-report", report_main, runs[0], "--html", file)

    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_report_without_a_place_is_one_sentence(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ending that browsers do not know, and nothing to write."""
    assert exit_status(monkeypatch, "hetsim-report", report_main, runs[0], "--html", tmp_path / "run.txt") == 1
    assert "run.txt must end in .html" in capsys.readouterr().err
    assert exit_status(monkeypatch, "hetsim-report", report_main, runs[0]) == 2
    assert "give --html report.html" in capsys.readouterr().err


@pytest.mark.slow
def test_a_browser_shows_a_report(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the width of a phone; skipped where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium to show the report")
    file, picture = tmp_path / "run.html", tmp_path / "run.png"
    exit_status(monkeypatch, "hetsim-report", report_main, runs[0], "--html", file)

    shot = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}", "--window-size=500,900", file.as_uri()]
    subprocess.run(shot, cwd=tmp_path, capture_output=True, check=True, timeout=120)

    assert picture.stat().st_size > 10_000
