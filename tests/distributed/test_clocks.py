"""Hosts whose clocks begin anywhere and run at rates of their own: one trace, right to the round trip."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from fake_transport import FakeNetwork
from pyarrow import parquet
from threads import run_in_threads
from worlds import cluster, experiment, node

from hetsim.distributed.communication.clock_alignment import ClockLine, ClockReading, Clocks
from hetsim.distributed.pacing.cpu_quota import CpuCap
from hetsim.distributed.rank.results import close, collect_results, send_results
from hetsim.distributed.rank.run import RankRun
from hetsim.files.writing import unfinished
from hetsim.runtime.recording.metrics import RankActivity
from hetsim.runtime.recording.trace import Trace


@dataclass(frozen=True)
class HostClock:
    """A clock that begins and runs as a test says."""

    offset: float = 0.0
    drift: float = 0.0

    def __call__(self) -> float:
        return self.offset + (1 + self.drift) * time.monotonic()

    def moment(self, reading: float) -> float:
        """The moment, by the clock of the machine, at which this one says so."""
        return (reading - self.offset) / (1 + self.drift)


FIRST, SECOND, THIRD = HostClock(-3000.0, -2e-2), HostClock(5e5, 1e-2), HostClock(17.0, 3e-3)
FOUR = cluster(*(node(seconds) for seconds in (4e-5, 1e-5, 2e-5, 2e-5)))
MAX_ROUND_TRIP = 0.2
"""Seconds, of threads on a busy machine."""
DRIFTED = 0.03 * MAX_ROUND_TRIP
"""Seconds that two of these clocks part between the first reading and the start."""


def in_all_ranks(part: Any, hosts: list[HostClock]) -> list[Any]:
    """What each rank's part returns."""
    network, results = FakeNetwork(len(hosts)), [None] * len(hosts)

    def run(rank: int) -> None:
        results[rank] = part(network.transport(rank), hosts[rank])

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_readings_are_put_on_the_clock_of_who_leads_next() -> None:
    """The beginning, too; where no clock drifts, nobody's seconds of the run change."""
    clocks = Clocks([0.0, 1.0, 2.0], leader=0)
    clocks.start = clocks.end = [ClockReading(10.0, 0.0, 0.0), ClockReading(110.0, -100.0, 0.125), ClockReading(5.0, 5.0, 0.25)]

    clocks.change_leader(1)

    assert [reading.offset for reading in clocks.start] == [100.0, 0.0, 105.0]
    assert [reading.error for reading in clocks.start] == [0.125, 0.25, 0.375]
    assert [clocks.line(rank) for rank in range(3)] == [ClockLine()] * 3


@pytest.mark.realtime
def test_a_line_is_right_to_the_error_that_it_states() -> None:
    """Of any moment between the readings, and all ranks start at one moment."""
    hosts = [FIRST, SECOND, SECOND, THIRD]

    def part(transport: Any, clock: HostClock) -> tuple[Clocks, float]:
        clocks = Clocks([float(hosts.index(each)) for each in hosts], leader=3)
        began = clocks.begin(transport, clock)
        time.sleep(0.2)
        for rank in (0, 1, 2):
            if transport.rank in (rank, 3):
                clocks.finish_with(transport, clock, rank)
        return clocks, began

    parts = in_all_ranks(part, hosts)

    clocks, leaders_began = parts[3]
    for rank, (host, (_, began)) in enumerate(zip(hosts, parts, strict=True)):
        error = clocks.as_numbers()["error_seconds"]
        assert clocks.as_numbers()["num_clocks"] == 3
        assert 0 < error < MAX_ROUND_TRIP
        assert host.moment(began) == pytest.approx(THIRD.moment(leaders_began), abs=error + DRIFTED)
        rate, shift = clocks.line(rank)
        for seconds in (0.0, 0.1, 0.2):
            moment = THIRD.moment(leaders_began + shift + rate * seconds)
            assert moment == pytest.approx(host.moment(began + seconds), abs=error + 1e-8)
        assert clocks.line(3) == ClockLine(1.0, 0.0)


@pytest.mark.realtime
def test_the_leader_reads_again_the_clocks_of_those_that_are_left() -> None:
    """One after another, while they hand in their results; of a rank that is lost the first reading stays."""
    hosts = [FIRST, SECOND, SECOND, THIRD]

    def part(transport: Any, clock: HostClock) -> tuple[Clocks, float]:
        clocks = Clocks([float(hosts.index(each)) for each in hosts], leader=3)
        began = clocks.begin(transport, clock)
        time.sleep(0.2)
        for rank in (0, 2):
            if transport.rank in (rank, 3):
                clocks.finish_with(transport, clock, rank)
        return clocks, began

    parts = in_all_ranks(part, hosts)

    clocks, leaders_began = parts[3]
    error = clocks.as_numbers()["error_seconds"]
    for rank in (0, 2):
        rate, shift = clocks.line(rank)
        moment = THIRD.moment(leaders_began + shift + rate * 0.1)
        assert moment == pytest.approx(hosts[rank].moment(parts[rank][1] + 0.1), abs=error + 1e-8)
    assert clocks.line(1) == ClockLine()
    assert clocks.line(2) != ClockLine()


def test_where_all_share_a_clock_nothing_is_read() -> None:
    """All ranks start at the moment that the leader chose, and no time is changed."""

    def part(transport: Any, clock: HostClock) -> Any:
        transport.send = transport.receive = transport.control.send = transport.control.receive = None
        clocks = Clocks.gather(transport, 7.0, leader=1)
        began = clocks.begin(transport, clock)
        clocks.finish_with(transport, clock, 0)
        return clocks.several, began, clocks.line(0), clocks.change(0)("rows")

    first, second = in_all_ranks(part, [FIRST, FIRST])

    assert first == second
    assert (first[0], *first[2:]) == (False, ClockLine(), "rows")


def test_an_activity_by_another_clock() -> None:
    """Seconds are stretched, moments are moved, and counts stay."""
    activity = RankActivity(iterations=2, samples=20, compute_seconds=4.0)
    activity.recent.append(("compute_seconds", 1.0, 3.0, 1, 10))

    other = activity.on_clock(1.5, 0.25)

    assert other == RankActivity(iterations=2, samples=20, compute_seconds=6.0)
    assert list(other.recent) == [("compute_seconds", 1.75, 4.75, 1, 10)]


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize("method", ["asgd", "ssgd"])
def test_the_trace_of_several_hosts_is_one(method: str, tmp_path: Path) -> None:
    """No message ends before it starts, none starts before the gradient that it brings has ended, and reductions end together."""
    made = experiment(
        f"method={method}", "workload=quadratic", cluster=FOUR, batch_size=40, workload={"num_parameters": 6, "num_samples": 400},
        budget={"epochs": 4},
    )  # fmt: skip
    hosts = [FIRST, SECOND, SECOND, THIRD, FIRST][: made.num_ranks]
    errors: list[float] = []

    def finish(run: RankRun) -> None:
        if not run.record.leads:
            send_results(run, CpuCap())
            return
        with Trace(tmp_path, "full") as trace:
            collect_results(run, trace, CpuCap())
            close(run, trace, {}, [], stopped=False)
        errors.append(run.clocks.as_numbers()["error_seconds"])

    ends = run_in_threads(made, hosts=hosts, finish=finish)

    leader = ends[made.leader]
    assert isinstance(leader, RankRun), ends
    (error,) = errors
    rows = parquet.read_table(unfinished(tmp_path / "trace.parquet")).to_pylist()
    seconds = leader.metrics.applied.seconds
    assert 0 < error < MAX_ROUND_TRIP
    assert {row["rank"] for row in rows} == set(range(made.num_ranks))
    for row in rows:
        assert -error - DRIFTED <= row["start"] <= row["end"] <= seconds + MAX_ROUND_TRIP
    for rank in range(made.num_workers):
        gradients = sorted(row["end"] for row in rows if row["kind"] == "gradient" and row["rank"] == rank)
        if method == "asgd":
            brought = sorted(row["start"] for row in rows if row["kind"] == "message" and row["rank"] == rank and row["nbytes"])
            assert len(brought) == len(gradients) > 5
            assert all(start >= end - 1e-9 for start, end in zip(brought, gradients, strict=True))
        else:
            starts = sorted(row["start"] for row in rows if row["kind"] == "all_reduce" and row["rank"] == rank)
            ends_of_all = [sorted(row["end"] for row in rows if row["kind"] == "all_reduce" and row["rank"] == one) for one in range(4)]
            for number, start in enumerate(starts):
                assert all(of_one[number] >= start - 2 * error for of_one in ends_of_all)
    for summed in leader.metrics.summary()["per_worker"]:
        assert 0 <= summed["compute_seconds"] <= seconds
