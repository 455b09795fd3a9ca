"""Where files go: a value is a part of a folder's name and no path, and what is written goes through no link of somebody else's."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hetsim.config.guard.folders import check_script
from hetsim.config.guard.references import check_words
from omegaconf import OmegaConf
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.cli.search import main as search_main

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "budget.epochs=null", "budget.updates=2", "pictures=false")


def folders(root: Path) -> set[str]:
    """Everything below a folder."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's folder of configs; the current folder is an empty one beside it."""
    (tmp_path / "theirs" / "experiment").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "theirs"


@pytest.mark.parametrize(
    "typed",
    [
        (),
        ("hydra.run.dir=out/${method}/${seed}",),
        ("hydra.run.dir=${hydra:runtime.cwd}/out/${now:%Y/%m}/${hydra:job.override_dirname}-${hydra.job.name}${method}",),
        ("-m", "seed=1,2", "hydra.sweep.dir=out/${method}"),
        ("-m", "seed=1,2", "hydra.sweep.dir=out", "hydra.sweep.subdir=${hydra:job.num}-${method}"),
    ],
)
def test_a_value_that_is_a_path_leads_out_of_no_folder(typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one part of a file name."""
    (theirs / "experiment" / "nice.yaml").write_text("# @package _global_\nmethod: x/../../../../elsewhere/y\n")

    assert exit_status(monkeypatch, "hetsim", main, "--config-dir", theirs, "experiment=nice", *QUICK, *typed) == 0

    assert {path.name for path in theirs.parent.iterdir()} == {"theirs", "here"}
    assert {path.name for path in Path().iterdir()} <= {"out", "runs"}
    assert any("x_.._.._.._.._elsewhere_y" in path for path in folders(Path()))


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("hydra.run.dir=out/${oc.select:method}", "hydra.run.dir has out/${oc.select:method}: write the value out, or refer to a key"),
        ('hydra.run.dir="out/${cluster.${method}}"', 'hydra.run.dir has "out/${cluster.${method}}": write the value out'),
    ],
)
def test_a_folder_refers_to_keys_only(
    folder: str, reason: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also without a file from outside."""
    (theirs / "experiment" / "nice.yaml").write_text("# @package _global_\nmethod: x\n")

    for words in ((), ("--config-dir", theirs, "experiment=nice")):
        assert exit_status(monkeypatch, "hetsim", main, *words, *QUICK, folder) == 1
        assert reason in capsys.readouterr().err
    assert not folders(Path())


@pytest.mark.parametrize("text", ["download: true", "workload: {download: true}", "workload: {download: '${pictures}'}\npictures: true"])
def test_a_file_has_nothing_downloaded(
    text: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a folder that it may name, too."""
    (theirs / "experiment" / "nice.yaml").write_text(
        f"# @package _global_\ndefaults: [{{override /workload: mnist}}]\n{text}\ndata_root: data\n"
    )
    for typed in ((), ("download=false",)):
        run = ("--config-dir", theirs, "experiment=nice", *typed, "hydra.run.dir=run")
        assert exit_status(monkeypatch, "hetsim", main, *run) == 1

        told = capsys.readouterr().err
        assert "download is set by a config file" in told or (text == "download: true" and typed and "which is missing" in told)
        assert not folders(Path())


@pytest.mark.parametrize("link", ["RUN", ".submitit", "multirun.yaml"])
def test_a_sweep_goes_on_in_no_folder_with_links(
    link: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names of runs can be foretold, and Hydra writes through links."""
    typed = ("-m", *QUICK, "method=ssgd", f"hydra.sweep.dir={theirs}")
    assert exit_status(monkeypatch, "hetsim", main, *typed) == 0
    run = next(theirs.glob("ssgd-*"))
    mine = theirs.parent / "mine"
    run.rename(mine)
    before = {path.name: path.stat().st_mtime_ns for path in mine.iterdir()}
    place = run if link == "RUN" else theirs / link
    place.unlink(missing_ok=True)
    place.symlink_to(mine)

    assert exit_status(monkeypatch, "hetsim", main, *typed, "seed=0,1") == 1

    assert f"{place} is a link or a pipe, and would be written through: remove it" in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in mine.iterdir()} == before


@pytest.mark.usefixtures("theirs")
def test_a_folder_of_a_run_that_is_a_link_is_not_written_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed may be the name of a link in a stranger's folder."""
    assert exit_status(monkeypatch, "hetsim", main, *QUICK, "hydra.run.dir=mine") == 0
    before = {path.name: path.stat().st_mtime_ns for path in Path("mine").iterdir()}
    Path("results").symlink_to("mine")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, "trace=none", "hydra.run.dir=results") == 1

    assert "results is a link, and would be written through: set hydra.run.dir to another folder" in capsys.readouterr().err
    assert {path.name: path.stat().st_mtime_ns for path in Path("mine").iterdir()} == before


@pytest.mark.usefixtures("theirs")
def test_a_folder_of_a_sweep_or_a_search_that_is_a_link_is_not_written_through(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for many runs."""
    Path("mine").mkdir()
    Path("results").symlink_to("mine")
    search = ("method=ssgd,asgd", *QUICK, "--objective", "samples_per_second", "--trials", "1", "--folder", "results")

    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "method=ssgd,asgd", "hydra.sweep.dir=results") == 1
    assert "results is a link, and would be written through: set hydra.sweep.dir to another folder" in capsys.readouterr().err
    assert exit_status(monkeypatch, "hetsim-search", search_main, *search) == 1
    assert "results is a link, and would be written through: give another --folder" in capsys.readouterr().err
    assert not [path for path in Path("mine").rglob("*") if path.is_file()]


@pytest.mark.parametrize("mode", ["single", "sweep", "python", "folder", "config_dir"])
def test_a_folder_with_the_name_of_a_reference_leads_nowhere_else(
    mode: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra writes the current folder into the config, and would resolve its name there."""
    odd = theirs / "${data_root}"
    (odd / "experiment").mkdir(parents=True)
    (odd / "experiment" / "nice.yaml").write_text("# @package _global_\ndata_root: ../mine\n")
    (theirs / "mine").mkdir()
    monkeypatch.chdir(theirs if mode in ("folder", "config_dir") else odd)
    words = (*QUICK, "experiment=nice")
    reason = "in which Hydra would take ${…} for a reference: work in a folder of another name"

    if mode in ("single", "sweep"):
        more = ("-m", "seed=0,1") if mode == "sweep" else ("hydra.run.dir=.",)
        assert exit_status(monkeypatch, "hetsim", main, "--config-dir", ".", *words, *more) == 1
        assert reason in capsys.readouterr().err
    else:
        arguments: dict[str, Any] = {"folder": odd} if mode == "folder" else {"config_dir": odd} if mode == "config_dir" else {}
        with pytest.raises(ValueError, match=re.escape(reason)):
            hetsim.sweep({"seed": [0, 1]}, **arguments)
        if mode != "folder":
            with pytest.raises(ValueError, match=re.escape(reason)):
                hetsim.run(*words, **arguments)
    assert not [path for path in theirs.rglob("*") if path.is_file() and path.name != "nice.yaml"]


def test_a_link_between_a_sweep_and_its_run_is_not_written_through(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the runs' folders are nested."""
    (theirs / "a").mkdir()
    mine = theirs.parent / "mine"
    mine.mkdir()
    (theirs / "a" / "seed").symlink_to(mine)
    typed = ("-m", *QUICK, "seed=3,4", f"hydra.sweep.dir={theirs}", "hydra.sweep.subdir=a/seed/${seed}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    told = capsys.readouterr().err
    assert told.count(f"hetsim: error: {theirs}/a/seed is a link or a pipe, and would be written through: remove it\n") == 2
    assert not any(path.is_file() for path in mine.rglob("*"))


@pytest.mark.parametrize("way", ["hetsim", "hetsim -m", "hetsim.run", "hetsim.sweep"])
def test_nothing_runs_in_a_folder_whose_name_has_lines(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler's script would have the second line as a command of its own."""
    here = tmp_path / "study\nsh run.sh #"
    here.mkdir()
    monkeypatch.chdir(here)
    reason = r"the current folder is .*study\\nsh run\.sh #, whose name has control characters"

    if way.startswith("hetsim."):
        with pytest.raises(ValueError, match=reason):
            hetsim.run(*QUICK) if way == "hetsim.run" else hetsim.sweep({"seed": [0, 1]})
    else:
        assert exit_status(monkeypatch, *way.split()[:1], main, *way.split()[1:], *QUICK) == 1
        assert re.search(reason, capsys.readouterr().err)
    assert not list(here.iterdir())


def test_no_sweep_goes_to_a_folder_whose_name_has_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However it is typed."""
    monkeypatch.chdir(tmp_path)
    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "hydra.sweep.dir='a\nb'") == 1
    assert "control characters" in capsys.readouterr().err
    assert not folders(Path())


@pytest.mark.parametrize(
    "word",
    [
        "hydra.output_subdir='cfg-${method}'",
        "hydra.job.name='${method}'",
        "hydra.job.name='${cluster.name}-x'",
        "+hydra.job.env_set.X='${method}'",
        "hydra.launcher.n_jobs=${seed}",
    ],
)
def test_what_hydra_does_depends_on_no_value_of_a_file(
    word: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typed reference has the value that the file gives the key: a path, or a line of a job's script."""
    (theirs / "experiment" / "nice.yaml").write_text('# @package _global_\nmethod: "x; touch M"\n')
    launcher = ("hydra/launcher=joblib",) if "launcher" in word else ()

    assert exit_status(monkeypatch, "hetsim", main, "--config-dir", theirs, "experiment=nice", *QUICK, *launcher, word) == 1

    assert re.search(rf"{re.escape(word.lstrip('+').split('=')[0])} has .*\$\{{.*: write the value out$", capsys.readouterr().err)
    assert not folders(Path())


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a\\b", "x%j", "$(x)", "a;b", "a#b"])
def test_a_job_of_a_scheduler_runs_in_a_folder_of_a_plain_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sbatch reads the lines of a script by rules of its own, and submitit puts the job's number in the place of %j."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)

    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "seed=0,1", "hydra/launcher=submitit_local") == 1
    assert "which a job's script may take for more: rename it" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_help_is_shown_beside_a_folder_of_configs(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra's own texts call its own resolver."""
    assert exit_status(monkeypatch, "hetsim", main, "--config-dir", theirs, "--help") == 0
    assert "hetsim trains a model" in capsys.readouterr().out


@pytest.mark.parametrize(
    "typed",
    [
        *(
            f"+hydra.launcher.setup=['cd ${{{reference}}}']"
            for reference in (
                *("hydra.runtime.cwd", " hydra.runtime.cwd ", "hydra[runtime].cwd", "hydra: runtime.cwd", "hydra:runtime.cwd"),
                *("oc.select:hydra.runtime.cwd", "...runtime.cwd", "oc.env:PWD", "hydra.run.dir", "hydra.sweep.dir"),
            )
        ),
        "hydra.job.name=${hydra:runtime.cwd}",
        "hydra.launcher.name=x",
    ],
)
def test_a_jobs_script_has_no_name_of_the_current_folder(
    typed: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a stranger's, and called `data;touch MARK;#`."""
    (theirs / "data;touch MARK;#").mkdir()
    monkeypatch.chdir(theirs / "data;touch MARK;#")
    where = ("hydra/launcher=submitit_local", f"hydra.sweep.dir={theirs.parent / 'out'}")

    status = exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "method=ssgd", *where, typed)

    said = capsys.readouterr().err
    assert status == (0 if typed == "hydra.launcher.name=x" else 1), said
    assert (status == 1) == bool(re.search(r"hydra\.\S+ has .*: write the value out$", said)), said
    assert status == 0 or not [path for path in (theirs.parent / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("name", "refused"), [("study PYTHONPATH=evil", True), ("study,PYTHONPATH=evil", True), ("study-1.2", False)])
@pytest.mark.parametrize("where", ["sweep.dir", "current"])
def test_what_is_typed_for_a_script_has_no_odd_name_of_a_folder(
    name: str, refused: bool, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell writes it out for `"cd $PWD"`: the script's shell, or Slurm's list of variables, would take it apart."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder if where == "current" else tmp_path)
    sweep = folder if where == "sweep.dir" else tmp_path / "sw"
    launcher = {"setup": [f"export RESULTS={folder}"], "timeout_min": 3}
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}, "launcher": launcher}})

    if not refused:
        check_script(config)
        return
    with pytest.raises(ValueError, match="which a job's script may take for more: work in a folder of a plain name"):
        check_script(config)


@pytest.mark.parametrize("typed", [(), ("-m",)])
def test_a_folder_that_cannot_be_listed_hides_no_link(
    typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of mode 0300, whose names may be opened by who knows them. Root may list it, so here the system is made to refuse."""
    mine = theirs.parent / "mine"
    mine.mkdir()
    run = theirs / "run"
    run.mkdir()
    (run / ".hydra").symlink_to(mine)
    scandir = os.scandir

    def refusing(path: Any = ".") -> Any:
        if isinstance(path, str | os.PathLike) and Path(path).absolute() == run:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    where = ("hydra.sweep.subdir=run", f"hydra.sweep.dir={theirs}") if typed else (f"hydra.run.dir={run}",)

    assert exit_status(monkeypatch, "hetsim", main, *typed, *QUICK, "method=ssgd", *where, "hydra.output_subdir=.hydra") == 1
    assert "cannot be looked into (Permission denied): change its permissions, or take another folder" in capsys.readouterr().err
    assert not list(mine.iterdir())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("setup", ["cd ${hydra.${hydra.job.config_name}}"]),
        ("comment", "${hydra:runtime.cwd}"),
        ("x", "${hydra: runtime.cwd}"),
        ("setup", ["cd ${hydra.sweep.dir}"]),
    ],
)
def test_a_jobs_script_has_no_reference_but_the_two_of_its_plugin(key: str, value: object) -> None:
    for word in (f"+hydra.launcher.additional_parameters.{key}={value}", f"+hydra.launcher={{additional_parameters: {{{key}: {value}}}}}"):
        with pytest.raises(ValueError, match=r"^hydra\.launcher\S* has .*: write the value out$"):
            check_words([word])


@pytest.mark.parametrize("typed", ["hydra.job.name=a-${hydra.job.override_dirname}", "+hydra.launcher.setup=['echo ${data_root}']"])
def test_what_a_file_may_set_has_no_place_in_hydras_own_keys(
    typed: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor in a list, nor as the words of a run."""
    (theirs / "experiment" / "nice.yaml").write_text(
        "# @package _global_\ndata_root: 'x; touch MARK'\nhydra: {sweeper: {params: {seed: '1,2'}}}\n"
    )
    typed_too = ("hydra/launcher=submitit_local", typed) if "launcher" in typed else (typed,)

    assert exit_status(monkeypatch, "hetsim", main, "-m", *QUICK, "--config-dir", theirs, "experiment=nice", *typed_too) == 1

    assert re.search(r"hydra\.\S+ has .*\$\{.*\}.*: write the value out$", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("typed", "link"),
    [(("hydra.output_subdir=.hydra",), ".hydra"), (("hydra.output_subdir=a/b",), "a/b"), (("hydra/job_logging=default",), "main.log")],
)
def test_hydra_writes_through_no_link_of_a_single_run_or_a_job(
    typed: tuple[str, ...], link: str, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any depth of the folder."""
    mine = theirs.parent / "mine"
    mine.mkdir()
    (theirs / link).parent.mkdir(exist_ok=True)
    (theirs / link).symlink_to(mine / "new.log" if link == "main.log" else mine)
    jobs = ("-m", f"hydra.sweep.dir={theirs.parent}", "hydra.sweep.subdir=theirs", "hydra/launcher=submitit_local")

    for where in ((f"hydra.run.dir={theirs}",), jobs):
        assert exit_status(monkeypatch, "hetsim", main, *QUICK, "method=ssgd", *where, *typed) == 1
        assert "would be written through: remove it" in capsys.readouterr().err

    assert not list(mine.iterdir())


@pytest.mark.parametrize("typed", [("hydra.output_subdir=.hydra",), ("hydra/job_logging=default",)])
def test_hydra_writes_through_no_link_of_a_run(
    typed: tuple[str, ...], theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own files, and a log, come before those of the run."""
    words = ("-m", *QUICK, "method=ssgd", f"hydra.sweep.dir={theirs}")
    assert exit_status(monkeypatch, "hetsim", main, *words) == 0
    run = next(theirs.glob("ssgd-*"))
    mine = theirs.parent / "mine"
    mine.mkdir()
    for name in (".hydra", "main.log", "task.log"):
        (run / name).symlink_to(mine if name == ".hydra" else mine / name)
    capsys.readouterr()

    assert exit_status(monkeypatch, "hetsim", main, *words, *typed) == 1

    assert "would be written through: remove it" in capsys.readouterr().err
    assert not list(mine.iterdir())


def test_a_link_is_found_where_runs_change_the_current_folder(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the sweep's folder is relative to where the command began."""
    mine = theirs.parent / "mine"
    mine.mkdir()
    monkeypatch.chdir(theirs.parent)
    (theirs / "x").mkdir()
    (theirs / "x" / "ssgd").symlink_to(mine)
    typed = (
        "-m",
        *QUICK,
        "method=ssgd",
        "seed=0,1",
        f"hydra.sweep.dir={theirs.name}",
        "hydra.sweep.subdir='x/${method}'",
        "hydra.job.chdir=true",
    )

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    assert "is a link" in capsys.readouterr().err
    assert not any(path.is_file() for path in mine.rglob("*"))
