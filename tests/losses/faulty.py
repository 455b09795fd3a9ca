"""Real runs in which processes are hurt: `Faults().kill(rank=2, at_update=50)` and the like, with all that was applied and computed.

A workload of hetsim's carries the faults into the processes; where it is loaded, it watches that process's world.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from multiprocessing import active_children, current_process
from pathlib import Path
from typing import Any

import torch
from running import wait_for
from worlds import tiles

from hetsim.checkpoints import saver
from hetsim.distributed import Processes
from hetsim.distributed.launch import participation
from hetsim.distributed.rank.regrouping import LAG
from hetsim.distributed.rank.world import ProcessWorld
from hetsim.effects import Batch, Contribution
from hetsim.errors import RunFailed
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.history import History
from hetsim.workloads.device import Device
from hetsim.workloads.quadratic import Quadratic
from hetsim.workloads.task import Task

LIMIT_SECONDS = 300
"""After which a run counts as one that hangs. The first one waits for what its processes import: on a busy machine 100 s were seen."""
PATIENCE = 0.5
"""Seconds that a gradient waits at most for what is to happen to the run before it ends: a fault, or a process that joins."""


def kill() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_save() -> None:
    """As the kernel does, when all of a checkpoint is written but its name."""
    kill()


def kill_in_commit() -> None:
    """The same, when the leader has recorded a version and has not told the others whether the run goes on."""
    kill()


def kill_at_end() -> None:
    """The same, when the leader's program has ended and the others' may have."""
    kill()


def kill_in_results() -> None:
    """The same, when a rank's program has ended and it is about to hand in what it has recorded."""
    kill()


ELSEWHERE = (kill_in_save, kill_in_commit, kill_at_end, kill_in_results)
"""Faults that do not happen at the beginning of a gradient."""


def stop() -> None:
    """As a host that is frozen."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_launcher() -> None:
    """As a host that goes down: this process ends with the one that started it, and does nothing until then."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def leave() -> None:
    """As a library that ends the process as if all were well."""
    os._exit(0)


def fail() -> None:
    """As a gradient that is not finite."""
    raise RunFailed("this gradient failed")


def segfault() -> None:
    """As a faulty extension."""
    ctypes.string_at(0)


def hold_gil() -> None:
    """As an extension that computes without letting go of the interpreter."""
    ctypes.PyDLL(None).sleep(1000)


def terminate() -> None:
    """As a scheduler that preempts a run which is saved."""
    os.kill(os.getpid(), signal.SIGTERM)


def drop_link() -> None:
    """As a network that loses one of the connections to another rank; those to the launcher's store are to its port alone."""
    for connections in _connected():
        connections[0].shutdown(socket.SHUT_RDWR)
        return


def drop_links() -> None:
    """As a network that loses all of them."""
    for connections in _connected():
        for each in connections:
            with contextlib.suppress(OSError):  # it is broken already
                each.shutdown(socket.SHUT_RDWR)


def _connected() -> list[list[socket.socket]]:
    connected: dict[int, list[socket.socket]] = {}
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            each = socket.socket(fileno=os.dup(int(name)))
            if each.family in (socket.AF_INET, socket.AF_INET6):
                connected.setdefault(each.getpeername()[1], []).append(each)
    store = max(connected, key=lambda port: len(connected[port]))
    return [connections for port, connections in connected.items() if port != store]


@dataclass(frozen=True)
class Fault:
    """What happens to a rank when it begins a gradient at this version or a later one, for the first time, or at another of its moments."""

    what: Callable[[], None]
    rank: int
    at_update: int
    after_return_of: int | None = None
    """It waits then for another process of this rank, and `at_update` versions more from when that one computes."""
    after_loss_of: int | None = None
    """It waits then until this rank's process has ended."""


@dataclass(frozen=True)
class Faults:
    """Those of a run, one after another."""

    of: tuple[Fault, ...] = ()

    def kill(self, *, rank: int, at_update: int, after_return_of: int | None = None) -> Faults:
        """The rank's process ends by SIGKILL."""
        return Faults((*self.of, Fault(kill, rank, at_update, after_return_of)))

    def kill_in_save(self, *, rank: int, at_update: int) -> Faults:
        """The same, while it writes a checkpoint."""
        return self._and(kill_in_save, rank, at_update)

    def kill_in_commit(self, *, rank: int, at_update: int) -> Faults:
        """The same, while it commits as the leader."""
        return self._and(kill_in_commit, rank, at_update)

    def kill_at_end(self, *, rank: int) -> Faults:
        """The same, when its program has ended as the leader's."""
        return self._and(kill_at_end, rank, 0)

    def kill_in_results(self, *, rank: int) -> Faults:
        """The same, when its program has ended as another's than the leader's."""
        return self._and(kill_in_results, rank, 0)

    def stop(self, *, rank: int, at_update: int) -> Faults:
        """It is stopped, and nothing is raised anywhere."""
        return self._and(stop, rank, at_update)

    def segfault(self, *, rank: int, at_update: int) -> Faults:
        """It ends by SIGSEGV."""
        return self._and(segfault, rank, at_update)

    def kill_launcher(self, *, rank: int, at_update: int) -> Faults:
        """The process that started it ends by SIGKILL."""
        return self._and(kill_launcher, rank, at_update)

    def leave(self, *, rank: int, at_update: int) -> Faults:
        """It ends with status 0."""
        return self._and(leave, rank, at_update)

    def fail(self, *, rank: int, at_update: int) -> Faults:
        """It reports an error."""
        return self._and(fail, rank, at_update)

    def hold_gil(self, *, rank: int, at_update: int) -> Faults:
        """None of its threads runs Python any more."""
        return self._and(hold_gil, rank, at_update)

    def drop_link(self, *, rank: int, at_update: int) -> Faults:
        """It loses one of its connections."""
        return self._and(drop_link, rank, at_update)

    def drop_links(self, *, rank: int, at_update: int) -> Faults:
        """It loses all of its connections."""
        return self._and(drop_links, rank, at_update)

    def terminate(self, *, rank: int, at_update: int, after_loss_of: int | None = None) -> Faults:
        """It gets SIGTERM, and passes it on to the leader of the run."""
        return Faults((*self.of, Fault(terminate, rank, at_update, after_loss_of=after_loss_of)))

    def _and(self, what: Callable[[], None], rank: int, at_update: int) -> Faults:
        return Faults((*self.of, Fault(what, rank, at_update)))


@dataclass(frozen=True, kw_only=True)
class Faulty(Quadratic):
    """A quadratic in whose processes these faults happen, and that writes into a folder what each computes and the leader applies."""

    faults: Faults
    folder: Path
    num_processes: int = 0
    """That are to compute in the run; gradients take longer until they do."""

    def load(self, *, seed: int, dtype: str, device: Device) -> Task:
        task = super().load(seed=seed, dtype=dtype, device=device)
        if current_process().name.startswith("hetsim rank"):
            self.watch(int(current_process().name.rsplit(" ", 1)[1]))
        return task

    def lacks(self, faults: list[str]) -> bool:
        """Whether one of these has not happened, or a process has not computed yet."""
        if faults and not {*faults} <= {*(self.folder / "happened").read_text().splitlines()}:
            return True
        return bool(self.num_processes) and sum(path.stat().st_size > 0 for path in self.folder.glob("computed-*")) < self.num_processes

    def watch(self, rank: int) -> None:
        """Let the world of this process, which is one of a run, hurt itself and tell."""
        pending = [fault for fault in self.faults.of if fault.rank == rank and fault.what not in ELSEWHERE]
        others = {
            f"{fault.what.__name__} {fault.rank}": fault
            for fault in self.faults.of
            if fault.rank != rank and fault.what not in ELSEWHERE and fault.after_return_of is None and fault.after_loss_of is None
        }
        elsewhere = {fault.what: fault for fault in self.faults.of if fault.rank == rank and fault.what in ELSEWHERE}
        commit, write, discarded = History.commit, saver.write, History.record_discarded
        send_results = participation.send_results
        computed = open(self.folder / f"computed-{rank}-{os.getpid()}", "a", buffering=1)  # noqa: SIM115
        applied = open(self.folder / "applied", "a", buffering=1)  # noqa: SIM115
        happened = open(self.folder / "happened", "a", buffering=1)  # noqa: SIM115

        def wait_for_others(version: int) -> None:
            """A rank that gets no processor must not miss its fault, or its return, as the others have ended the run."""
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and self.lacks([name for name, fault in others.items() if version > fault.at_update]):
                time.sleep(0.01)

        def hurt(answer: Callable[..., Any]) -> Callable[..., Any]:
            def hurt_gradient(world: ProcessWorld, state: Any, effect: Any, turn: Any) -> Any:
                if pending and effect.version >= pending[0].at_update and self._has_returned(pending, effect.version):
                    fault = pending.pop(0)
                    print(f"{fault.what.__name__} {rank}", file=happened)
                    fault.what()
                print(json.dumps([rank, effect.batch.start, effect.batch.samples]), file=computed)
                wait_for_others(effect.version)
                return answer(world, state, effect, turn)

            return hurt_gradient

        def hurt_write(path: Path, *, config: str, checkpoint: Checkpoint) -> None:
            if kill_in_save in elsewhere and checkpoint.state.version >= elsewhere[kill_in_save].at_update:
                print(f"kill_in_save {rank}", file=happened)
                os.fsync = lambda _: kill_in_save()
            write(path, config=config, checkpoint=checkpoint)

        def hurt_end(history: History, state: Any) -> None:
            if kill_at_end in elsewhere:
                print(f"kill_at_end {rank}", file=happened)
                kill_at_end()
            discarded(history, state)

        def hurt_results(*about: Any) -> None:
            if kill_in_results in elsewhere:
                print(f"kill_in_results {rank}", file=happened)
                kill_in_results()
            send_results(*about)

        def told_commit(history: History, seconds: float, leader: int, state: Any, group: Any) -> bool:
            contributions = [(c.rank, c.batch.start, c.batch.samples, c.version) for c in group]
            going = commit(history, seconds, leader, state, group)
            if leader != rank:  # this one does not lead, and keeps a copy
                return going
            small = isinstance(state.weights, torch.Tensor) and state.weights.numel() < 1000
            weights = state.weights.tolist() if small else None
            print(json.dumps([state.version, contributions, weights, leader]), file=applied)
            if kill_in_commit in elsewhere and state.version >= elsewhere[kill_in_commit].at_update:
                print(f"kill_in_commit {rank}", file=happened)
                kill_in_commit()
            return going

        saver.write, History.record_discarded = hurt_write, hurt_end  # type: ignore[method-assign]
        participation.send_results = hurt_results
        ProcessWorld.gradient = hurt(ProcessWorld.gradient)  # type: ignore[method-assign]
        ProcessWorld.gradient_sum = hurt(ProcessWorld.gradient_sum)  # type: ignore[method-assign]
        ProcessWorld.attempt = hurt(ProcessWorld.attempt)  # type: ignore[method-assign]
        History.commit = told_commit  # type: ignore[method-assign]

    def _has_returned(self, pending: list[Fault], version: int) -> bool:
        """Whether the next fault has nobody to wait for. When that rank computes again, the fault is put off by its number of versions."""
        if (lost := pending[0].after_loss_of) is not None:
            wait_for(lambda: not any(_lives(int(path.name.rsplit("-", 1)[1])) for path in self.folder.glob(f"computed-{lost}-*")))
        other = pending[0].after_return_of
        if other is None:
            return True
        wait_for(lambda: len(list(self.folder.glob(f"computed-{other}-*"))) > 1, LIMIT_SECONDS)  # its new process has been started
        if sum(path.stat().st_size > 0 for path in self.folder.glob(f"computed-{other}-*")) > 1:
            pending[0] = replace(pending[0], at_update=version + pending[0].at_update, after_return_of=None)
        return False


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class Survived:
    """What a run that went on has left."""

    summary: dict[str, Any]
    applied: list[tuple[int, list[Contribution], list[float]]]
    """(version, its contributions, its weights) of each commit of the leader."""
    computed: set[tuple[int, int, int]]
    """(rank, first position, samples) of each gradient."""
    happened: list[str]
    """The faults, as `kill 1`."""
    seconds: float

    @property
    def lost(self) -> list[int]:
        """The ranks that were lost, in their order."""
        return [loss["rank"] for loss in self.summary["emulation"]["losses"]["lost"]]

    @property
    def joined(self) -> list[int]:
        """The ranks that came back, or late."""
        return [each["rank"] for each in self.summary["emulation"]["losses"]["joined"]]

    @property
    def batches(self) -> list[Batch]:
        """All ranges that were applied."""
        return [c.batch for _, group, _ in self.applied for c in group if c.batch.samples]


def survive(
    experiment: Experiment,
    faults: Faults,
    folder: Path,
    *,
    emulate: str = "none",
    lost_after: float = 1.0,
    beat: float = 0.2,
    num_processes: int = 0,
) -> Survived:
    """Run it on real processes with these faults, in which so many processes compute.

    RunFailed with the sentence that ends it, if it does not survive them.
    """
    folder.mkdir(exist_ok=True)
    its = experiment.workload
    made = {field.name: getattr(its, field.name) for field in fields(its)}
    hurt = replace(experiment, workload=Faulty(**made, faults=faults, folder=folder, num_processes=num_processes))
    backend = Processes(emulate=emulate, heartbeat_seconds=beat, lost_after_seconds=lost_after)  # type: ignore[arg-type]
    backend.check(hurt)
    begun, others = time.monotonic(), active_children()
    with within(LIMIT_SECONDS):
        summary = backend.run(hurt, folder / "run", "")
    assert summary is not None
    seconds = time.monotonic() - begun
    assert set(active_children()) <= set(others)
    return survived(summary, folder, seconds)


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """TimeoutError, which ends the processes of a run that hangs, if the block takes longer. In the main thread."""

    def expired(*_: object) -> None:
        raise TimeoutError(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def survived(summary: dict[str, Any], folder: Path, seconds: float) -> Survived:
    """A run with this summary, whose processes have told in this folder what they did."""
    return Survived(summary, list(_applied(folder)), set(_computed(folder)), (folder / "happened").read_text().splitlines(), seconds)


def check_samples(run: Survived, described: Experiment) -> None:
    """Each position was applied once or counted as discarded, and what was applied had been computed by whom it is said of.

    Where a version is made of several gradients of a worker, they are one contribution.
    """
    total = described.budget.num_positions(described.workload.num_samples)  # type: ignore[attr-defined]
    summary = run.summary
    assert summary["num_samples"] + summary["num_samples_discarded"] == total
    if not summary["num_samples_discarded"]:
        assert tiles(run.batches, total)
    positions = [position for batch in run.batches for position in range(batch.start, batch.stop)]
    assert len(positions) == len(set(positions)) == summary["num_samples"]
    assert [version for version, _, _ in run.applied] == list(range(1, len(run.applied) + 1))
    if described.coordination.num_ahead == 1:
        assert {(c.rank, c.batch.start, c.batch.samples) for _, group, _ in run.applied for c in group if c.batch.samples} <= run.computed


def applied_until(folder: Path, version: int) -> list[Batch]:
    """The ranges that a run applied until this version, which it need not have survived."""
    return [c.batch for at, group, _ in _applied(folder) if at <= version for c in group if c.batch.samples]


def _applied(folder: Path) -> Iterator[tuple[int, list[Contribution], list[float]]]:
    """In the order of the versions. What a leader that is lost has recorded last counts no more where its successor goes on before it."""
    found: list[list[Any]] = []
    popped = 0
    for line in (folder / "applied").read_text().splitlines():
        version, *rest, leader = json.loads(line)
        popped = popped if found and found[-1][-1] != leader else 0
        while found and found[-1][0] >= version and found[-1][-1] != leader:
            found.pop()
            popped += 1
        assert popped <= 2 * LAG, f"rank {leader} went back to version {version}"
        found.append([version, *rest, leader])
    for version, contributions, weights, _ in found:
        yield version, [Contribution(rank, Batch(start, samples), at, 0.0, 0.0) for rank, start, samples, at in contributions], weights


def _computed(folder: Path) -> Iterator[tuple[int, int, int]]:
    for path in folder.glob("computed-*"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # of a process that was killed while it wrote
                rank, start, samples = json.loads(line)
                yield rank, start, samples
