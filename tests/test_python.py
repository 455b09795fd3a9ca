"""hetsim from Python: the same runs as the command's, what they left, and one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pages
import pytest
from matplotlib.figure import Figure
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.config.build import build_experiment
from hetsim.config.compose import composed
from hetsim.errors import RunFailed
from hetsim.sim import Simulation

pytestmark = pytest.mark.slow

QUICK = ("workload=quadratic", "budget.epochs=2", "pictures=false")
PAGE = pages.text("python.md")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    """Its code runs, block after block, and prints what stands below it."""
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", PAGE, flags=re.DOTALL)
    for code, printed in blocks:
        exec(code, names)
        told = capsys.readouterr().out
        assert told == printed or not printed
    assert sum(bool(printed) for _, printed in blocks) == 7


def test_a_run_is_the_commands_run(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files, identity included, and what it prints."""
    run = hetsim.run("method=asgd", *QUICK, folder="one")
    assert exit_status(monkeypatch, "hetsim", main, "method=asgd", *QUICK, "hydra.run.dir=two") == 0

    assert repr(run).replace("one", "two") + "\n" == capsys.readouterr().out
    assert {path.name for path in Path("one").iterdir()} == {path.name for path in Path("two").iterdir()}
    assert Path("one/config.yaml").read_text() == Path("two/config.yaml").read_text()
    assert run.summary == json.loads(Path("one/summary.json").read_text())
    assert run.config["method"] == "asgd"
    assert hetsim.load("two").curve().equals(run.curve())
    assert run.curve().column_names == ["seconds", "version", "samples", "train_loss", "test_accuracy"]
    assert run.trace().num_rows > run.summary["num_updates"]
    assert isinstance(run.timeline(), Figure)
    compared = hetsim.compare(run, "two")
    assert [row["relative_error"] for row in compared.rows] == [0.0] * 5 + [None]
    assert compared.different == {}
    assert here.samefile(".")


def test_a_simulation_needs_neither_hydra_nor_pytorch(here: Path) -> None:
    """The page's own example; and it writes no file."""
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "Simulation(" in code]
    code += "import sys\nprint([name for name in ('hydra', 'omegaconf', 'torch') if name in sys.modules])\n"

    ended = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)

    assert ended.stdout == "281\n417\n[]\n"
    assert list(here.iterdir()) == []


def test_a_simulation_has_the_numbers_of_the_command(here: Path) -> None:
    """Of the same experiment."""
    experiment, _ = build_experiment(composed(["method=ssp", *QUICK]).entries)
    numbers = Simulation(experiment).run()

    written = hetsim.run("method=ssp", *QUICK, folder=here / "one").summary
    assert {**numbers, "wall_seconds": 0.0} == {**written, "wall_seconds": 0.0}


def test_a_script_without_a_guard_may_start_processes(here: Path) -> None:
    """They do not run the script again."""
    Path("script.py").write_text(
        f"import hetsim\nrun = hetsim.run('method=ssgd', 'backend=dist', *{QUICK!r})\nprint('once', run.summary['backend'])\n"
    )

    ended = subprocess.run([sys.executable, "script.py"], cwd=here, capture_output=True, text=True, check=False, timeout=300)

    assert (ended.returncode, ended.stdout) == (0, "once dist\n"), ended.stderr


OWN = """
from dataclasses import dataclass
from hetsim.policies.weighting import Discount

@dataclass(frozen=True)
class Halved(Discount):
    def factor(self, staleness):
        return 0.5
"""


def test_ones_own_class_and_config(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By trust= and config_dir=, as on the command line; a folder's name may hold quotes."""
    (here / "my_discounts.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)
    folder = here / "it's\\ [a\\b], mine\\" / "discount"
    folder.mkdir(parents=True)
    (folder / "halved.yaml").write_text("_target_: my_discounts.Halved\n")

    run = hetsim.run("method=asgd", "discount=halved", *QUICK, trust=["my_discounts"], config_dir=folder.parent)

    assert run.config["discount"] == {"_target_": "my_discounts.Halved"}
    assert run.folder.parts[0] == "runs"
    with pytest.raises(ValueError, match=r"my_discounts.Halved is not allowed: .* add 'trust=\[my_discounts\]'"):
        hetsim.run("method=asgd", "discount=halved", *QUICK, config_dir=folder.parent)


BAD = {
    ("nothing=1",): "nothing is not a key of the config",
    ("allocation=fixd",): "allocation=fixd is not a choice: take ata, dbs,",
    ("batch_size=1",): "batch_size=1 is less than one sample for each of 4 workers: raise it",
    ("seed=1,2",): "seed",
    ("seed",): "seed cannot be read as key=value",
    ("trust=[os]", "discount._target_=os.system"): "discount._target_=os.system is no Discount",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence(words: tuple[str, ...], here: Path) -> None:
    """And nothing is left."""
    with pytest.raises(ValueError, match=re.escape(BAD[words])) as error:
        hetsim.run(*words)

    assert "\n" not in str(error.value)
    assert list(here.iterdir()) == []


def test_a_strangers_config_is_checked_here_too(here: Path) -> None:
    """It sets no key of Hydra's."""
    (here / "conf" / "experiment").mkdir(parents=True)
    (here / "conf" / "experiment" / "nice.yaml").write_text("# @package _global_\nhydra: {run: {dir: elsewhere}}\n")

    with pytest.raises(ValueError, match=r"nice.yaml sets hydra, which only the command line may set"):
        hetsim.run("experiment=nice", config_dir="conf")
    with pytest.raises(ValueError, match="config_dir=nowhere is not a folder"):
        hetsim.run(config_dir="nowhere")


def test_a_folder_without_a_run_is_one_sentence(here: Path) -> None:
    """Also a run without a trace."""
    with pytest.raises(ValueError, match="nowhere is not the folder of a finished run"):
        hetsim.load("nowhere")
    run = hetsim.run("method=ssgd", *QUICK, "trace=none", folder=here / "run")
    (here / "old").mkdir()
    (here / "old" / "summary.json").write_text(json.dumps({key: value for key, value in run.summary.items() if key != "emulation"}))
    with pytest.raises(ValueError, match="old is not a run of this version of hetsim: it lacks emulation"):
        hetsim.load("old")
    with pytest.raises(ValueError, match=r"trace.parquet is not a file"):
        run.trace()


TINY = {"workload": "phantom", "budget.epochs": None, "budget.updates": 4, "trace": "none", "pictures": False}


def test_a_sweep_is_the_commands_sweep(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Its folders and files, so that what one has run the other does not run again; it prints nothing."""
    varied = {**TINY, "method": ["ssgd", "asgd"], "cluster.name": "it's [mine]", "seed": range(2), "momentum": [0.5]}
    rows = hetsim.sweep(varied, folder=here / "one, two", grid={"asgd": {"learning_rate": [0.01, 0.02], "budget": {"seconds": [1e3]}}})
    assert capfd.readouterr() == ("", "")

    assert sorted((row.keys["method"], row.num_runs) for row in rows) == [("asgd", 2), ("asgd", 2), ("ssgd", 2)]
    runs = [hetsim.load(path.parent) for path in (here / "one, two").glob("*/summary.json")]
    assert {run.config["cluster"]["name"] for run in runs} == {varied["cluster.name"]}
    assert {run.config["learning_rate"] for run in runs if run.config["method"] == "asgd"} == {0.01, 0.02}
    typed = ("workload=phantom", "budget.epochs=null", "budget.updates=4", "trace=none", "pictures=false", "seed=0,1", "method=ssgd")
    own = ('cluster.name="it\'s [mine]"', "momentum=0.5", f"hydra.sweep.dir='{here}/one, two'")
    assert exit_status(monkeypatch, "hetsim", main, "-m", *typed, *own) == 0
    assert "2 runs (2 were there already)" in capfd.readouterr().out


def test_a_sweep_in_processes_lists_what_failed() -> None:
    """Once, at its end; it is an error if nothing succeeded."""
    with pytest.warns(
        UserWarning, match=r"^1 of 2 runs failed: ssgd-mixed4-s0-sim-\w+: batch_size=3 is less than one sample for each of 4"
    ) as told:
        (row,) = hetsim.sweep({**TINY, "method": "ssgd", "batch_size": [3, 64]}, folder="sweep", processes=2)

    assert len(told) == 1
    assert row.num_runs == 1
    with pytest.raises(RunFailed, match=r"all 2 runs failed, the first as ssgd-mixed4-s0-sim-.*: batch_size=1 is less than one sample"):
        hetsim.sweep({**TINY, "method": "ssgd", "batch_size": [1, 2]}, folder="sweep")
    with pytest.raises(RunFailed, match=r"^batch_size=1 is less than one sample"):
        hetsim.sweep({**TINY, "method": "ssgd", "batch_size": 1}, folder="sweep")


BAD_SWEEPS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "seed has no values: list some, or leave it out": ({"seed": []}, {}),
    "nothing is not a key of the config": ({"nothing": [1, 2]}, {}),
    "is not a value of a config: give a number": ({"seed": [object()]}, {}),
    "objective is not a key of the config: it is an option of hetsim-search": ({"objective": "x"}, {}),
    "processes must be at least 1, not 0": ({"seed": 1}, {"processes": 0}),
    "grid.sgd names no method": ({"seed": 1}, {"grid": {"sgd": {"seed": [1]}}}),
    "config_dir=nowhere is not a folder": ({"seed": 1}, {"config_dir": "nowhere"}),
}


@pytest.mark.parametrize("told", BAD_SWEEPS)
def test_what_is_no_sweep_is_one_sentence(told: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is run, and nothing is printed."""
    varied, options = BAD_SWEEPS[told]
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        hetsim.sweep(varied, folder="sweep", **options)  # type: ignore[arg-type]

    assert "\n" not in str(error.value)
    assert not list(here.rglob("summary.json"))
    assert capfd.readouterr() == ("", "")


def test_importing_hetsim_imports_little() -> None:
    """Neither PyTorch nor Hydra, until a run is asked for."""
    code = "import hetsim, sys\nhetsim.run\nassert not {'torch', 'hydra', 'matplotlib', 'pyarrow'} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hetsim.nothing


def test_threads_run_one_after_another(tmp_path: Path) -> None:
    """Each gets its own run, whatever the others do."""
    words = ("method=ssgd", "workload=phantom", "budget.epochs=null", "budget.updates=5", "pictures=false")

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda seed: hetsim.run(*words, f"seed={seed}", folder=tmp_path / str(seed)), range(8)))

    assert [run.summary["seed"] for run in runs] == [*range(8)]
