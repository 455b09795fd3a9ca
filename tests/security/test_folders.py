"""Where files go: a value is a part of a folder's name and no path, and hetsim writes through no link of somebody else's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.cli.search import main as search_main

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "method=ssgd", "budget.epochs=null", "budget.updates=2", "pictures=false", "trace=none")
OUTWARDS = "x/../../../../elsewhere/y"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's folder of configs; the current folder is an empty one beside it, and `mine` is another one."""
    for name in ("theirs/experiment", "here", "mine"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "theirs"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def write_experiment(theirs: Path, text: str) -> tuple[object, ...]:
    """The words that choose a config with this text."""
    (theirs / "experiment" / "nice.yaml").write_text(f"# @package _global_\n{text}\n")
    return "--config-dir", theirs, "experiment=nice"


@pytest.mark.parametrize("typed", [("hydra.run.dir=out/${seed}",), ("-m", "seed=1,2"), ()])
def test_a_value_that_is_a_path_is_a_part_of_a_name(typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders of conf/config.yaml."""
    words = write_experiment(theirs, f"cluster: {{name: {OUTWARDS}}}\nmethod: {OUTWARDS}")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, *words, *typed) == 0

    assert {path.name for path in theirs.parent.iterdir()} == {"theirs", "here", "mine"}
    assert {path.name for path in Path().iterdir()} <= {"out", "runs"}


@pytest.mark.parametrize(
    "typed",
    [
        ("hydra.run.dir=out/${method}/${seed}",),
        ("hydra.run.dir=${data_root}/out",),
        ("hydra.run.dir=out/${oc.select:method}",),
        ("-m", "seed=1,2", "hydra.sweep.dir=out/${method}"),
        ("-m", "seed=1,2", "hydra.sweep.subdir=${hydra:job.num}-${method}"),
        ("-m", "seed=1,2", "+grid=nice", "hydra.sweep.subdir=${hydra.job.override_dirname}"),
    ],
)
def test_a_value_of_a_file_leads_out_of_no_typed_folder(
    typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence has the folder to which it would lead."""
    words = write_experiment(theirs, f"method: {OUTWARDS}\ndata_root: {theirs.parent / 'elsewhere'}")
    (theirs / "grid").mkdir()
    (theirs / "grid" / "nice.yaml").write_text(f"ssgd: {{data_root: ['{OUTWARDS}']}}\n")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, *words, *typed) == 1

    assert re.search(r"hydra\.\w+\.\w+ has .*\$\{.*, and a config file makes it .*: leave the reference out", capsys.readouterr().err)
    assert not [name for name in files(theirs.parent) if "multirun" not in name and "theirs" not in name]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("download: true\ndata_root: data", "download is set by a config file, but only the command line may set it"),
        ("workload: {download: '${pictures}'}", "download is set by a config file, but only the command line may set it"),
        ("resume: ../theirs", "resume is set by a config file, but only the command line may set it"),
    ],
)
def test_what_is_downloaded_and_resumed_is_typed(
    text: str, sentence: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may name the folder to which a download goes."""
    words = write_experiment(theirs, f"defaults: [{{override /workload: mnist}}]\n{text}")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK[1:-2], *words, "pictures=true", "hydra.run.dir=run") == 1

    assert sentence in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_folder_that_is_a_link_is_not_written_through(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run, of a sweep and of a search, on the command line and in Python."""
    Path("results").symlink_to(theirs.parent / "mine")
    search = (*QUICK, "batch_size=32,64", "--objective", "samples_per_second", "--trials", "1", "--folder", "results")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, "hydra.run.dir=results") == 1
    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "seed=0,1", "hydra.sweep.dir=results") == 1
    assert exit_status(monkeypatch, "hetsim-search", search_main, *search) == 1
    with pytest.raises(ValueError, match="results is a link, and would be written through"):
        hetsim.run(*QUICK, folder="results")

    assert capsys.readouterr().err.count("results is a link, and would be written through: ") == 3
    assert not files(theirs.parent / "mine")


SWEPT = ("-m", "seed=3,4", "hydra.sweep.subdir=a/seed/${seed}")


@pytest.mark.parametrize(
    ("link", "typed"),
    [
        *((link, SWEPT) for link in ("a", "a/seed", "multirun.yaml", ".submitit")),
        ("a/b", ("hydra.output_subdir=a/b",)),
        ("hetsim.log", ("hydra/job_logging=default",)),
    ],
)
def test_a_link_in_a_folder_is_not_written_through(
    link: str, typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the place of a run that can be foretold, of a sweep's files, and of Hydra's own."""
    (theirs / link).parent.mkdir(exist_ok=True)
    (theirs / link).symlink_to(theirs.parent / "mine" / ("new.log" if link.endswith(".log") else ""))

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, f"hydra.{'sweep' if '-m' in typed else 'run'}.dir={theirs}", *typed) == 1

    assert f"{theirs / link} is a link or a pipe, and would be written through: remove it" in capsys.readouterr().err
    assert not files(theirs.parent / "mine")


@pytest.mark.parametrize("name", ["${data_root}", "study\nsh run.sh #"])
@pytest.mark.parametrize("way", ["hetsim", "hetsim -m", "hetsim.run", "hetsim.sweep", "hetsim --config-dir ."])
def test_nothing_runs_in_a_folder_with_an_odd_name(
    name: str, way: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra would resolve a reference in it, and a scheduler's script would have a line of it."""
    (theirs / name).mkdir()
    monkeypatch.chdir(theirs / name)
    sentence = r"in which Hydra would take|whose name has control characters"

    if way.startswith("hetsim."):
        with pytest.raises(ValueError, match=sentence):
            hetsim.run(*QUICK) if way == "hetsim.run" else hetsim.sweep({"seed": [0, 1]})
    else:
        assert exit_status(monkeypatch, "hetsim", main, *way.split()[1:], *QUICK) == 1
        assert re.search(sentence, capsys.readouterr().err)
    assert not files(theirs / name)
