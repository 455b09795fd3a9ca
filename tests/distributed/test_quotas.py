"""Workers that get a share of a core: the files that are written, what is refused, and that no cgroup is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from quotas import refused, with_quotas
from running import family, hetsim, oldest_first, started, wait_for
from worlds import cluster, experiment, node

from hetsim.distributed import Processes
from hetsim.distributed.environment import WATCH, Settings
from hetsim.distributed.launch.call import Call
from hetsim.distributed.launch.host import host_processes
from hetsim.distributed.pacing.cpu_quota import (
    PREFIX,
    CgroupCap,
    CpuCap,
    CpuCgroupV1,
    CpuCgroupV2,
    cap_of,
    check_quotas,
    own_cgroup,
    quota_warnings,
    remove_leftovers,
)

HERE = str(threading.get_native_id())
MINE = f"{PREFIX}{os.getpid()}"
V1 = (
    "4:cpu,cpuacct:/box/inner\n1:name=systemd:/\n0::/box\n",
    "30 25 0:26 /box /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct",
)
V2 = ("0::/inner\n", "40 25 0:27 / /sys/fs/cgroup\\040two rw - cgroup2 cgroup2 rw,nsdelegate")
INNER = {V1: "sys/fs/cgroup/cpu/inner", V2: "sys/fs/cgroup two/inner"}


def fake(root: Path, version: tuple[str, str]) -> Path:
    """A system with this membership and mount; the folder of the process's cgroup."""
    memberships, mount = version
    for name, text in (("thread-self/cgroup", memberships), ("self/mountinfo", f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{mount}\n")):
        (root / "proc" / name).parent.mkdir(parents=True)
        (root / "proc" / name).write_text(text)
    inner = root / INNER[version]
    inner.mkdir(parents=True)
    return inner


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removing a cgroup's folder takes its files with it, which a fake one's has too."""
    rmdir = Path.rmdir
    monkeypatch.setattr(Path, "rmdir", lambda path: shutil.rmtree(path) if tmp_path in path.parents else rmdir(path))


def contents(folder: Path) -> dict[str, str]:
    """The files in a folder."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("version", "threads", "group", "above", "stat"),
    [
        (V1, "tasks", {"cpu.cfs_period_us": "5000", "cpu.cfs_quota_us": "1500"}, {}, "throttled_time 2500000000"),
        (
            V2,
            "cgroup.threads",
            {"cgroup.type": "threaded", "cpu.max": "1500 5000"},
            {"cgroup.subtree_control": "+cpu"},
            "throttled_usec 2500000",
        ),
    ],
    ids=["v1", "v2"],
)
def test_a_capped_thread_is_in_a_group_of_its_own(
    version: tuple[str, str], threads: str, group: dict[str, str], above: dict[str, str], stat: str, tmp_path: Path
) -> None:
    """Below the one where it was, named after the process; outside while the cap is lifted, and for good after the block."""
    inner = fake(tmp_path, version)

    with CgroupCap(0.3, tmp_path) as cap:
        assert cap.group == inner / MINE
        assert contents(cap.group) == {**group, threads: HERE}
        assert contents(inner) == above
        with cap.lifted():
            assert contents(inner) == {**above, threads: HERE}
        (inner / threads).unlink()
        (cap.group / "cpu.stat").write_text(f"nr_periods 40\nnr_throttled 30\n{stat}\nnr_bursts 0\n")

    assert contents(inner) == {**above, threads: HERE}
    assert not cap.group.exists()
    done = {"num_periods": 40, "num_throttled": 30, "throttled_seconds": 2.5}
    assert cap.report == {"cpu_quota": 0.3, "period_seconds": 0.005, **done}


@pytest.mark.parametrize(("share", "files"), [(1.0, ("5000", "5000")), (0.1, ("1000", "10000")), (0.001, ("1000", "1000000"))])
def test_a_small_share_has_a_longer_period(share: float, files: tuple[str, str], tmp_path: Path) -> None:
    """Linux grants at least a millisecond in a period."""
    fake(tmp_path, V1)

    with CgroupCap(share, tmp_path) as cap:
        assert tuple((cap.group / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")) == files


def test_the_cgroup_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    """A container's mount begins at the container's own cgroup; a controller that version 1 has is not version 2's."""
    one, two = fake(tmp_path / "one", V1), fake(tmp_path / "two", V2)

    assert own_cgroup(tmp_path / "one") == CpuCgroupV1(one)
    assert own_cgroup(tmp_path / "two") == CpuCgroupV2(two)


@pytest.mark.parametrize("memberships", ["4:cpu:/other\n0::/\n", "4:cpu:/box/../..\n", "4:memory:/\n0::/\n", "4:memory:/\n", ""])
def test_a_cgroup_that_is_not_mounted_is_none(memberships: str, tmp_path: Path) -> None:
    """Nothing is written anywhere else."""
    fake(tmp_path, V1)
    (tmp_path / "proc/thread-self/cgroup").write_text(memberships)

    with pytest.raises(OSError, match=r"^the CPU controller's cgroup of this process is not mounted$"):
        own_cgroup(tmp_path)


def test_what_cannot_be_capped_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is removed where its thread may not enter."""
    inner = fake(tmp_path, V1)
    monkeypatch.setattr(CpuCgroupV1, "enter", lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted", "tasks")))

    with pytest.raises(PermissionError), CgroupCap(0.5, tmp_path):
        pytest.fail("it did enter")

    assert list(inner.iterdir()) == []


def test_groups_of_dead_runs_are_removed(tmp_path: Path) -> None:
    """By the process id in their names; those of the living, and what has another name, stay."""
    inner = fake(tmp_path, V2)
    for name in ("7", "8", "9", "9b"):
        (inner / f"{PREFIX}{name}").mkdir()
    (inner / "else").mkdir()
    for process, state in (("8", "S"), ("9", "Z")):
        (tmp_path / "proc" / process).mkdir()
        (tmp_path / "proc" / process / "stat").write_text(f"{process} (a) b) {state} 1 1")

    remove_leftovers(tmp_path)

    assert sorted(path.name for path in inner.iterdir()) == ["else", "hetsim-8", "hetsim-9b"]


def test_each_worker_has_the_cap_of_its_node() -> None:
    """A node without a quota has none, nor has the server, nor anybody if quotas are not emulated."""
    made, quota = with_quotas(0.5, None), Settings(interface="lo", emulate="quota")

    caps = [cap_of(made, quota, rank) for rank in range(3)]

    assert [type(cap) for cap in caps] == [CgroupCap, CpuCap, CpuCap]
    assert isinstance(caps[0], CgroupCap)
    assert caps[0].share == 0.5
    assert type(cap_of(made, Settings(interface="lo", emulate="pad"), 0)) is CpuCap


def test_what_cannot_be_emulated_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts, with what to do."""
    with pytest.raises(
        ValueError, match=r"^backend\.emulate=quota caps nodes that have a cpu_quota, and cluster=by hand has none: give a row"
    ):
        check_quotas(with_quotas(None, None), tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(
        ValueError, match=r"^threads=2 does not go with backend\.emulate=quota: a cpu_quota is a share of one core; set threads=1$"
    ):
        check_quotas(with_quotas(0.5, threads=2), tmp_path)
    with pytest.raises(
        ValueError, match=r"cannot make one \(this system has no cgroups, which Linux has\): run it as root, with cgroup v2 by"
    ):
        check_quotas(with_quotas(0.5), tmp_path)
    inner = fake(tmp_path, V1)
    inner.rmdir()
    inner.write_text("a file")
    with pytest.raises(ValueError, match=rf"cannot make one \({inner / MINE}: Not a directory\): .* or take backend\.emulate=pad$"):
        check_quotas(with_quotas(0.5), tmp_path)


def test_a_cap_is_tried_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the largest share, and it leaves nothing; only if it is asked for."""
    inner, tried = fake(tmp_path, V1), []
    create = CpuCgroupV1.create
    monkeypatch.setattr(CpuCgroupV1, "create", lambda self, group, **keys: (tried.append(keys), create(self, group, **keys)))

    check_quotas(with_quotas(0.5, 0.25, None), tmp_path)
    Processes(emulate="pad").check(with_quotas(0.5))

    assert tried == [{"quota_us": 2500, "period_us": 5000}]
    assert contents(inner) == {"tasks": HERE}
    assert len(list(inner.iterdir())) == 1


def test_the_server_alone_may_have_a_quota(tmp_path: Path) -> None:
    """If the method has a server."""
    inner = fake(tmp_path, V1)
    capped = {**cluster(node(1e-5), node(1e-5)), "server": {"seconds_per_update": 0.0, "cpu_quota": 0.5}}

    check_quotas(experiment("method=asgd", cluster=capped), tmp_path)
    assert contents(inner) == {"tasks": HERE}
    with pytest.raises(ValueError, match=r"^backend\.emulate=quota caps nodes that have a cpu_quota"):
        check_quotas(experiment("method=ssgd", cluster=capped), tmp_path)


def test_quotas_that_were_not_kept_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shares than cores, a worker without a quota counting as one; or a cap that never held anybody."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    used, unused = ({"cpu_quota": 0.5, "num_throttled": count} for count in (3, 0))

    assert quota_warnings(with_quotas(0.5, 0.5, None), [used, used]) == []
    assert quota_warnings(with_quotas(0.5, 0.6, None), [used, used]) == [
        "the workers' shares add up to 2.1 cores, and this machine has 2: they may have had less than their cpu_quota"
    ]
    assert quota_warnings(with_quotas(0.5, 1.0), [unused, {**unused, "cpu_quota": 1.0}]) == [
        "1 of 2 capped workers never used up the quota of a period, and computed as fast as without: take larger batches"
    ]


# Real ones


@pytest.fixture
def permitted() -> None:
    """Skip the test where no cgroup can be made."""
    if (reason := refused()) is not None:
        pytest.skip(reason)


def groups() -> set[int]:
    """The processes that have a group below this one's cgroup."""
    return {int(path.name.removeprefix(PREFIX)) for path in own_cgroup().path.glob(f"{PREFIX}*")}


@pytest.mark.usefixtures("permitted")
def test_a_thread_and_those_that_it_starts_are_capped_together() -> None:
    """The kernel says so; other threads of the process are not, nor is one that is started while the cap is lifted."""

    def name_of(start: Any) -> str:
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(own_cgroup().path.name))
        with start:
            thread.start()
        thread.join()
        return found[0]

    outside = own_cgroup().path
    with CgroupCap(0.5) as cap:
        assert own_cgroup().path == outside / MINE
        assert name_of(CpuCap()) == MINE
        assert name_of(cap.lifted()) == outside.name
    assert own_cgroup().path == outside
    assert os.getpid() not in groups()
    cap.remove()


@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
def test_a_group_that_a_dead_process_left_is_removed_at_the_next_start() -> None:
    """Killed by -9, nobody could do it."""
    imports = "import os, signal\nfrom hetsim.distributed.pacing.cpu_quota import CgroupCap\n"
    script = imports + "CgroupCap(0.5).__enter__()\nos.kill(os.getpid(), signal.SIGKILL)"
    process = subprocess.Popen([sys.executable, "-c", script])
    process.wait()
    assert process.pid in groups()

    assert refused() is None

    assert process.pid not in groups()


FOLLOWS = """import sys, time
from hetsim.distributed.rank.cleanup import follow_launcher
from hetsim.distributed.pacing.cpu_quota import CgroupCap
follow_launcher()
CgroupCap(0.5).__enter__()
print("capped", flush=True)
time.sleep(60)"""


@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
def test_a_process_that_hetsim_launch_lets_go_leaves_no_group() -> None:
    """It lifts its cap itself, as nobody else does once hetsim-launch is killed."""
    read, write = os.pipe()
    variables = {**os.environ, WATCH: f"{os.getpid()}:{read}"}
    with subprocess.Popen([sys.executable, "-c", FOLLOWS], env=variables, pass_fds=[read], stdout=subprocess.PIPE) as process:
        os.close(read)
        assert process.stdout is not None
        assert process.stdout.readline() == b"capped\n"
        assert process.pid in groups()

        os.close(write)

    assert process.returncode == 1
    assert process.pid not in groups()


@pytest.mark.usefixtures("permitted")
def test_hetsim_launch_removes_the_groups_of_its_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could not do it."""
    monkeypatch.setattr(sys, "executable", "true")
    here = own_cgroup().path
    call = Call(nodes=1, node=0, processes=1, address="127.0.0.1", port=0, words=(), version="1.0")

    with host_processes(call, 0, 1, 29500, tmp_path) as ((only,), _):
        killed = here / f"{PREFIX}{only.process.pid}"
        killed.mkdir()

    assert not killed.exists()


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("method", ["ssgd", "asgd", "hetgrad"])
def test_workers_with_quotas_are_throttled_and_leave_nothing(method: str, tmp_path: Path) -> None:
    """Of unequal shares the smaller takes longer; late results are counted, nothing is held; the summary has the kernel's counts."""
    nodes = cluster(node(1e-9, cpu_quota=0.2), node(1e-9, cpu_quota=0.1))
    large = {"batch_size": 4096, "workload": {"model_options": {"hidden": [100]}}}
    made = experiment(f"method={method}", cluster=nodes, budget={"updates": 12}, **large)
    before = groups()
    backend = Processes(emulate="quota")
    backend.check(made)

    summary = backend.run(made, tmp_path, "")

    assert summary is not None
    emulation = summary["emulation"]
    assert emulation["emulate"] == "quota"
    assert set(emulation) - {"profile"} == {"emulate", "reduction", "library", "gradient", "update", "workers"}
    assert emulation["gradient"]["late"] == emulation["gradient"]["count"] >= 12
    assert [(worker["rank"], worker["cpu_quota"]) for worker in emulation["workers"]] == [(0, 0.2), (1, 0.1)]
    for worker in emulation["workers"]:
        assert 0 < worker["num_throttled"] <= worker["num_periods"]
        assert worker["throttled_seconds"] > 0
    assert not any("took longer than the cluster describes" in warning for warning in summary["warnings"])
    samples, seconds = zip(*((worker["samples"], worker["compute_seconds"]) for worker in summary["per_worker"]), strict=True)
    assert seconds[1] / samples[1] > 1.2 * seconds[0] / samples[0]
    assert groups() <= before


QUOTAS = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-5, overhead_seconds: 0, cpu_quota: 0.2}]"
QUICK = ("workload=quadratic", "budget.epochs=1000", "pictures=false", "trace=none")
CAPPED = ("-m", "hetsim", "backend=dist", "backend.emulate=quota", QUOTAS, *QUICK)


@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("end", ["kill", "interrupt", "terminate", "lose a worker"])
@pytest.mark.sampled(2)
def test_no_group_is_left_behind(end: str, tmp_path: Path) -> None:
    """Neither after Ctrl-C, nor when the command or a worker is killed."""
    command = hetsim(*CAPPED, folder=tmp_path)
    try:
        running = started(command, tmp_path)
        wait_for(lambda: len(groups() & set(family(command.pid))) == 2)
    except BaseException:
        command.kill()
        raise
    capped = groups() & set(running)

    if end == "interrupt":
        os.killpg(command.pid, signal.SIGINT)
    elif end == "lose a worker":
        os.kill(oldest_first(capped)[0], signal.SIGKILL)
        time.sleep(1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGINT)  # if the run had begun, it goes on with the other one
    else:
        command.send_signal({"terminate": signal.SIGTERM, "kill": signal.SIGKILL}[end])
    try:
        command.communicate(timeout=180)
    except BaseException:
        command.kill()
        raise

    wait_for(lambda: not family(command.pid))
    assert len(capped) == 2
    assert groups() & capped == set()


@pytest.mark.long
@pytest.mark.usefixtures("permitted")
def test_torchrun_caps_its_own_processes(tmp_path: Path) -> None:
    """The leader collects what each cap has done."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hetsim"]
    before = groups()

    ended = subprocess.run(
        [*command, *CAPPED[2:], "method=ssgd", "budget.epochs=2", f"hydra.run.dir={tmp_path}"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    emulation = json.loads((tmp_path / "summary.json").read_text())["emulation"]
    assert [(worker["rank"], worker["cpu_quota"]) for worker in emulation["workers"]] == [(0, 0.2), (1, 0.2)]
    assert groups() <= before
