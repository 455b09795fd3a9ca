"""A finished run is never replaced in silence: each command, told to write where one is, leaves each of its files as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import exit_status

import hetsim
from hetsim.cli.advise import main as advise
from hetsim.cli.calibrate import main as calibrate
from hetsim.cli.compare import main as compare
from hetsim.cli.main import main
from hetsim.cli.report import main as report
from hetsim.cli.search import main as search
from hetsim.cli.stragglers import main as stragglers
from hetsim.cli.table import main as table
from hetsim.errors import RunFailed

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "budget.epochs=null", "budget.updates=60", "pictures=false")
OTHER, SWEEP = (*QUICK, "method=asgd"), ("-m", *QUICK, "method=asgd", "seed=4,5")
REPLACES, HOLDS = "would replace a file that is no earlier output", "holds another finished run"
FILES = ("summary.json", "config.yaml", "curve.csv", "trace.parquet")
CALLS: dict[str, tuple[Callable[[], object], tuple[str, ...], str]] = {
    # what writes: its words, and what is said; nothing where it writes elsewhere in the folder
    "hetsim": (main, (*OTHER, "hydra.run.dir=run"), HOLDS),
    "hetsim by another path": (main, (*OTHER, "hydra.run.dir=./run/../run"), HOLDS),
    "hetsim -m": (main, (*SWEEP, "hydra.sweep.dir=.", "hydra.sweep.subdir=run"), HOLDS),
    "hetsim -m into the run": (main, (*SWEEP, "hydra.sweep.dir=run"), ""),
    "hetsim -m, joblib": (main, (*SWEEP, "hydra.sweep.dir=.", "hydra.sweep.subdir=run", "hydra/launcher=joblib"), HOLDS),
    "hetsim, real": (main, ("backend=dist", "workload=quadratic", "method=ssgd", "budget.epochs=1", "hydra.run.dir=run"), HOLDS),
    "hetsim-advise --folder": (advise, ("workload=phantom", "timing", "method=ssgd", "--processes=1", "--folder=run"), ""),
    "hetsim-advise --html": (advise, ("workload=phantom", "timing", "--html=run/summary.json"), "must end in .html"),
    "hetsim-calibrate": (calibrate, ("run/config.yaml", "cluster=uniform4", "--seconds=0.1"), REPLACES),
    "hetsim-calibrate --compose": (calibrate, ("run/config.yaml", "--compose", "a.yaml"), REPLACES),
    "hetsim-calibrate --from-trace": (calibrate, ("run/config.yaml", "--from-trace=run"), REPLACES),
    "hetsim-calibrate --rows": (calibrate, ("a.yaml", "--rows=run/config.yaml", "--gpu=mine"), "FILE a.yaml: No such file"),
    "hetsim-compare --json": (compare, ("run", "run", "--json=run/summary.json"), REPLACES),
    "hetsim-compare --pictures": (compare, ("run", "run", "--pictures=run"), ""),
    "hetsim-report --html": (report, ("run", "--html=run/curve.csv"), "must end in .html"),
    "hetsim-report --perfetto": (report, ("run", "--perfetto=run/trace.parquet"), "must end in .pftrace"),
    "hetsim-search": (search, (*QUICK, "method=ssgd,asgd", "--objective=seconds", "--trials=1", "--folder=run"), ""),
    "hetsim-stragglers --json": (stragglers, ("run", "--no-replay", "--json=run/config.yaml"), REPLACES),
    "hetsim-stragglers --picture": (stragglers, ("run", "--no-replay", "--picture=run/trace.parquet"), "must end in .png"),
    "hetsim-table --to": (table, ("run", "--to=run"), ""),
    "hetsim.run": (lambda: hetsim.run(*OTHER, folder="run"), (), HOLDS),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("call", CALLS)
def test_no_command_replaces_a_file_of_a_finished_run(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hetsim.run(*QUICK, method="ssgd", folder="run")
    before = [Path("run", name).read_bytes() for name in FILES]
    called, words, said = CALLS[call]

    if words:
        status = exit_status(monkeypatch, call.partition(" ")[0].rstrip(","), called, *words)
        assert said in capsys.readouterr().err
        assert status == bool(said)
    else:
        with pytest.raises((ValueError, RunFailed), match=said):
            called()
    assert [Path("run", name).read_bytes() for name in FILES] == before
