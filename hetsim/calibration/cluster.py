"""Make the config of the measured cluster: the given keys, with fitted times instead of described ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

from hetsim.calibration.accounts import PROGRAM
from hetsim.calibration.fit import LEAST_COLD, LEAST_SECONDS, Cold, GradientTimes, busy_speeds, four_digits, means
from hetsim.calibration.network import fit_network, kept_keys
from hetsim.calibration.noise import Noise
from hetsim.calibration.readings import AT_OWN_PACE, EXCHANGES, IN_STEP, OVERLAPPED, WHOLE, ProcessFacts, RankReadings, Reading
from hetsim.cluster.hosts import Host, cold_after
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.policies.compensation import DelayCompensation


@dataclass(frozen=True)
class Calibrated:
    """A calibrated cluster, and the errors of its parts' predictions."""

    config: dict[str, Any]
    steps: list[GradientTimes]
    """The fitted times of each worker."""
    service: Noise | None = None
    """The noise of the server's updates; None without a server."""
    laws: dict[str, Noise] = field(default_factory=dict)
    """The measured noise, by the name of its file."""
    doubts: Sequence[str] = ()
    """Reasons not to trust the times, a clause for each node and reason."""
    tried: Mapping[str, float] = field(default_factory=dict)
    """By method, the signed relative error of its predicted updates per second, from a real run right after."""
    ordinary: Sequence[int] = ()
    """The ranks whose systems refuse real-time priority to threads that move messages."""

    @property
    def priority_warning(self) -> str | None:
        """A warning about such systems; None if there is none."""
        if not self.ordinary:
            return None
        ranks = f"rank{'s' * (len(self.ordinary) > 1)} {', '.join(map(str, self.ordinary))}"
        return (
            f"The system refuses real-time priority to {ranks}. So threads that move messages wait for a core, and predictions for small "
            "models are too fast (docs/guide/calibrate.md)."
        )

    @property
    def error(self) -> float:
        """The mean relative error of the tried methods, or of gradients if no method was tried."""
        return fmean(map(abs, self.tried.values())) if self.tried else self.error_of_gradients

    @property
    def error_of_gradients(self) -> float:
        """The mean relative error of gradients' times at the held-out batch sizes, over all nodes."""
        return fmean(steps.error for steps in self.steps)


def fit_cluster(
    described: Cluster,
    name: str,
    fitted: Sequence[Sequence[int]],
    *,
    among: RankReadings | None,
    around: RankReadings | None,
    uncapped: RankReadings | None = None,
    capped_by_hetsim: bool,
    beside: str | None = None,
    widths: Sequence[int] | None = None,
    computing: Callable[[RankReadings, Sequence[int], Host], tuple[float, float]] = lambda *_: (0.0, 0.0),
) -> Calibrated:
    """Fit the cluster to these readings: among workers, around a server, or both, and possibly without hetsim's caps.

    Args:
        fitted: the batch sizes of each worker to which its times are fitted.
        capped_by_hetsim: whether the given quotas were emulated.
        beside: the first part of the file names for measured noise; None writes no such files.
        widths: how many cores each worker's gradients take; None: one.
        computing: returns the `balance_seconds` of the host of these ranks, and how long their simulated gradients take in a round.
    """
    measurements = [measured for measured in (among, around) if measured is not None]
    num_workers = described.num_workers
    alone = [[reading for measured in measurements for reading in measured.of(rank, "alone")] for rank in range(num_workers)]
    steps = [GradientTimes.fit(readings, fitted[rank]) for rank, readings in enumerate(alone)]
    colds = [Cold.fit([reading for measured in measurements for reading in measured.of(rank, "cold")]) for rank in range(num_workers)]
    processes = measurements[-1].processes
    capped = [capped_by_hetsim or process.cpu_quota > 0 for process in processes[:num_workers]]
    throttled = [capped_by_hetsim or 0 < process.cpu_quota < 1 for process in processes[:num_workers]]
    widths = widths or [1] * num_workers
    hosts = _hosts(processes, uncapped or measurements[0], steps, described, widths)

    def slower(rank: int, busy: Callable[[int], float]) -> float:
        """The factor on a worker's gradients from others on its machine, which compute so much of the time."""
        idle = 1.0
        speeds: list[float] = hosts[processes[rank].machine].get("busy_speeds", [1.0])
        for neighbour in range(num_workers):
            idle *= 1.0 if neighbour == rank or processes[neighbour].machine != processes[rank].machine else 1.0 - busy(neighbour)
        return 1.0 + (1.0 / speeds[min(2 * widths[rank], len(speeds)) - 1] - 1.0) * (1.0 - idle)

    def quota(rank: int) -> float:
        share: float = _quota(described.nodes[rank], processes[rank], by_hetsim=capped_by_hetsim).get("cpu_quota", 1.0)
        return share

    stops = [math.inf if capped_by_hetsim or not throttled[rank] else _stop_seconds(processes[rank]) for rank in range(num_workers)]
    steps = [
        times.steady(_consecutive_gradients(measurements, rank, num_workers, stops[rank]), slower=slower(rank, quota))
        if throttled[rank]
        else times
        for rank, times in enumerate(steps)
    ]
    doubtful = doubts(steps, alone, capped)
    workers = processes[:num_workers]
    doubtful += crowded_machines(widths, [process.machine for process in workers], [process.cores for process in workers])
    together = 0.0
    if max(widths) == 1 and not capped_by_hetsim and not any(process.cpu_quota for process in processes):
        for machine, host in hosts.items():
            ranks = [rank for rank in range(num_workers) if processes[rank].machine == machine]
            seconds, end = computing(measurements[0], ranks, Host(cores=host["cores"], busy_speeds=tuple(host.get("busy_speeds", ()))))
            together = max(together, end)
            if seconds:
                host["balance_seconds"] = four_digits(seconds)
    overlaps: list[float] = []
    first_seconds: list[float] = []
    for rank, times in enumerate(steps):
        longer: list[tuple[float, float, float]] = []
        firsts: list[float] = []
        for m in measurements:
            others = slower(rank, partial(_busy_share, m))
            in_step, at_own_pace = (
                [*_gradients_after_exchanges(m, rank, times, others, stops[rank], kind)] for kind in (IN_STEP, AT_OWN_PACE)
            )
            longer += [*in_step, *at_own_pace]
            colder = max(0.0, median(extra for *_, extra in in_step)) if in_step else 0.0
            overlaps += _overlaps(m, rank, colder=colder)
            firsts += [reading.cpu_seconds / others - times.seconds(reading.size) - colder for reading in m.of(rank, "first")]
        first_seconds.append(times.first(firsts))
        colds[rank] = colds[rank].fit_training(longer, least=LEAST_COLD * times.means[-1][1])
    names = {machine: f"host{place}" for place, machine in enumerate(dict.fromkeys(process.machine for process in processes))}
    nodes = []
    files = [None if beside is None else f"{beside}-{end}.csv" for end in ends_of(num_workers)]
    laws = dict(zip(files, (fit.noise for fit in steps), strict=False))
    for rank, node in enumerate(described.nodes):
        row = {"count": 1, **steps[rank].as_row(files[rank]), **colds[rank].as_row()}
        if first_seconds[rank]:
            row["first_seconds"] = four_digits(first_seconds[rank])
        if updates := [seconds for measured in measurements for seconds in _update_seconds(measured, rank)]:
            row["seconds_per_update"] = four_digits(fmean(updates))
        if local := [reading.cpu_seconds for measured in measurements for reading in _second_half(_local_steps(measured, rank))]:
            row["seconds_per_local_update"] = four_digits(fmean(local))
        row |= _program_seconds(measurements, rank)
        row |= {"host": names[processes[rank].machine], **_quota(node, processes[rank], by_hetsim=capped_by_hetsim), **kept_keys(node)}
        nodes.append(row)
    contained = around is not None and not capped_by_hetsim and 0 < processes[num_workers].cpu_quota < 1
    wires = fit_network(
        described, among if among is None else uncapped or among, around, capped=among, server_contained=contained, together=together
    )
    if overlaps:
        wires["cpu"]["overlap_seconds"] = four_digits(fmean(overlaps))
    server: dict[str, Any] = {"seconds_per_update": four_digits(described.server.seconds_per_update)}
    for key in ("seconds_per_byte", "seconds_per_vector_operation"):
        if seconds := getattr(described.server, key):
            server[key] = four_digits(seconds)
    service = None
    if around is not None:
        updates = _update_seconds(around, num_workers)
        mean = max(fmean(updates), LEAST_SECONDS)
        laws[files[-1]] = service = Noise.fit([seconds / mean for seconds in updates])
        server = {"seconds_per_update": four_digits(mean), **service.as_row(files[-1]), "host": names[processes[num_workers].machine]}
        server |= _server_costs(around, num_workers, wires["cpu"], contained=contained)
        server |= _quota(described.server, processes[num_workers], by_hetsim=capped_by_hetsim)
    server |= kept_keys(described.server)
    config = {
        "name": name,
        "nodes": nodes,
        "network": wires,
        "server": server,
        "hosts": {names[machine]: host for machine, host in hosts.items()},
    }
    written = {file: law for file, law in laws.items() if file is not None and law.takes_measured}
    ordinary = [] if capped_by_hetsim else [rank for rank, process in enumerate(processes) if not process.real_time]
    return Calibrated(config, steps, service, written, doubtful, ordinary=ordinary)


def ends_of(num_workers: int) -> list[str]:
    """The parts of the names of noise files: each node, and the server."""
    return [*(f"node{rank}" for rank in range(num_workers)), "server"]


def _second_half(readings: Sequence[Reading]) -> Sequence[Reading]:
    """The second half of readings that follow each other, without what is slower at first."""
    return readings[len(readings) // 2 :]


def _stop_seconds(process: ProcessFacts) -> float:
    """The seconds for which a process that computes all the time is stopped in each period of its quota."""
    return process.period_seconds * (1.0 - process.cpu_quota)


def _stopped_seconds(reading: Reading, stop: float) -> float:
    """The seconds for which a quota stopped the process in this gradient. It waited for at least half a stop."""
    waited = reading.seconds - reading.cpu_seconds
    return waited if waited >= stop / 2 else 0.0


def _consecutive_gradients(measurements: Sequence[RankReadings], rank: int, num_workers: int, stop: float) -> list[Reading]:
    """Gradients right after others while all workers compute: those in which the process was not stopped, if there are any."""
    readings = [reading for measured in measurements for reading in _second_half(measured.of(rank, f"beside {num_workers}"))]
    return [reading for reading in readings if not _stopped_seconds(reading, stop)] or readings


def _gradients_after_exchanges(
    measured: RankReadings, rank: int, steps: GradientTimes, slower: float, stop: float, kind: str
) -> Iterator[tuple[float, float, float]]:
    """For each gradient after an exchange of this kind: the pauses before and in it, and its extra time over one right after another.

    Busy cores made it `slower` times as long.
    """
    pause: float | None = None
    for reading in measured.readings[rank]:
        if reading.kind in EXCHANGES:
            pause = reading.seconds if reading.kind == kind else None
        elif reading.kind in ("update in training", "agreement", PROGRAM) and pause is not None:
            pause += reading.seconds
        elif reading.kind == "in training" and pause is not None:
            yield pause, _stopped_seconds(reading, stop), reading.cpu_seconds / slower - steps.seconds(reading.size)


def _overlaps(measured: RankReadings, rank: int, *, colder: float) -> Iterator[float]:
    """The extra CPU-seconds of a round whose exchange runs beside the next gradient, which does not pause; at most one number.

    A round in which the gradient follows the exchange contains `colder` seconds of cold caches. Threads that spin while others hold what
    they need make single rounds much longer, so medians are compared.
    """
    in_sequence, overlapped = ([reading.cpu_seconds for reading in measured.of(rank, kind)] for kind in (WHOLE, OVERLAPPED))
    if in_sequence and overlapped:
        yield max(0.0, median(overlapped) - (median(in_sequence) - colder))


def _busy_share(measured: RankReadings, rank: int) -> float:
    """The fraction of the time in training in which a rank's gradients have a core; 0 for a server."""
    gradients, exchanges = measured.of(rank, "in training"), measured.of(rank, AT_OWN_PACE, IN_STEP)
    if not gradients or not exchanges:
        return 0.0
    cycle = fmean(reading.seconds for reading in gradients) + fmean(reading.seconds for reading in exchanges)
    return min(1.0, fmean(reading.cpu_seconds for reading in gradients) / cycle)


def _update_seconds(measured: RankReadings, rank: int) -> list[float]:
    """The CPU-seconds of optimizer steps: in training, if there are any."""
    return [reading.cpu_seconds for reading in measured.of(rank, "update in training") or measured.of(rank, "update")]


def _local_steps(measured: RankReadings, rank: int) -> list[Reading]:
    """Local steps with the program's own work, if local SGD was run."""
    return measured.of(rank, "local step") or measured.of(rank, "local update")


def _program_seconds(measurements: Sequence[RankReadings], rank: int) -> dict[str, float]:
    """The mean CPU-seconds of a worker's own program."""
    seconds = [reading.cpu_seconds for measured in measurements for reading in measured.of(rank, PROGRAM)]
    return {"program_seconds": four_digits(fmean(seconds))} if seconds else {}


def _server_costs(around: RankReadings, rank: int, cpu: Mapping[str, float], *, contained: bool) -> dict[str, float]:
    """The costs of the server's own program: for a message of a worker, and for an operation on vectors.

    A push and a pull cost its computing thread CPU-seconds, and its process if a quota contains it as a whole. Other numbers have a part.
    """
    costs: dict[str, float] = {}
    if exchanges := around.of(rank, AT_OWN_PACE):
        in_thread, in_process = (fmean(getattr(reading, of) for reading in exchanges) for of in ("thread_seconds", "cpu_seconds"))
        nbytes = max(reading.size for reading in around.of(rank, "message"))
        moved = sum(cpu[f"{end}_seconds"] + cpu[f"{end}_seconds_per_byte"] * nbytes for end in ("send", "receive"))
        moved += 2 * cold_after(
            fmean(reading.seconds for reading in exchanges) / 2, cpu.get("cold_seconds", 0.0), cpu.get("cooling_seconds", math.inf)
        )
        seconds = in_process - moved if contained else in_thread
        costs["program_seconds"] = four_digits(max(0.0, seconds - 2 * cpu.get("thread_seconds", 0.0)))
    plain, corrected = ([reading.cpu_seconds for reading in around.of(rank, kind)] for kind in ("update", "corrected update"))
    if corrected:
        costs["seconds_per_vector_operation"] = four_digits(max(0.0, fmean(corrected) - fmean(plain)) / DelayCompensation.operations)
    return costs


def _quota(end: NodeSpec | Server, process: ProcessFacts, *, by_hetsim: bool) -> dict[str, Any]:
    if by_hetsim:
        values = {"cpu_quota": end.cpu_quota, "cpu_quota_period_seconds": end.cpu_quota_period_seconds}
        return {key: value for key, value in values.items() if value is not None}
    if not 0 < process.cpu_quota < 1:
        return {}
    return {
        "cpu_quota": four_digits(process.cpu_quota),
        "cpu_quota_period_seconds": process.period_seconds,
        "cpu_quota_covers_messages": True,
    }


def _hosts(
    processes: Sequence[ProcessFacts],
    measured: RankReadings,
    steps: Sequence[GradientTimes],
    described: Cluster,
    widths: Sequence[int],
) -> dict[float, dict[str, Any]]:
    """The cores of each machine, and their speeds while several are busy, if workers of one machine were measured at the same time.

    Workers with a quota do not count: they seldom run at the same time, and their times at that time are those of the cluster.
    """
    hosts: dict[float, dict[str, Any]] = {}
    for machine in dict.fromkeys(process.machine for process in processes):
        ranks = [rank for rank in range(described.num_workers) if processes[rank].machine == machine]
        cores = max(1, int(next(process.cores for process in processes if process.machine == machine)))
        inflation: dict[int, float] = {}
        free = [rank for rank in ranks if not 0 < measured.processes[rank].cpu_quota < 1]
        for busy in range(2, described.num_workers + 1):
            together = [rank for rank in free if rank < busy and measured.of(rank, f"beside {busy}")]
            if len(together) < 2:
                continue
            ratios = []
            for rank in together:
                alone = means(measured.of(rank, "alone"), "cpu_seconds")
                beside = measured.of(rank, f"beside {busy}")
                ratios.append(fmean(reading.cpu_seconds / alone.get(reading.size, steps[rank].seconds(reading.size)) for reading in beside))
            inflation[sum(widths[rank] for rank in together)] = max(1.0, fmean(ratios))
        hosts[machine] = {"cores": cores, **_tick(processes, machine)}
        if inflation:
            hosts[machine]["busy_speeds"] = busy_speeds(cores, inflation, max(widths[rank] for rank in ranks))
    return hosts


def _tick(processes: Sequence[ProcessFacts], machine: float) -> dict[str, float]:
    tick = next(process.tick_seconds for process in processes if process.machine == machine)
    return {"tick_seconds": four_digits(tick)} if tick else {}


MOST_ERROR = 0.1
"""The maximum relative error of gradients at held-out batch sizes."""
MOST_NOISE = 0.25
"""The maximum noise of gradients of one size: the standard deviation divided by the mean."""
MOST_SLOW = 0.05
"""The maximum share of gradients in slow spells."""
MOST_WAITING = 0.15
"""The maximum seconds without a core, relative to the CPU-seconds of gradients that are computed one worker at a time."""


def doubts(steps: Sequence[GradientTimes], alone: Sequence[Sequence[Reading]], capped: Sequence[bool]) -> list[str]:
    """Return a clause for each node and reason not to trust its times; empty if the calibration is trustworthy.

    `alone` contains each node's gradients while all other nodes paused. A node that is `capped` by a quota waits by design.
    """
    clauses = []
    for rank, (fitted, readings, waits) in enumerate(zip(steps, alone, capped, strict=True)):
        reasons = (
            _clause_above(fitted.error, MOST_ERROR, "error at held-out batch sizes"),
            _clause_above(fitted.noise.deviation, MOST_NOISE, "noise"),
            _clause_above(fitted.noise.share_in_slow_spells, MOST_SLOW, "of its gradients in slow spells"),
            None
            if waits
            else _clause_above(_waiting(readings), MOST_WAITING, "longer than its CPU-seconds, because other programs had the processor"),
        )
        clauses += [f"node {rank}: {reason}" for reason in reasons if reason is not None]
    return clauses


def crowded_machines(widths: Sequence[int], machines: Sequence[float], cores: Sequence[float]) -> list[str]:
    """Return a clause if workers that compute with several threads share fewer cores, where no measurement predicts another.

    Each worker has its number of threads, a number for its machine, and the cores there.
    """
    clauses = []
    for machine in dict.fromkeys(machines):
        ranks = [rank for rank, name in enumerate(machines) if name == machine]
        threads, room = sum(widths[rank] for rank in ranks), int(cores[ranks[0]])
        if max(widths[rank] for rank in ranks) > 1 and threads > room:
            nodes = f"node {ranks[0]}" if len(ranks) == 1 else f"nodes {', '.join(map(str, ranks))}"
            clauses.append(f"{nodes}: {threads} threads on {room} core{'s' * (room > 1)} (lower threads)")
    return clauses


def _clause_above(value: float, most: float, quantity: str) -> str | None:
    """A clause with the threshold; None if the value is at most the threshold."""
    return f"{100 * value:.0f} % {quantity} (at most {100 * most:.0f} %)" if value > most else None


def _waiting(readings: Sequence[Reading]) -> float:
    """The mean over a node's gradients of the thread's seconds without a core, relative to its seconds with a core."""
    seconds, busy = math.fsum(reading.seconds for reading in readings), math.fsum(reading.cpu_seconds for reading in readings)
    return max(0.0, seconds / busy - 1) if busy else 0.0
