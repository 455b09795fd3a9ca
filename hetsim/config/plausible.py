"""Find values of a config that are almost surely mistakes: values outside a plausible range, and values that contradict each other.

Each mistake is one sentence, which a run reports as a warning. None stops a run, so the ranges are wide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from hetsim.cluster.distributions import mean_of
from hetsim.cluster.model import Cluster, NodeSpec, Server
from hetsim.cluster.network.link_slowdown import LinkSlowdown
from hetsim.cluster.parse.nodes import DRAWN
from hetsim.cluster.parse.values import card as card_of
from hetsim.config.resolved import PHANTOM
from hetsim.config.schema import RATES


@dataclass(frozen=True)
class PlausibleRange:
    """The plausible values of the keys whose dotted names match a pattern, in SI units. Of a distribution, it is the mean that counts."""

    keys: str
    low: float
    high: float
    remedy: str
    """What to type."""
    unit: str = ""

    def sentence(self, key: str, value: float, *, is_mean: bool, num_others: int) -> str:
        """The warning about a value. `num_others` is the number of further keys of this name with an implausible value."""
        others = f" (and {num_others} more)" if num_others else ""
        usual = f"{self.low:g} to {self.high:g}"
        if self.low <= 0 or self.high == math.inf:
            usual = f"at most {self.high:g}" if self.low <= 0 else f"at least {self.low:g}"
        return (
            f"{key}{others} {'has the mean' if is_mean else 'is'} {value:.6g}{self.unit}, which is probably a mistake "
            f"(usual: {usual}{self.unit}): {self.remedy}"
        )


_SECONDS = "plain numbers are seconds, so type a unit, such as 200 ms"
_RATE = "plain numbers are bytes per second, so type a unit, such as 10 Gbit/s"
_NOISE = "it multiplies times, so give it the mean 1, such as {distribution: gamma, a: 20, scale: 0.05}"
_COUNT = "type its unit, such as 25M"
_LR = r"(?:local_|regional_)?optimizer\.(?:\w+_)?lr|(?:local_)?learning_rate_schedule\.(?:.*\.)?(?:max_lr|base_lr|eta_min)"

SLOW_INSIDE = 5e9
"""The bytes per second of the slowest usual link inside a machine. A faster one may be slower than the machine's network card."""
MAX_SECONDS_PER_SAMPLE, MAX_RATIO = 10.0, 1e5
"""The largest plausible time of a sample, and ratio of these times of two nodes."""

RANGES = (
    # the run
    PlausibleRange("batch_size", 1, 1e9, "lower it: it is the number of samples of a global batch"),
    PlausibleRange("budget.epochs", 1e-6, 1e7, "type budget.updates for a number of updates"),
    PlausibleRange("budget.updates", 1, 1e11, "lower it, or type budget.epochs or budget.seconds"),
    PlausibleRange("budget.seconds", 1e-6, 1e10, _SECONDS, " s"),
    PlausibleRange("evaluate_every_epochs", 1e-5, 1e7, "type evaluate_every_epochs=1 for a point at each epoch"),
    PlausibleRange("evaluate_every_seconds", 1e-7, 1e10, _SECONDS, " s"),
    PlausibleRange("checkpoint.every_seconds", 1e-3, 1e8, _SECONDS, " s"),
    PlausibleRange(rf"(?:local_)?learning_rate|compensation\.learning_rate|{_LR}", 1e-10, 100, "0.001 to 0.1 suits most methods"),
    PlausibleRange(r"(?:(?:\w+_)?optimizer\.|compensation\.)?momentum", 0, 0.99999, "steps grow without bound from 1 on: type 0.9"),
    PlausibleRange(r"(?:\w+_)?optimizer\.weight_decay", 0, 1, "it is relative to the weights: type 1e-4"),
    PlausibleRange(r"(?:\w+_)?optimizer\.eps", 0, 1, "it only avoids a division by zero: type 1e-8"),
    PlausibleRange(r"(?:\w+_)?optimizer\.alpha", 0, 1, "it is a share: type a number from 0 to 1"),
    PlausibleRange(r"optimizer\.buffer_size", 1, 1e5, "it is a number of pushes: type that of the workers"),
    PlausibleRange(r"optimizer\.(?:strength|caution)", 0, 1000, "type a number of about 1"),
    PlausibleRange(r"optimizer\.most", 0, 1, "it is a share: type a number from 0 to 1"),
    PlausibleRange(r"(?:local_)?learning_rate_schedule\.(?:.*\.)?gamma", 1e-4, 2, "it multiplies the rate: type 0.1 or 0.9"),
    # the workload
    PlausibleRange(r"phantom\.num_parameters|cluster\.model\.parameters", 1000, 1e14, _COUNT),
    PlausibleRange(r"(?:phantom|cluster\.model)\.bytes_per_parameter", 1, 16, "type 4 for float32, 2 for float16, 1 for float8"),
    PlausibleRange(r"(?:workload|phantom)\.num_samples", 1, 1e13, "it is the number of samples of the training set: lower it"),
    PlausibleRange(r"workload\.condition", 1, 1e12, "it is the largest over the smallest curvature: type 10"),
    PlausibleRange(r"workload\.noise", 0, 1e4, "it is the spread of the samples' optima: type 0.1"),
    PlausibleRange(r"workload\.context_length", 2, 1e5, "it is the number of characters of a sample: type 32"),
    PlausibleRange(r"workload\.width", 2, 1e5, "it is the width of the transformer: type 64"),
    PlausibleRange(r"workload\.num_(?:layers|heads)", 1, 500, "type a number below 100"),
    PlausibleRange(r"workload\.resize", 4, 5000, "it is the side of an image in pixels: type 224"),
    PlausibleRange(r"workload\.augmentation\.pad", 0, 500, "it is a number of pixels: type 4"),
    PlausibleRange(r"workload\.loader_workers", 0, 1000, "it is a number of processes of each rank: type 2"),
    PlausibleRange(r"partition\.alpha", 1e-4, 1e5, "it is the alpha of a Dirichlet distribution: type 0.5, or partition=even"),
    # the method
    PlausibleRange(r"coordination\.(?:period|pull_every|merge_every)", 1, 1e5 - 1, "it counts local steps or pushes: type 10"),
    PlausibleRange(r"coordination\.bucket_bytes", 100, 1e12, "plain numbers are bytes, so type a unit, such as 25MB"),
    PlausibleRange(r"coordination\.warm_up", 0, 1e8, "it is a number of updates: type 20"),
    PlausibleRange(r"coordination\.within(?:\.N)?", 1e-9, 1e6, "it is in seconds: lower it", " s"),
    PlausibleRange(r"coordination\.(?:trials(?:\.N)?|exchanges)", 1, 1e4, "it is a number of gradients for each version: type 2"),
    PlausibleRange(r"admission\.(?:size|batch|n|spares)", 0, 1e7, "it is a number of gradients, not of samples: lower it"),
    PlausibleRange(r"admission\.(?:bound|max_delay)", 0, 1e9, "it is a number of steps: lower it, or type null for no bound"),
    PlausibleRange(r"admission\.overlap", 0, 1e4, "it is a number of local steps: type 2"),
    PlausibleRange(r"allocation\.dead_band", 0, 1, "it is a relative difference: type 0.05 for 5 percent"),
    PlausibleRange(r"allocation\.eta", 0, 1000, "it is relative to the mean of a task's seconds: type 1"),
    PlausibleRange(r"allocation\.alpha", 0, 1e5, "it is in seconds: lower it", " s"),
    PlausibleRange(r"allocation\.(?:probes|recheck_steps)", 1, 1e7, "it is a number of updates: lower it"),
    PlausibleRange(r"compensation\.strength", 0, 1e4, "type a number of about 1"),
    PlausibleRange(r"compensation\.epsilon", 0, 1, "it only avoids a division by zero: type 1e-8"),
    PlausibleRange(r"compression\.threshold", 1e-12, 1e4, "it is in units of the gradient: type 0.03"),
    PlausibleRange(r"compression\.full_every", 2, 1e7, "it is a number of pushes: type 5, or compression=none"),
    PlausibleRange(r"discount\.exponent", 0, 20, "it is the a of (1 + staleness)^-a: type 0.5"),
    PlausibleRange(r"discount\.(?:slope|rate)", 0, 100, "type a number below 1"),
    PlausibleRange(r"discount\.(?:bound|cutoff)", 0, 1e8, "it is a number of versions: lower it"),
    # the cluster: compute
    PlausibleRange(r"cluster\..*seconds_per_sample|cluster\..*loading", 0, MAX_SECONDS_PER_SAMPLE, _SECONDS, " s"),
    PlausibleRange(r"cluster\..*(?:overhead|cold|first|program)_seconds", 0, 60, _SECONDS, " s"),
    PlausibleRange(r"cluster\..*seconds_per_(?:update|local_update|vector_operation)", 0, 60, _SECONDS, " s"),
    PlausibleRange(r"cluster\..*seconds_per_byte", 0, 1e-5, "plain numbers are seconds per byte, so type a unit, such as 0.1 ns/B", " s/B"),
    PlausibleRange(r"cluster\..*\.noise", 0.51, 3, _NOISE),
    PlausibleRange(r"cluster\..*\.slow_spells\.factor", 1.001, 1e5, "it multiplies times: type 2 for half the speed"),
    PlausibleRange(r"cluster\..*\.slow_spells\.seconds_(?:between|lasting)", 1e-6, 1e8, _SECONDS, " s"),
    PlausibleRange(r"cluster\..*\.speed", 1e-4, 1e4, "it is relative to cluster.reference: type 0.8 for 80 percent"),
    PlausibleRange(r"cluster\.catalogue\.factors\..*", 0.01, 100, "it multiplies the catalogue's seconds: type 1.1 for 10 percent more"),
    PlausibleRange(r"cluster\..*\.cost_per_hour", 0, 1e8, "it is the price of one node"),
    # the cluster: network and server
    PlausibleRange(r"cluster\..*latency_seconds", 0, 1, _SECONDS, " s"),
    PlausibleRange(r"cluster\.network\.jitter_seconds", 0, 1, _SECONDS, " s"),
    PlausibleRange(r"cluster\..*bytes_per_second", 1000, math.inf, _RATE, " B/s"),
    PlausibleRange(r"cluster\.(?:.*\.)?(?:network(?:\.up|\.down)?|each|inside(?:\.pairs|\.across)?)", 1000, math.inf, _RATE, " B/s"),
    PlausibleRange(r"cluster\..*\.oversubscription", 1, 1e4, "it divides the bandwidth of a rack's link: type 4 for a quarter"),
    PlausibleRange(r"cluster\.server\.shards", 1, 1e5, "it is a number of machines: lower it"),
    PlausibleRange(r"cluster\..*\.balance_seconds", 0, 10, _SECONDS, " s"),
    PlausibleRange(r"cluster\.network\.cpu\.\w+_seconds", 0, 10, _SECONDS, " s"),
    # the cluster: faults
    PlausibleRange(r"cluster\.faults\.(?:detection|regroup|lost_after)_seconds", 0, 1e5, _SECONDS, " s"),
    PlausibleRange(r"cluster\.faults\.checkpoint\.(?:every|(?:restart_)?seconds)", 0, 1e8, _SECONDS, " s"),
    PlausibleRange(r"cluster\.faults\..*\.seconds_to_(?:crash|repair)", 1e-6, 1e10, _SECONDS, " s"),
    # the backend
    PlausibleRange(r"backend\.heartbeat_seconds", 1e-3, 3600, _SECONDS, " s"),
    PlausibleRange(r"backend\.lost_after_seconds", 1e-2, 1e5, _SECONDS, " s"),
)
"""The plausible ranges of the keys with numbers. The keys of workload=phantom begin with phantom."""


class Described(NamedTuple):
    """A resolved config, and the cluster that it describes."""

    entries: Mapping[str, Any]
    cluster: Cluster


def implausible(entries: Mapping[str, Any], cluster: Cluster) -> list[str]:
    """The warnings about a resolved config that describes a run, and about its cluster: one sentence for each kind of mistake."""
    return [*out_of_range(entries), *_contradictions(Described(entries, cluster))]


def out_of_range(entries: Mapping[str, Any]) -> Iterator[str]:
    """The warnings about values outside their plausible ranges, one for each range."""
    mistakes: dict[PlausibleRange, list[tuple[str, str, float, bool]]] = {}
    referred = {rate: entries[rate] for rate in RATES if rate in entries}  # other keys have references to these, so they come first
    for key, kind, value in _numbers({**referred, **entries}, "", ""):
        plausible = _range_of(kind)
        if plausible is None:
            continue
        number = mean_of(value) if isinstance(value, Mapping) else value
        if not plausible.low <= number <= plausible.high:
            mistakes.setdefault(plausible, []).append((kind, key, number, isinstance(value, Mapping)))
    for plausible, places in mistakes.items():
        kind, key, number, is_mean = places[0]
        num_others = sum(place[0] == kind for place in places[1:])
        yield plausible.sentence(key, number, is_mean=is_mean, num_others=num_others)


@lru_cache(maxsize=10_000)
def _range_of(kind: str) -> PlausibleRange | None:
    return next((plausible for plausible in RANGES if re.fullmatch(plausible.keys, kind)), None)


def _numbers(config: Mapping[str, Any] | Sequence[Any], key: str, kind: str) -> Iterator[tuple[str, str, Any]]:
    """The numbers and distributions of a config: dotted name, the name with N for each position in a list, and value.

    Those of a mapping come before those of mappings in it. Classes of the user's own give their keys other meanings.
    """
    names = config.items() if isinstance(config, Mapping) else enumerate(config)
    below = []
    for name, value in names:
        place = f"{key}.{name}" if key else str(name)
        of_kind = f"{kind}.{'N' if isinstance(name, int) else name}" if kind else str(name)
        if isinstance(value, Mapping) and "distribution" in value:
            yield place, of_kind, value
        elif isinstance(value, Mapping | list | tuple):
            below.append((value, place, of_kind))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield place, of_kind, value
    for value, place, of_kind in below:
        target = str(value.get("_target_", "hetsim.")) if isinstance(value, Mapping) else "hetsim."
        if target.startswith(("hetsim.", "torch.")):
            yield from _numbers(value, place, "phantom" if target == PHANTOM else of_kind)


# Values that contradict each other


def _contradictions(run: Described) -> Iterator[str]:
    for contradiction in CONTRADICTIONS:
        sentence = next(contradiction(run), None)
        if sentence is not None:
            yield sentence


def _faults_without_schedule(run: Described) -> Iterator[str]:
    entries, cluster = run
    faults = entries["cluster"].get("faults") or {}
    names = [name for name, value in faults.items() if value is not None and name not in ("schedule", "file")]
    if names and not cluster.faults.nodes and not cluster.faults.pauses:
        yield (
            f"cluster.faults.{names[0]} does nothing, because no node is ever absent: add "
            "'+cluster.faults.schedule=[{nodes: [0], crash: 10 s, repair: 60 s}]'"
        )


def _seed_without_draws(run: Described) -> Iterator[str]:
    entries, cluster = run
    if not entries["seed"] or entries["workload"].get("_target_") != PHANTOM or entries.get("partition"):
        return
    ends: list[NodeSpec | Server] = [*cluster.nodes, cluster.server]
    draws = [cluster.network.jitter_seconds, cluster.network.sharing_noise]
    draws += [outages.seconds_to_crash for outages in cluster.faults.nodes.values()]
    if any(draws) or any(end.noise or end.cpu_quota_period_seconds for end in ends) or any(node.slow_spells for node in cluster.nodes):
        return
    yield (
        "seed does nothing, because neither workload=phantom nor the cluster draws random numbers: leave it out, or give the nodes a noise"
    )


def _seed_of_no_node(run: Described) -> Iterator[str]:
    entries = run.entries
    rows = [row for _, row in _rows(entries)]
    if entries["cluster"].get("seed") and not any(
        isinstance(value, Mapping) and name in DRAWN for row in rows for name, value in row.items()
    ):
        yield "cluster.seed does nothing, because no node has a drawn number: type seed=… for the seed of the run"


def _inside_slower_than_network(run: Described) -> Iterator[str]:
    entries = run.entries
    network = entries["cluster"].get("network")
    for index, machine in enumerate(entries["cluster"].get("machines") or ()):
        value = machine.get("network", network.get("bytes_per_second") if isinstance(network, Mapping) else network)
        key = f"cluster.machines.{index}"
        for place, row in _rows_of_machine(key, machine):
            inside = row.get("inside", machine.get("inside"))
            rate = min(inside.values()) if isinstance(inside, Mapping) else inside
            if rate is None or value is None:
                continue
            card = card_of(f"{key}.network", value)
            outside = min(card.up, card.down) / card.num_cards
            if 4 * rate < outside or rate < min(outside, SLOW_INSIDE):
                yield (
                    f"{place if 'inside' in row else key}.inside is {rate:g} B/s, slower than the network card's {outside:g} B/s, which is "
                    "probably a mistake: type inside=12GB/s for PCIe 3, or 300GB/s for NVLink"
                )


def _memory_below_micro_batch(run: Described) -> Iterator[str]:
    entries = run.entries
    for key, row in _rows(entries):
        bound, micro_batch = row.get("max_samples"), row.get("micro_batch")
        if micro_batch is None:
            continue
        if bound is not None and bound < micro_batch:
            yield (
                f"{key}.max_samples={bound} is below micro_batch={micro_batch}, so no pass has this many samples: leave max_samples out, "
                "because micro_batch bounds the memory"
            )
        elif micro_batch > entries["batch_size"]:
            yield f"{key}.micro_batch={micro_batch} does nothing, because it is above batch_size={entries['batch_size']}: lower it"


def _long_spells(run: Described) -> Iterator[str]:
    entries = run.entries
    for key, row in _rows(entries):
        spells = row.get("slow_spells")
        between, lasting = (_mean(spells[name]) for name in ("seconds_between", "seconds_lasting")) if spells else (1.0, 0.0)
        if lasting > 100 * between:
            yield (
                f"{key}.slow_spells last {lasting:g} s every {between:g} s, so the node is always slow: raise seconds_between, or raise "
                "seconds_per_sample instead"
            )


def _falling_tables(run: Described) -> Iterator[str]:
    entries = run.entries
    network = entries["cluster"].get("network")
    tables = [(f"{key}.table", row.get("table")) for key, row in _rows(entries)]
    if isinstance(network, Mapping):
        tables.append(("cluster.network.all_reduce_table", network.get("all_reduce_table")))
    for key, table in tables:
        for (few, more_seconds), (many, seconds) in pairwise(table or ()):
            if 2 * seconds < more_seconds:
                yield f"{key} falls from {more_seconds:g} s for {few} to {seconds:g} s for {many}, which is probably a mistake: {_SECONDS}"


def _unequal_units(run: Described) -> Iterator[str]:
    entries = run.entries
    times = sorted((_mean(row["seconds_per_sample"]), key) for key, row in _rows(entries) if row.get("seconds_per_sample") is not None)
    if times and MAX_RATIO * times[0][0] < times[-1][0] <= MAX_SECONDS_PER_SAMPLE:
        yield (
            f"{times[-1][1]}.seconds_per_sample is {times[-1][0]:g} s and that of {times[0][1]} {times[0][0]:g} s, which is probably a "
            f"mistake: {_SECONDS}"
        )


def _speeding_slowdown(run: Described) -> Iterator[str]:
    cluster = run.cluster
    nodes = {id(node): (rank, node) for rank, node in reversed([*enumerate(cluster.nodes)])}
    links: list[tuple[str, LinkSlowdown | None]] = [
        (f"the link_slowdown of node {rank}", node.link_slowdown) for rank, node in nodes.values()
    ]
    links.append(("cluster.server.link_slowdown", cluster.server.link_slowdown))
    links += [(f"cluster.network.racks.{name}.link_slowdown", rack.link_slowdown) for name, rack in cluster.network.racks.items()]
    recorded = [(f"the slowdown of node {rank}", node.slowdown) for rank, node in nodes.values()]
    for label, points in [*recorded, *((label, slowdown.points) for label, slowdown in links if slowdown)]:
        factors = [factor for _, factor in points]
        if factors and max(factors) <= 1 and min(factors) < 1:
            yield (
                f"{label} has no factor above 1, so it only makes faster, which is probably a mistake: a factor of 2 means half the speed, "
                "so write 1 / speed"
            )


def _costly_checkpoints(run: Described) -> Iterator[str]:
    cluster = run.cluster
    checkpoint = cluster.faults.checkpoint
    if checkpoint is not None and checkpoint.seconds > checkpoint.every:
        yield (
            f"cluster.faults.checkpoint.every is {checkpoint.every:g} s and a checkpoint takes {checkpoint.seconds:g} s, so the run mostly "
            "saves: type every=30min"
        )


def _crash_before_detection(run: Described) -> Iterator[str]:
    entries, cluster = run
    for index, row in enumerate((entries["cluster"].get("faults") or {}).get("schedule") or ()):
        crash = row.get("seconds_to_crash")
        if crash is not None and _mean(crash) < cluster.faults.detection_seconds:
            yield (
                f"cluster.faults.schedule.{index}.seconds_to_crash has the mean {_mean(crash):g} s, less than detection_seconds="
                f"{cluster.faults.detection_seconds:g}, so the next crash comes before the last one is noticed: raise it"
            )


def _moved_at_once(run: Described) -> Iterator[str]:
    entries = run.entries
    step = entries["allocation"].get("step")
    if isinstance(step, int) and _is_shipped(entries["allocation"]) and step >= entries["batch_size"]:
        yield f"allocation.step={step} moves the whole batch_size={entries['batch_size']} to another worker: type allocation.step=5"


def _nothing_compressed(run: Described) -> Iterator[str]:
    entries = run.entries
    compression = entries["compression"]
    if _is_shipped(compression) and "keep" in compression and compression["keep"] == compression.get("chunk"):
        yield (
            f"compression.keep={compression['keep']} sends all numbers of a chunk and their positions, more than compression=none does: "
            "type compression.keep=64"
        )


def _parts_of_a_gradient(run: Described) -> Iterator[str]:
    entries = run.entries
    micro_batch = entries["backend"].get("micro_batch")
    if isinstance(micro_batch, int) and micro_batch > entries["batch_size"]:
        yield f"backend.micro_batch={micro_batch} does nothing, because it is above batch_size={entries['batch_size']}: lower it"


CONTRADICTIONS: tuple[Callable[[Described], Iterator[str]], ...] = (
    _faults_without_schedule,
    _seed_without_draws,
    _seed_of_no_node,
    _inside_slower_than_network,
    _memory_below_micro_batch,
    _long_spells,
    _falling_tables,
    _unequal_units,
    _speeding_slowdown,
    _costly_checkpoints,
    _crash_before_detection,
    _moved_at_once,
    _nothing_compressed,
    _parts_of_a_gradient,
)
"""The contradictions between values. A run reports the first sentence of each."""


def _rows(entries: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows that describe nodes, with their keys: those of `nodes`, or of the GPUs in `machines`."""
    cluster = entries["cluster"]
    for index, machine in enumerate(cluster.get("machines") or ()):
        yield from _rows_of_machine(f"cluster.machines.{index}", machine)
    if not cluster.get("machines"):
        yield from ((f"cluster.nodes.{index}", row) for index, row in enumerate(cluster.get("nodes") or ()))


def _rows_of_machine(key: str, machine: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    gpus = machine.get("gpus")
    if isinstance(gpus, list):
        yield from ((f"{key}.gpus.{index}", row) for index, row in enumerate(gpus))
    else:
        yield (key, machine) if gpus is None else (f"{key}.gpus", gpus)


def _is_shipped(part: Mapping[str, Any]) -> bool:
    return str(part.get("_target_")).startswith("hetsim.")


def _mean(value: Any) -> float:
    return mean_of(value) if isinstance(value, Mapping) else float(value)
