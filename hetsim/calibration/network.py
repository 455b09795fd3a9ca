"""The network that was measured, as a config: messages, all-reduces, and what they cost the processors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from hetsim.calibration.accounts import PROGRAM
from hetsim.calibration.fit import LEAST_SECONDS, Cold, FittedLine, four_digits, means
from hetsim.calibration.readings import AT_OWN_PACE, IN_ROUND, IN_STEP, RankReadings
from hetsim.calibration.sharing import sharing_noise
from hetsim.cluster.model import Cluster, Network, NodeSpec, Server
from hetsim.cluster.network.racks import Between, Rack

LINKS = ("uplink_bytes_per_second", "downlink_bytes_per_second")
KEPT = {
    NodeSpec: ("max_samples", "rack", "device", "cost_per_hour", "overlap_seconds_per_byte", *LINKS, "half_duplex"),
    Server: ("rack", "device", *LINKS, "half_duplex"),
    Rack: (*LINKS, "half_duplex", "latency_seconds", "message_bytes_per_second", "within"),
    Between: ("bytes_per_second", "latency_seconds"),
    Network: ("sharing", "all_reduce"),
}
"""The described keys that are not measured, and are copied into the calibrated cluster. Zero, False and None are left out."""
FASTEST = 1e12
"""The bytes per second if a larger message does not take longer than its work at both ends."""


def kept_keys(part: NodeSpec | Server | Rack | Between | Network) -> dict[str, Any]:
    """The keys of a part that are described and not measured."""
    return {key: value for key in KEPT[type(part)] if (value := getattr(part, key)) not in (None, False)}


def fit_network(
    described: Cluster,
    among: RankReadings | None,
    around: RankReadings | None,
    *,
    capped: RankReadings | None = None,
    server_contained: bool = False,
    together: float = 0.0,
) -> dict[str, Any]:
    """Latency, rate and CPU work of messages, and of all-reduces among workers without hetsim's caps. Links and racks are unchanged.

    `server_contained`: whether a quota contains the server's whole process. `together`: how long the simulated gradients of all ranks take
    in a round; 0: unknown.
    """
    network: dict[str, Any] = {"latency_seconds": 0.0, "bytes_per_second": FASTEST, **kept_keys(described.network)}
    cpu: dict[str, float] = {}
    ranks = range(described.num_workers)
    if around is not None:
        ends = defaultdict(list)
        for rank in ranks:
            ends_of_message = (rank, described.num_workers)
            for size, seconds in work_of_ends(around, "message", ends_of_message).items():
                ends[size].append(seconds)
        work = FittedLine.fit({size: fmean(seconds) for size, seconds in ends.items()})
        wall = _wall([means(around.of(rank, "message"), "seconds") for rank in ranks], described)
        network["latency_seconds"] = four_digits(max(0.0, wall.constant - work.constant))
        if wall.slope * FASTEST > 1:
            network["bytes_per_second"] = four_digits(1 / wall.slope)
        network |= sharing_noise(described, around)
        cpu |= _message_costs(around, work, server_contained=server_contained)
    if among is not None and described.num_workers > 1:
        readings = [among.of(rank, "all_reduce") for rank in range(described.num_workers)]
        wall_of = _mean_of([means(rank_readings, "seconds") for rank_readings in readings])
        work = FittedLine.fit(work_of_ends(among, "all_reduce", range(described.num_workers)))
        largest = [max(rank_readings, key=lambda reading: reading.size) for rank_readings in readings]
        more, thread = exchange_costs(among if capped is None else capped, fmean(reading.cpu_seconds for reading in largest))
        thread = max(thread, fmean(reading.thread_seconds for reading in largest))
        cpu |= {"collective_seconds": four_digits(work.constant + more), "collective_seconds_per_byte": four_digits(work.slope)}
        cpu["collective_thread_share"] = four_digits(min(1.0, thread / max(LEAST_SECONDS, more + work(largest[0].size))))
        for kind in ("agreement", "gather"):
            if kind_readings := [reading for rank in ranks for reading in (among if capped is None else capped).of(rank, kind)]:
                cpu[f"{kind}_seconds"] = four_digits(
                    max(fmean(getattr(reading, of) for reading in kind_readings) for of in ("cpu_seconds", "thread_seconds"))
                )
        alone = wall_of[max(wall_of)] + cpu.get("agreement_seconds", 0.0)
        longer = _longer_in_training(among, alone, together) if capped is None or capped is among else 0.0
        table: list[list[float]] = []
        for size, seconds in wall_of.items():
            more = longer if longer > 0 or size == max(wall_of) else 0.0  # only a queue of large messages makes them shorter
            table.append([size, four_digits(max(seconds + more, table[-1][1] if table else 0.0))])
        network["all_reduce_table"] = table
        if around is None:
            network["latency_seconds"] = four_digits(next(iter(wall_of.values())) / (2 * (described.num_workers - 1)))
    ways = [([str(rack).removeprefix("rack ") for rack in pair], way) for pair, way in described.network.between.items()]
    network["racks"] = {name: kept_keys(rack) for name, rack in described.network.racks.items()}
    network["between"] = [{"racks": sorted(names), **kept_keys(way)} for names, way in ways]
    return {key: value for key, value in network.items() if value not in ({}, [])} | {"cpu": cpu}


def _message_costs(around: RankReadings, work: FittedLine, *, server_contained: bool) -> dict[str, float]:
    """The keys of `network.cpu` for messages. `work` is the work of an end, by bytes, for consecutive messages.

    The computing thread does a part of it. In training, caches are colder, because a push follows a gradient and a pull follows a wait. So
    a worker's end of each message takes longer.
    """
    ranks = range(len(around.readings) - 1)
    exchanges = [reading for rank in ranks for reading in around.of(rank, AT_OWN_PACE, IN_STEP)]
    messages = [reading for rank in ranks for reading in around.of(rank, "message")]
    nbytes = max(reading.size for reading in messages)
    costs: dict[str, float] = {}
    alone, in_thread = (
        fmean(getattr(reading, column) for reading in messages if reading.size == nbytes) for column in ("cpu_seconds", "thread_seconds")
    )
    moved = max(0.0, work.constant - in_thread)
    for end in ("send", "receive"):
        costs |= {f"{end}_seconds": four_digits(moved), f"{end}_seconds_per_byte": four_digits(work.slope)}
    if exchanges:
        thread = fmean(reading.thread_seconds for reading in exchanges) / 2
        server_seconds = [reading.cpu_seconds for reading in around.of(len(ranks), AT_OWN_PACE)]
        if server_seconds and server_contained:  # several messages at once cost it less than one by one
            thread = min(thread, max(0.0, fmean(server_seconds) / 2 - moved - nbytes * work.slope))
        costs["thread_seconds"] = four_digits(thread)
        costs |= Cold.fit_exchanges(
            [(reading.size / 1e6, reading.seconds, reading.cpu_seconds) for reading in exchanges], 2 * (alone - in_thread + thread)
        ).as_row()
    return costs


def work_of_ends(measured: RankReadings, kind: str, ranks: Sequence[int]) -> dict[int, float]:
    """The mean CPU-seconds of a message at these ranks, by size: of the rank's process, and of its machine's interrupts.

    Interrupts are charged to the interrupted processes, so the machine's CPU-seconds contain both. The result is at most the sum of both,
    because other programs work, too.
    """
    of_ranks, of_machine, interrupts = (
        [means(measured.of(rank, kind), column) for rank in ranks] for column in ("cpu_seconds", "machine_seconds", "interrupt_seconds")
    )
    machines = [measured.processes[rank].machine for rank in ranks]
    work = dict.fromkeys(of_ranks[0], 0.0)
    for machine in dict.fromkeys(machines):
        places = [place for place, name in enumerate(machines) if name == machine]
        for size in work:
            processes = sum(of_ranks[place][size] for place in places)
            most = processes + fmean(interrupts[place][size] for place in places)
            work[size] += min(most, max(processes, fmean(of_machine[place][size] for place in places))) / len(ranks)
    return work


def exchange_costs(measured: RankReadings, alone: float) -> tuple[float, float]:
    """The extra CPU-seconds of an all-reduce in training over `alone`, right after another one, and the computing thread's part of them."""
    exchanges = [reading for rank in range(len(measured.readings)) for reading in measured.of(rank, IN_STEP)]
    if not exchanges:
        return 0.0, 0.0
    more = fmean(reading.cpu_seconds for reading in exchanges) - alone
    return max(0.0, more), fmean(reading.thread_seconds for reading in exchanges)


def _longer_in_training(measured: RankReadings, alone: float, together: float) -> float:
    """The extra seconds of an all-reduce of the model and an agreement in training over `alone`; 0 if a process has less than a core.

    They are what simulated gradients, updates and programs leave of a round. Without simulated gradients: of each round, the rank that
    arrived last waited for no other, so the shortest sum is that of both. This is too short where ranks leave the agreement at different
    times.

    Threads that move messages wake up, and wait for cores, after each gradient. All-reduces that directly follow each other may fill the
    queues of links, which takes longer. The pauses of a quota are simulated, and would count twice.
    """
    pairs = [zip(measured.of(rank, IN_STEP), measured.of(rank, "agreement"), strict=False) for rank in range(len(measured.readings))]
    rounds = list(zip(*([exchange.seconds + agreed.seconds for exchange, agreed in rank_pairs] for rank_pairs in pairs), strict=False))
    if not rounds or any(0 < process.cpu_quota < 1 for process in measured.processes):
        return 0.0
    if not together:
        return fmean(map(min, rounds)) - alone
    readings_of = [partial(measured.of, rank) for rank in range(len(measured.readings))]
    round_seconds = fmean(sum(fmean(reading.seconds for reading in of(kind)) for kind in IN_ROUND) for of in readings_of)
    described = fmean(
        sum(fmean(reading.cpu_seconds for reading in of(kind)) for kind in ("update in training", PROGRAM)) for of in readings_of
    )
    return round_seconds - described - together - alone


def _wall(by_rank: Sequence[Mapping[int, float]], described: Cluster) -> FittedLine:
    """The seconds of a message, as a line in its size. If the config gives links, the fastest path determines the slope."""
    if not (described.describes_links or described.network.between):
        return FittedLine.fit(_mean_of(by_rank))
    lines = [FittedLine.fit(seconds) for seconds in by_rank]
    return FittedLine(fmean(line.constant for line in lines), min(line.slope for line in lines))


def _mean_of(by_rank: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over all ranks, by size."""
    return {size: fmean(by_size[size] for by_size in by_rank) for size in by_rank[0]}
