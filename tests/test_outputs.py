"""A file that a command writes replaces an earlier output of the same command, and nothing else."""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_every_command import SCRIPTS
from worlds import exit_status

import hetsim
from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.tables import OWN
from hetsim.cli.command import Parser
from hetsim.errors import RunFailed
from hetsim.files.folder import FILES
from hetsim.files.outputs import MARKS, is_output
from hetsim.files.writing import unfinished, written_whole
from hetsim.loop.trace import check_holds_nothing_else

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "budget.epochs=null", "budget.updates=20")
SMALL = ("workload=phantom", "workload.num_samples=2000", "budget.epochs=1")
ADVISE = ("hetsim-advise", "cluster=mixed4", *SMALL, "timing", "method=ssgd", "--processes=1")
SEARCH = ("hetsim-search", *QUICK, "pictures=false", "method=ssgd,asgd", "--objective=seconds", "--sampler=random")
STRAGGLERS = ("hetsim-stragglers", "r", "--no-replay")
CALIBRATE = ("hetsim-calibrate", "new.yaml", "cluster=uniform4", "workload=digits", "--seconds=0.1")
CASES: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    # command and option: a command, and the files that it writes
    ("hetsim-advise", "--folder"): ((*ADVISE, "--folder=out"), ("out/answers.jsonl",)),
    ("hetsim-advise", "--html"): ((*ADVISE, "--html=out.html"), ("out.html",)),
    ("hetsim-advise", "--picture"): ((*ADVISE, "--picture=out.png"), ("out.png",)),
    ("hetsim-calibrate", "file"): (("hetsim-calibrate", "out.yaml", "--from-trace=r"), ("out.yaml",)),
    ("hetsim-calibrate", "--html"): (
        (*CALIBRATE, "--html=out.html"),
        ("out.html", "new.yaml", "new.png", "new-node3.csv", "new-server.csv"),
    ),
    ("hetsim-compare", "--html"): (("hetsim-compare", "r", "r2", "--html=out.html"), ("out.html",)),
    ("hetsim-compare", "--json"): (("hetsim-compare", "r", "r2", "--json=out.json"), ("out.json",)),
    ("hetsim-compare", "--perfetto"): (("hetsim-compare", "r", "r2", "--perfetto=out.pftrace"), ("out.pftrace",)),
    ("hetsim-compare", "--pictures"): (("hetsim-compare", "r", "r2", "--pictures=out"), ("out/timeline.png",)),
    ("hetsim-report", "--html"): (("hetsim-report", "r", "--html=out.html"), ("out.html",)),
    ("hetsim-report", "--perfetto"): (("hetsim-report", "r", "--perfetto=out.pftrace"), ("out.pftrace",)),
    ("hetsim-search", "--folder"): ((*SEARCH, "--trials=2", "--folder=out"), ("out/trials.csv",)),
    ("hetsim-stragglers", "--html"): ((*STRAGGLERS, "--html=out.html"), ("out.html",)),
    ("hetsim-stragglers", "--json"): ((*STRAGGLERS, "--json=out.json"), ("out.json",)),
    ("hetsim-stragglers", "--picture"): ((*STRAGGLERS, "--picture=out.png"), ("out.png",)),
    ("hetsim-table", "--html"): (("hetsim-table", "s", "--html=out.html"), ("out.html",)),
    ("hetsim-table", "--to"): (("hetsim-table", "s", "--to=out"), tuple(f"out/table.{kind}" for kind in ("csv", "md", "parquet", "png"))),
    ("hetsim-table", "sweep"): (("hetsim-table", "s"), tuple(f"s/table.{kind}" for kind in ("csv", "md", "parquet", "png"))),
}
APPENDED = {("hetsim-calibrate", "--rows")}
"""Options whose file keeps its text."""
READ = {
    *(("hetsim-advise", "--config-dir"), ("hetsim-search", "--config-dir"), ("hetsim-calibrate", "--config-dir")),
    *(("hetsim-calibrate", "--against"), ("hetsim-calibrate", "--compose"), ("hetsim-calibrate", "--from-trace")),
    *(("hetsim-catalogue", "--file"), ("hetsim-catalogue", "--from"), ("hetsim-ddp-check", "script")),
    *(("hetsim-compare", "runs"), ("hetsim-compare", "--with"), ("hetsim-report", "run"), ("hetsim-stragglers", "traces")),
}
"""Options and arguments that name files which are only read."""


class Parsed(Exception):
    """Raised with a command's parser instead of parsing."""


def parser(monkeypatch: pytest.MonkeyPatch, command: str) -> argparse.ArgumentParser:
    """The parser of a command."""

    def stop(parser: Parser, *_: object) -> None:
        raise Parsed(parser)

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse_args", stop)
        patched.setattr(Parser, "parse_intermixed_args", stop)
        with pytest.raises(Parsed) as stopped:
            main(command)()
    result: argparse.ArgumentParser = stopped.value.args[0]
    return result


def main(command: str) -> Callable[[], None]:
    """The function of a command."""
    function: Callable[[], None] = importlib.import_module(f"hetsim.cli.{SCRIPTS[command].partition(':')[2]}").main
    return function


def test_every_option_for_a_file_is_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument of each command that names a file or a folder is one that writes or one that reads."""
    options = set()
    for command in SCRIPTS.keys() - {"hetsim"}:
        for action in parser(monkeypatch, command)._actions:
            is_file = action.type is Path or re.search("FILE|DIR|FOLDER|PAGE|yaml|RUN|TRACE", str(action.metavar))
            if action.nargs != 0 and (is_file or action.dest == "script"):
                options.add((command, action.option_strings[0] if action.option_strings else action.dest))

    assert options == CASES.keys() | APPENDED | READ


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and a sweep of two."""
    folder = tmp_path_factory.mktemp("runs")
    for name, method in {"r": "ssgd", "r2": "asgd"}.items():
        hetsim.run(*QUICK, method=method, trace="full", folder=folder / name)
    for method in ("ssgd", "asgd"):
        hetsim.run(*QUICK, method=method, pictures=False, folder=folder / "s" / method)
    return folder


@pytest.fixture
def here(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a copy of the runs."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", [case for case in CASES if case != ("hetsim-calibrate", "--html")], ids=" ".join)
@pytest.mark.usefixtures("here")
def test_an_output_replaces_an_earlier_one(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this command, which no other one's mark fits."""
    (command, *words), files = CASES[case]
    assert [exit_status(monkeypatch, command, main(command), *words) for _ in range(2)] == [0, 0]

    others = {other for other, _ in CASES} - {command}
    for path in map(Path, files):
        assert is_output(path, path.suffix[1:], command)
        assert path.suffix in (".csv", ".jsonl", ".md") or not any(is_output(path, path.suffix[1:], other) for other in others)


@pytest.mark.parametrize(("case", "file"), [(case, file) for case, (_, files) in CASES.items() for file in files], ids=str)
def test_no_output_replaces_anything_else(
    case: tuple[str, str], file: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's own file stays byte for byte, and nothing else is written. A file of the run that is read has the same fate."""
    (command, *words), _ = CASES[case]
    ours = Path("r/timeline.png" if file.endswith(".png") else "r/summary.json").read_bytes()
    for content in (b"hetsim-table hetsim-report hetsim-stragglers: mine\n", ours):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_bytes(content)
        paths = sorted(here.rglob("*"))
        status = exit_status(monkeypatch, command, main(command), *words)

        assert "would replace a file" in (said := capsys.readouterr().err)
        assert file in said
        assert status == 1
        assert Path(file).read_bytes() == content
        assert sorted(here.rglob("*")) == paths


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("hetsim-calibrate", "lab.yaml", "--compose", "lab.yaml:2"), "lab.yaml"),
        (("hetsim-calibrate", "./lab.yaml", "--compose", "other.yaml", "lab.yaml"), "lab.yaml"),
        (("hetsim-calibrate", "lab.yaml", "cluster=uniform4", "workload=digits", "--against", "./lab.yaml"), "lab.yaml"),
        (("hetsim-calibrate", "my/cluster/lab.yaml", "--config-dir=my", "cluster=lab", "workload=digits"), "my/cluster/lab.yaml"),
        (("hetsim-calibrate", "lab.yaml", "--rows=lab.yaml", "--gpu=mine"), "lab.yaml"),
        (("hetsim-compare", "r", "r2", "--pictures=r"), "r/timeline.png"),
        (("hetsim-compare", "r", "r2", "--json=r/summary.json"), "r/summary.json"),
        (("hetsim-stragglers", "r", "--json=r/trace.parquet"), "r/trace.parquet"),
        (("hetsim-stragglers", "r", "--picture=r/timeline.png"), "r/timeline.png"),
        (("hetsim-stragglers", "r", "--json=r/config.yaml"), "r/config.yaml"),
    ],
)
def test_no_output_replaces_an_input(
    words: tuple[str, ...], file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even one that the same command has written."""
    command, *arguments = words
    Path("my/cluster").mkdir(parents=True)
    for path in ("lab.yaml", "other.yaml", "my/cluster/lab.yaml"):
        assert exit_status(monkeypatch, "hetsim-calibrate", main("hetsim-calibrate"), path, "--from-trace=r") == 0
    content = Path(file).read_bytes()

    assert exit_status(monkeypatch, command, main(command), *arguments) == 1
    assert re.search(r"would replace a file|not calibrated|must be a mapping", capsys.readouterr().err)
    assert Path(file).read_bytes() == content


CALIBRATED = Path(__file__).parents[1] / "studies/04-simulated-against-measured/calibrated/cluster/links_held_out_2_workers.yaml"
ROWS = {
    "none": b"",
    "blocks": b"# mine\r\nrows:\r\n- gpu: t4  # slow\r\n  model: resnet50\r\n  precision: amp\r\n  batch: 32\r\n  seconds: 1\r\n# end",
    "in brackets": b"rows: [{gpu: t4, model: resnet50, precision: amp, batch: 32, seconds: 1}]  # mine\n",
    "with its own GPU": b"gpus: {my-card: {title: mine}}\nrows: [{gpu: my-card, model: resnet50, precision: amp, batch: 32, seconds: 1}]\n",
}


@pytest.mark.parametrize("text", ROWS.values(), ids=ROWS)
def test_rows_are_added_below_the_users_own(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte stays. A second calibration takes the place of the first; the user's own rows count as before."""
    monkeypatch.chdir(CALIBRATED.parents[2])
    rows = tmp_path / "rows.yaml"
    rows.write_bytes(text)
    before = [row for row in catalogue_of(str(rows)).rows if row.source == OWN] if text else []
    added = []
    for _ in range(2):
        command = (CALIBRATED, f"--rows={rows}", "--gpu=my-card")
        assert exit_status(monkeypatch, "hetsim-calibrate", main("hetsim-calibrate"), *command) == 0
        added.append([row for row in catalogue_of(str(rows)).rows if row.source == OWN])

    assert rows.read_bytes().startswith(text)
    assert added[0] == added[1]
    assert added[0][: len(before)] == before
    assert all(row.system.startswith("hetsim-calibrate, 20") for row in added[0][len(before) :])
    assert len(added[0]) - len(before) >= 2


def test_rows_are_not_added_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without rows is no file of rows."""
    monkeypatch.chdir(CALIBRATED.parents[2])
    (tmp_path / "mine.yaml").write_bytes(b"name: mine\n")

    command = (CALIBRATED, f"--rows={tmp_path / 'mine.yaml'}", "--gpu=my-card")
    assert exit_status(monkeypatch, "hetsim-calibrate", main("hetsim-calibrate"), *command) == 1
    assert "rows" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_bytes() == b"name: mine\n"


@pytest.mark.parametrize("name", FILES)
def test_a_run_replaces_no_file_of_the_users_own(name: str, tmp_path: Path) -> None:
    """Nor does a Team's trace. What a killed run has left is replaced, and so is the run itself."""
    (tmp_path / name).write_bytes(b"mine\n")

    with pytest.raises((ValueError, RunFailed), match=rf"{name} is of no run|holds another"):
        hetsim.run(*QUICK, folder=tmp_path)
    with pytest.raises(ValueError, match=f"a {name} that no Team has written"):
        check_holds_nothing_else(tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine\n"]

    (tmp_path / ".summary.json.unfinished").touch()
    check_holds_nothing_else(tmp_path)
    if name != "summary.json":
        hetsim.run(*QUICK, folder=tmp_path)
        (tmp_path / "summary.json").unlink()
        assert hetsim.run(*QUICK, seed=3, folder=tmp_path).summary["num_updates"] == 20


def test_every_kind_of_output_is_tried() -> None:
    """Each kind has a case that writes it."""
    assert {file.rpartition(".")[2] for _, files in CASES.values() for file in files} == MARKS.keys()


def test_writers_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    """Each of them replaces a complete file, also after one that was killed: such as two `hetsim-table` in one folder."""
    path = tmp_path / "table.png"
    unfinished(path).write_bytes(b"of a killed one")

    def write(letter: bytes) -> None:
        for _ in range(20):
            with written_whole(path) as file:
                for _ in range(10):
                    file.write(1000 * letter)
                    file.flush()
            assert path.read_bytes() in {10_000 * each for each in (b"a", b"b", b"c")}

    with ThreadPoolExecutor(3) as pool:
        [*pool.map(write, (b"a", b"b", b"c"))]

    assert [*tmp_path.iterdir()] == [path]
