"""Sweeps, searches and advice on Ray: what they leave is what they leave on one machine, whatever becomes of the nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import family, wait_for
from worlds import exit_status

import hetsim
from hetsim.cli.main import main

INSTALLED = importlib.util.find_spec("ray") is not None
on_ray = [pytest.mark.long, pytest.mark.slow, pytest.mark.skipif(not INSTALLED, reason="Ray is not installed: pip install 'hetsim[ray]'")]
TINY = ("workload=phantom", "budget.epochs=null", "trace=none", "pictures=false")
RAY = ("hydra/launcher=ray", "hydra.sweep.dir=sweep")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Somebody else's cluster of two nodes with a CPU each; the command runs on the first."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    try:
        yield made
    finally:
        made.shutdown()


def command(module: str, *typed: str, folder: Path) -> subprocess.Popen[str]:
    """A command in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *typed],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, as it has succeeded."""
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, ""), out + err
    return out


def contents(folder: Path) -> dict[str, Any]:
    """All files of runs, but for the seconds that they took."""
    found: dict[str, Any] = {}
    for path in folder.glob("*/*"):
        text = path.read_text()
        found[path.relative_to(folder).as_posix()] = {**json.loads(text), "wall_seconds": 0} if path.name == "summary.json" else text
    return found


def summaries(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each finished run's summary is."""
    found = {}
    for path in folder.glob("*/summary.json"):
        found[path.parent.name] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


def workers() -> list[str]:
    """Ray's processes that hold a process of hetsim's, and these."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if text.startswith("ray::Seat") or "hetsim.pool.process" in text:
            found.append(text)
    return found


def test_ray_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)

    assert exit_status(monkeypatch, "hetsim", main, "-m", *TINY, *RAY) == 1
    assert capsys.readouterr().err == "hetsim: error: Ray is not installed: install hetsim[ray], as in pip install 'hetsim[ray]'\n"


def test_an_engine_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for ask in (
        lambda: hetsim.search("learning_rate=1,2", objective="seconds", folder=tmp_path, engine="cloud"),
        lambda: hetsim.advise("timing", engine="cloud"),
        lambda: hetsim.sweep({"seed": [0, 1]}, folder=tmp_path, engine="cloud"),
    ):
        with pytest.raises(ValueError, match=r"^engine must be local or ray, not cloud$"):
            ask()


class TestOnRay:
    pytestmark = on_ray

    def test_a_sweep_on_a_ray_of_its_own_is_a_sweep(self, tmp_path: Path) -> None:
        """The same files as by the basic launcher; a run that fails stops no other, and finished runs are skipped."""
        typed = ("-m", *TINY, "budget.updates=4", "method=ssgd,asgd", "batch_size=3,64")
        failing = []
        for launcher in (("hydra/launcher=basic", "hydra.sweep.dir=basic"), (*RAY, "hydra.launcher.n_jobs=2")):
            out, err = (process := command("hetsim", *typed, *launcher, folder=tmp_path)).communicate(timeout=300)
            assert process.returncode == 1, err
            failing.append((sorted(out.splitlines()[:-1]), sorted(err.splitlines())))
        before = summaries(tmp_path / "sweep")
        again = command("hetsim", *typed, "hydra.sweep.dir=sweep", "hydra/launcher=ray", folder=tmp_path).communicate(timeout=300)[0]

        assert failing[0] == failing[1]
        assert contents(tmp_path / "sweep") == contents(tmp_path / "basic")
        assert again.count(": is there already") == 2
        assert summaries(tmp_path / "sweep") == before
        assert not workers()

    def test_a_sweep_outlives_a_node(self, cluster: Any, tmp_path: Path) -> None:
        """What was under way there is made again, and nothing that had ended. The cluster stays."""
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        sweep = command("hetsim", "-m", *TINY, *RAY, "budget.updates=2000", "method=asgd", "seed=range(0,40)", folder=tmp_path)
        wait_for(lambda: len(summaries(tmp_path / "sweep")) >= 8 or sweep.poll() is not None)
        cluster.remove_node(node, allow_graceful=False)
        before = summaries(tmp_path / "sweep")
        out = ended(sweep)

        after = summaries(tmp_path / "sweep")
        assert len(before) < len(after) == 40
        assert {name: after[name] for name in before} == before
        assert sorted(line.partition(":")[0] for line in out.splitlines()[:-1]) == sorted(after)
        assert out.splitlines()[-1].startswith("40 runs")
        assert not list((tmp_path / "sweep").glob(".*"))
        wait_for(lambda: not workers())
        assert cluster.head_node.remaining_processes_alive()

    @pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root gives a process other folders")
    def test_results_come_back_from_a_node_without_the_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of sweeps and searches. To the node, the folder of the test is empty."""
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        hidden = f"mount -t tmpfs none {tmp_path} && exec ray start --address={made.address} --num-cpus=2 --block"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        node = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", hidden], env={**os.environ, "PATH": path}, cwd="/", start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        typed = ("-m", *TINY, "budget.updates=4", "method=ssgd,asgd", "batch_size=3,64")
        searched = (*TINY, "budget.updates=20", "batch_size=32,64", "--objective=samples_per_second", "--trials=3", "--sampler=random")
        try:
            made.wait_for_nodes()
            wait_for(lambda: _num_cpus() == 2)
            command("hetsim", *typed, *RAY, folder=tmp_path).communicate(timeout=300)
            out = ended(command("hetsim.cli.search", *searched, "--engine=ray", "--processes=1", "--folder=search", folder=tmp_path))
        finally:
            os.killpg(node.pid, signal.SIGTERM)
            made.shutdown()
            node.wait(60)
        command("hetsim", *typed, "hydra.sweep.dir=basic", folder=tmp_path).communicate(timeout=300)

        assert contents(tmp_path / "sweep") == contents(tmp_path / "basic")
        assert len(list((tmp_path / "sweep").glob("*/error.txt"))) == 2
        assert len(list((tmp_path / "search").glob("*/summary.json"))) == 2, out
        assert not list(tmp_path.glob("*/.hetsim-ray*"))

    def test_a_search_and_an_advice_are_those_of_one_machine(self, tmp_path: Path) -> None:
        """With one process on a Ray that a script has connected, which stays connected."""
        code = (
            "import hetsim, json, ray\n"
            "ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
            f"words = {TINY!r}\n"
            "asked = dict(objective='samples_per_second', trials=4, sampler='random', processes=1)\n"
            "found = [hetsim.search(*words, 'budget.updates=20', 'batch_size=int(interval(32,64))', folder=engine, engine=engine, **asked)"
            " for engine in ('local', 'ray')]\n"
            "advice = [hetsim.advise('workload=phantom', 'cluster=mixed4', 'method=ssgd,asgd', 'timing', engine=engine, processes=2)"
            " for engine in ('local', 'ray')]\n"
            "hetsim.sweep({'workload': 'phantom', 'budget.updates': 4, 'pictures': False, 'seed': [0, 1]}, engine='ray', folder='s')\n"
            "assert ray.is_initialized()\n"
            "print(json.dumps([[one.value for one in found], [one.data for one in advice]]))\n"
        )
        (tmp_path / "script.py").write_text(code)

        run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)

        assert run.returncode == 0, run.stderr
        values, advice = json.loads(run.stdout.splitlines()[-1])
        assert values[0] == values[1]
        assert advice[0] == advice[1]
        assert len(summaries(tmp_path / "s")) == 2
        assert {path.name for path in (tmp_path / "ray").glob("*-*")} == {path.name for path in (tmp_path / "local").glob("*-*")}

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupted_sweep_leaves_a_cluster_alone(self, cluster: Any, number: int, tmp_path: Path) -> None:
        """With none of its own processes, and nothing half-written."""
        sweep = command("hetsim", "-m", *TINY, *RAY, "budget.updates=1000000000", "method=asgd,dc_asgd", folder=tmp_path)
        wait_for(lambda: list(tmp_path.glob("sweep/*/.config.yaml.unfinished")) or sweep.poll() is not None)

        sweep.send_signal(number)
        _, err = sweep.communicate(timeout=30)

        assert sweep.returncode == 128 + number
        assert re.fullmatch(r"hetsim: (interrupted|ended by SIGTERM): add hydra.sweep.dir=sweep to resume\n", err)
        wait_for(lambda: not workers() and not family(sweep.pid), 10)
        assert not list(tmp_path.rglob(".*.unfinished"))
        assert cluster.head_node.remaining_processes_alive()


def _num_cpus() -> int:
    code = "import ray; ray.init(log_to_driver=False); print('CPUs', int(ray.cluster_resources().get('CPU', 0)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int((re.search(r"CPUs (\d+)", found.stdout) or ["", "0"])[1])
