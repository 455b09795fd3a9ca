"""The values of environment variables stay out of the files of a run."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError
from worlds import exit_status

import hetsim
from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.cli.table import main as table_main
from hetsim.config.guard.environment import LONGEST, hidden, without_values, without_variables
from hetsim.errors import RunFailed

SECRET = "correct-horse-battery"
QUICK = ("workload=quadratic", "budget.updates=2")


def texts(folder: Path) -> str:
    """Every byte of every file below a folder, and their names."""
    return "\n".join(f"{path}\n{path.read_bytes().decode('latin1')}" for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.slow
def test_a_value_from_the_environment_is_written_as_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed, what refers to it and what is composed with it; and the written config can be read again."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    typed = ("data_root=${oc.env:HETSIM_TEST_SECRET}", "+workload.more=1", "~workload.more", f"hydra.run.dir={tmp_path}")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, *typed) == 0

    config = OmegaConf.load(tmp_path / "config.yaml")
    assert SECRET not in texts(tmp_path)
    assert OmegaConf.to_container(config)["data_root"] == "${oc.env:HETSIM_TEST_SECRET}"  # type: ignore[call-overload, index]
    assert config.data_root == SECRET


@pytest.mark.slow
def test_a_run_is_another_one_with_another_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its identity, and so the name of its folder, depends on the value; a sweep does not take the one for the other."""
    for value in ("one", "one", "two"):
        monkeypatch.setenv("HETSIM_TEST_SECRET", value)
        typed = ("-m", *QUICK, "pictures=false", "data_root=${oc.env:HETSIM_TEST_SECRET}", f"hydra.sweep.dir={tmp_path}")
        assert exit_status(monkeypatch, "hetsim", main, *typed) == 0

    heads = {path.read_text().splitlines()[2] for path in tmp_path.glob("*/config.yaml")}
    assert len(heads) == 2
    assert all(re.fullmatch(r'# environment: \{"data_root": "[0-9a-f]{12}"\}', head) for head in heads)


@pytest.mark.slow
def test_runs_with_other_values_are_not_one_row_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor taken for equal in a comparison. Keys that change no number may differ, as without an environment."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nbatch_size: ${oc.decode:${oc.env:HETSIM_TEST_SIZE}}\n")
    typed = ("--config-dir", tmp_path, "experiment=mine", *QUICK, "pictures=false", "data_root=${oc.env:HETSIM_TEST_SECRET}")
    for size, secret in ((32, "one"), (64, "one"), (64, "two")):
        monkeypatch.setenv("HETSIM_TEST_SIZE", str(size))
        monkeypatch.setenv("HETSIM_TEST_SECRET", secret)
        where = f"hydra.run.dir={tmp_path / 'runs' / f'{size}-{secret}'}"
        assert exit_status(monkeypatch, "hetsim", main, *typed, where) == 0
    capsys.readouterr()

    assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path / "runs") == 0
    rows = capsys.readouterr().out.strip().split("\n")[2:]
    assert exit_status(monkeypatch, "hetsim-compare", compare_main, tmp_path / "runs" / "32-one", tmp_path / "runs" / "64-two") == 0

    assert len(rows) == 2
    assert "hetsim-compare: the runs differ in environment.batch_size: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_runs_error_does_not_tell_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither does the screen of a sweep, which a launcher may write to a file."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", f"/{SECRET}")
    typed = ("-m", "workload=mnist", "data_root=${oc.env:HETSIM_TEST_SECRET}", "budget.updates=2", f"hydra.sweep.dir={tmp_path}")

    assert exit_status(monkeypatch, "hetsim", main, *typed) == 1

    assert SECRET not in capsys.readouterr().err
    assert SECRET not in texts(tmp_path)
    assert "${oc.env:HETSIM_TEST_SECRET}/MNIST/raw" in texts(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_a_traceback_does_not_tell_a_value(
    sweep: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """hydra.verbose=true is typed to be sent to somebody."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", f"/{SECRET}\x1b[2J")
    folders = (f"hydra.sweep.dir={tmp_path / 'sweep'}", f"hydra.run.dir={tmp_path / 'run'}")

    assert (
        exit_status(
            monkeypatch, "hetsim", main, *sweep, "workload=mnist", "data_root=${oc.env:HETSIM_TEST_SECRET}", "hydra.verbose=true", *folders
        )
        == 1
    )

    told = capsys.readouterr().err
    assert "Traceback" in told
    assert SECRET not in told
    assert "\x1b" not in told


OWN = """
from dataclasses import dataclass
from hetsim.policies.allocation import Even

@dataclass(frozen=True, kw_only=True)
class Broken(Even):
    server: str = ""
    def observe(self, *arguments): raise RuntimeError(f"{self.server} does not answer")
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """An allocation of the user's own that fails with a text that a config chose, and that variable."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    (tmp_path / "brokenown.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    chosen = "allocation={_target_: brokenown.Broken, server: '${oc.env:HETSIM_TEST_SECRET}'}"
    return ("workload=quadratic", "method=ssgd", f"+{chosen}", "budget.epochs=1", "pictures=false")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "dist"])
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_an_unexpected_error_does_not_tell_a_value(
    sweep: tuple[str, ...], backend: str, broken: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its traceback, which may come from a rank of a real run, is shown without it."""
    folders = (f"hydra.sweep.dir={tmp_path / 'sweep'}", f"hydra.run.dir={tmp_path / 'run'}")

    assert exit_status(monkeypatch, "hetsim", main, *sweep, *broken, "trust=[brokenown]", f"backend={backend}", *folders) == 1

    told = capfd.readouterr().err
    assert "does not answer" in told
    assert SECRET not in told
    assert SECRET not in texts(tmp_path / "sweep")
    assert bool(list((tmp_path / "sweep").rglob("error.txt"))) is bool(sweep)
    assert ("Traceback" in told) is (backend == "dist" or not sweep)
    assert not any((tmp_path / "run").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_search_does_not_show_a_value_in_an_unexpected_error(processes: int, broken: tuple[str, ...], tmp_path: Path) -> None:
    """Of any of its trials."""
    searched = ("learning_rate=interval(0.01,0.1)", "seed=0")
    with pytest.raises(RunFailed, match=r"does not answer|no trial") as failed:
        hetsim.search(
            *broken, *searched, objective="seconds", folder=tmp_path / "search", trials=2, processes=processes, trust=["brokenown"]
        )

    assert SECRET not in "".join(traceback.format_exception(failed.value))
    assert SECRET not in texts(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "dist"])
def test_a_notebook_does_not_show_a_value_in_an_unexpected_error(backend: str, broken: tuple[str, ...], tmp_path: Path) -> None:
    """Of the user's own module, or of hetsim."""
    with pytest.raises(RunFailed, match="does not answer") as failed:
        hetsim.run(*broken, f"backend={backend}", trust=["brokenown"], folder=tmp_path / "run")

    assert SECRET not in "".join(traceback.format_exception(failed.value))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("workload=mnist", "data_root=${oc.env:HETSIM_TEST_SECRET}"), (*QUICK, "+optimizer.weight_decay=${oc.env:HETSIM_TEST_SECRET}")],
)
def test_a_notebook_does_not_show_a_value(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it shows, with the errors below."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)

    with pytest.raises((ValueError, RunFailed)) as failed:
        hetsim.run(*words, folder=tmp_path / "run")

    assert "${oc.env:HETSIM_TEST_SECRET}" in str(failed.value)
    assert SECRET not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("postgres://user:correct-horse@host/db", "needs postgres:/user:correct-horse@host/db/raw"),
        ("correct-horse-" * 50, "not " + ("correct-horse-" * 50)[:200]),
        ('["correct-horse", "battery1"]', "refuses {'hidden': ['correct-horse', 'battery1']}"),
        ("correct-horse\nbattery9\nstaple", "needs correct-horse battery9 staple/MNIST"),
        ("a correct-horse  and battery", "needs a correct-horse and battery/MNIST"),
        ("correct-horse-battery", f"batch_size must be whole, not '{'x' * 190}correct-h …"),
        ("correct\nhorse\\battery'staple", 'not "correct\\nhorse\\\\battery\'staple"'),
        ("corp\\alice\\battery", "not 'corp\\\\alice\\\\battery'"),
        ("battery1.internal_database.example_org", "if battery1 is a module of your own, add 'trust=[battery1]'"),
        ("https://bob:pa!ss#battery@host.example.org/v1/sets", "wrong password pa!ss#battery"),
        ("https://alice9:horse@host@data.example.org/v1/sets", "cannot reach alice9"),
        ("https://someone:battery1@data.example.org/v1/sets", "wrong password battery1"),
        ("server=data.example.org;password=correct-horse;timeout=30", "wrong password correct-horse"),
    ],
)
def test_a_sentence_shows_no_large_part_of_a_value(value: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be cut, quoted or taken for a path."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", value)

    told = hidden(said, OmegaConf.create({"data_root": "${oc.env:HETSIM_TEST_SECRET}"}))

    assert "${oc.env:HETSIM_TEST_SECRET}" in told
    assert not any(part in told for part in ("correct-horse", "horse@host", "battery", "alice"))


def test_a_sentence_that_quotes_megabytes_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a value is looked for in takes a time that grows with both; a value across the cut is found, too."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", "correct-horse-battery")
    config = OmegaConf.create({"data_root": "${oc.env:HETSIM_TEST_SECRET}"})

    for said in ("x" * 4_000_000, "correct-horse-battery" * 200_000, "x" * (LONGEST - 8) + "correct-horse-battery"):
        told = hidden(said, config)
        assert len(told) < 3 * LONGEST
        assert "correct" not in told


def test_no_folder_of_a_download_has_a_value_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless one types where it goes."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text("# @package _global_\ndata_root: shared-${oc.env:HETSIM_TEST_SECRET}\n")

    words = ("workload=mnist", "download=true", "--config-dir", tmp_path, "experiment=nice", "hydra.run.dir=run")
    assert exit_status(monkeypatch, "hetsim", main, *words) == 1
    assert "data_root comes from an environment variable by a config file, and download=true would show it" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if SECRET in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("typed", [(), ("-m",)])
def test_no_value_of_the_environment_is_merged_into_the_config(
    typed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reference at which a mapping stands is resolved when another file adds to the mapping."""
    parts = "nodes: [{count: 2, seconds_per_sample: 1e-4, overhead_seconds: 0}], network: {latency_seconds: 0, bytes_per_second: 1e9}"
    monkeypatch.setenv("HETSIM_TEST_SECRET", f"{{name: {SECRET}, {parts}, server: {{seconds_per_update: 0}}}}")
    for name, text in {
        "stage/one": "cluster: ${oc.decode:${oc.env:HETSIM_TEST_SECRET}}",
        "experiment/nice": "defaults: [/stage/one, _self_]\ncluster: {server: {seconds_per_update: 0}}",
    }.items():
        (tmp_path / "theirs" / name).parent.mkdir(parents=True)
        (tmp_path / "theirs" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    where = (f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed, "--config-dir", tmp_path / "theirs", "experiment=nice", *where) == 1

    assert "cluster.name is missing" in capsys.readouterr().err
    assert SECRET not in texts(tmp_path)


@pytest.mark.parametrize(
    "typed", [("workload=mnist", "data_root=${oc.env:HETSIM_TEST_SECRET}"), ("-m", "trace=${oc.env:HETSIM_TEST_SECRET}")]
)
def test_torchruns_report_shows_no_value(
    typed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a file."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", f"/{SECRET}")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    where = (f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}")

    assert exit_status(monkeypatch, "hetsim", main, *typed, *where) == 1

    assert "${oc.env:HETSIM_TEST_SECRET}" in (tmp_path / "error.json").read_text()
    assert SECRET not in (tmp_path / "error.json").read_text() + capsys.readouterr().err


def test_a_name_of_a_folder_within_a_config_hides_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is resolved while what the config reads is recorded, or refused."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    config = OmegaConf.create({"folder": "${hetsim.name:seed}", "seed": 0, "objective": "${oc.env:HETSIM_TEST_SECRET}"})

    assert hidden(SECRET, config) == "${oc.env:HETSIM_TEST_SECRET}"
    with without_variables():
        assert config.folder == "0"
        with pytest.raises(InterpolationResolutionError, match="cannot say what a config is made of"):
            _ = config.objective
    assert config.objective == SECRET


def test_a_value_that_names_a_folder_is_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is needed before a run begins, and OmegaConf's errors quote what cannot be read."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", f"[[1]{SECRET}")
    monkeypatch.chdir(tmp_path)

    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "nice.yaml").write_text("# @package _global_\nmethod: ${oc.decode:${oc.env:HETSIM_TEST_SECRET}}\n")

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, "--config-dir", tmp_path, "experiment=nice") == 1

    error = capsys.readouterr().err
    assert SECRET not in error
    assert "method names a folder, and must not come from an environment variable" in error


@pytest.mark.parametrize("key", ["method", "cluster.name", "cluster"])
def test_a_name_that_files_show_cannot_come_from_the_environment(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, tables and pictures are named by it."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", SECRET)
    config = OmegaConf.create({"method": "asgd", "cluster": {"name": "mine"}})
    OmegaConf.update(config, key, "${oc.env:HETSIM_TEST_SECRET}")

    with pytest.raises(ValueError, match=f"{key}[.a-z]* must not come from an environment variable, as folders and files show it"):
        without_values(config)


def test_only_what_depends_on_the_environment_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through other keys, in lists, decoded, and with a default."""
    monkeypatch.setenv("HETSIM_TEST_NUMBER", "3")
    config = OmegaConf.create(
        {
            "plain": 1,
            "same": "${plain}",
            "number": "${oc.decode:${oc.env:HETSIM_TEST_NUMBER}}",
            "through": ["${number}", "${plain}", {"deep": "x${number}"}],
            "default": "${oc.env:HETSIM_TEST_NOTHING,5}",
            "whole": "${through}",
        }
    )

    written, hashes = without_values(config)

    assert written == {
        "plain": 1,
        "same": 1,
        "number": "${oc.decode:${oc.env:HETSIM_TEST_NUMBER}}",
        "through": ["${number}", 1, {"deep": "x${number}"}],
        "default": "${oc.env:HETSIM_TEST_NOTHING,5}",
        "whole": "${through}",
    }
    assert list(hashes) == ["number", "through[0]", "through[2].deep", "default", "whole"]
    assert OmegaConf.to_container(OmegaConf.create(written), resolve=True) == OmegaConf.to_container(config, resolve=True)
    assert hidden("3 and", config) == "3 and"


def test_no_warning_of_omegaconf_tells_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """It quotes a list in which an element is empty."""
    monkeypatch.setenv("HETSIM_TEST_SECRET", "[correct-horse,battery,]")
    code = "import hetsim.config.guard.environment\nfrom omegaconf import OmegaConf\n"
    code += "print(len(OmegaConf.create({'a': '${oc.decode:${oc.env:HETSIM_TEST_SECRET}}'}).a))"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert (ended.stdout, ended.stderr) == ("3\n", "")
