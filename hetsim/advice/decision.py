"""An advice as a sentence: the recommended command, nodes and split, the gain over plain DDP, and the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hetsim.advice.candidates import Candidate
from hetsim.advice.question import AdviceQuestion
from hetsim.catalogue.tables import OWN
from hetsim.catalogue.times import SPREAD
from hetsim.cluster.fewer import without
from hetsim.cluster.model import MACHINE, Cluster
from hetsim.cluster.parse.values import LINKS
from hetsim.config.resolved import number_in_words
from hetsim.policies.allocation.base import proportional
from hetsim.results.writing.describe import duration, listed_in_words, numbers_in_words

PHANTOM = "A phantom trains nothing: workload=own (docs/guide/own-workload.md) or a shipped workload says how fast the loss falls."

BETWEEN = "way between two nodes"
MOST_KINDS = 8
"""The maximum number of kinds of nodes to list. For more kinds, only the smallest and the largest share are given."""


class StepParts(NamedTuple):
    """The parts of a step in seconds: until the slowest node has computed, and the rest, for the network or an update."""

    compute: float
    network: float


def step_parts(step_seconds: float, per_worker: Sequence[dict[str, float]]) -> StepParts:
    """The parts of a synchronous run's mean step, from the mean gradient of the slowest node."""
    slowest = max((worker["compute_seconds"] / worker["iterations"] for worker in per_worker if worker["iterations"]), default=0.0)
    return StepParts(min(slowest, step_seconds), max(0.0, step_seconds - slowest))


Names = Mapping[str, Sequence[int]]
"""The ranks of each GPU that is named on the command line, by its title."""


def what_to_do(candidate: Candidate, cluster: Cluster, names: Names) -> str:
    """An instruction, without a full stop. On a single node, all methods that train as DDP does are one."""
    num_nodes, out = cluster.num_workers, candidate.leave_out
    kept = kept_nodes(candidate, cluster)
    split = f" with allocation={candidate.allocation}" if candidate.allocation else ""
    run = "run" if len(kept) == 1 and candidate.synchronous else f"run {candidate.method.name}{split}"
    if num_nodes > 1 and not out:
        return f"keep {all_nodes(num_nodes, names)} and {run}"
    leave = f"leave out {nodes_in_words(out, cluster, names)} and " if out else ""
    return f"{leave}{run} on {nodes_in_words(kept, cluster, names)}{' alone' if len(kept) == 1 else ''}"


def kept_nodes(candidate: Candidate, cluster: Cluster) -> list[int]:
    """The ranks of the nodes that take part."""
    return [rank for rank in range(cluster.num_workers) if rank not in candidate.leave_out]


def all_nodes(num: int, names: Names) -> str:
    """All nodes in words, for at least two nodes."""
    noun = "GPUs" if sum(map(len, names.values())) == num else "nodes"
    return f"both {noun}" if num == 2 else f"all {num} {noun}"


def label(candidate: Candidate, cluster: Cluster, names: Names) -> str:
    """The candidate's label, with the nodes that are left out in words."""
    if not candidate.leave_out:
        return candidate.label
    return f"{replace(candidate, leave_out=()).label}, without {nodes_in_words(candidate.leave_out, cluster, names)}"


def nodes_in_words(ranks: Sequence[int], cluster: Cluster, names: Names) -> str:
    """Ranks in words: named GPUs by their titles, such as `the two L4 and two of the four T4 (nodes 2 and 3)`, other nodes by number."""
    some = set(ranks)
    phrases = [_gpus(name, chosen, of_name) for name, of_name in names.items() if (chosen := [rank for rank in of_name if rank in some])]
    others = sorted(some.difference(*names.values()))
    return listed_in_words([*phrases, *([machines(others, cluster)] if others else [])])


def _gpus(name: str, ranks: Sequence[int], of_name: Sequence[int]) -> str:
    """GPUs of one name: all of them, or some with their numbers."""
    every = f"the {number_in_words(len(of_name))} {name}" if len(of_name) > 1 else f"the {name}"
    return every if len(ranks) == len(of_name) else f"{number_in_words(len(ranks))} of {every} ({noun_with_numbers('node', ranks)})"


def machines(ranks: Sequence[int], cluster: Cluster) -> str:
    """Ranks in words. Whole machines with several GPUs are named by number: machine 1 (nodes 2 to 5) and node 7."""
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(cluster.nodes):
        if (number := _machine(node.rack)) is not None:
            members.setdefault(number, []).append(rank)
    some = set(ranks)
    full_machines = {number: nodes for number, nodes in members.items() if some.issuperset(nodes)}
    inside = [rank for nodes in full_machines.values() for rank in nodes]
    others = sorted(some.difference(inside))
    named = [f"{noun_with_numbers('machine', list(full_machines))} ({noun_with_numbers('node', inside)})"] if full_machines else []
    return " and ".join([*named, *([noun_with_numbers("node", others)] if others else [])])


def _machine(rack: str | None) -> int | None:
    """The number of the machine with this rack name; None for other racks."""
    number = (rack or "").removeprefix(MACHINE)
    return int(number) if rack == f"{MACHINE}{number}" and number.isdecimal() else None


def noun_with_numbers(noun: str, numbers: Sequence[int]) -> str:
    """Numbers in words: node 3; nodes 2 to 5; nodes 0, 1, 4 and 7."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {numbers_in_words(numbers)}"


def gain_reason(candidate: Candidate, cluster: Cluster, ddp_step: StepParts, step: StepParts | None) -> str:
    """The reason: the part of plain DDP's step that the candidate reduces most. `step` is None if the candidate does not wait for all."""
    total = ddp_step.compute + ddp_step.network
    if step is None:
        share = (
            f"{100 * ddp_step.network / total:.0f} % of it for the network" if ddp_step.network > 0.1 * total else "for the slowest node"
        )
        return f"because a step of plain DDP takes {duration(total)}, {share}, and this method does not wait for all nodes in every step"
    if ddp_step.network - step.network > ddp_step.compute - step.compute:
        alone = cluster.num_workers - len(candidate.leave_out) == 1 and candidate.synchronous
        return f"because in plain DDP {_link(candidate, cluster)} takes {duration(ddp_step.network)} of each step's {duration(total)}; " + (
            "one node needs no network" if alone else f"in this setup the network takes {duration(step.network)}"
        )
    return (
        f"because in plain DDP each step waits {duration(ddp_step.compute)} for the slowest node's gradient; "
        f"in this setup it waits {duration(step.compute)}"
    )


def why_some(least_step: float) -> str:
    """Why some of several equal nodes are left out. `least_step` is a bound in seconds for all of them, and for none of them."""
    return f"Some equal nodes are left out, because a step with all of them or without them takes at least {duration(least_step)}."


def _link(candidate: Candidate, cluster: Cluster) -> str:
    """The slowest link around all nodes, if the candidate's nodes have a faster one, or else the network."""
    (rate, link), (faster, _) = slowest_link(cluster), slowest_link(without(cluster, candidate.leave_out))
    return f"the {bits(rate)} {link}" if rate < 0.999 * faster else "the network"


def slowest_link(cluster: Cluster) -> tuple[float, str]:
    """The rate of the slowest pair of neighbours around the ring in bytes per second, and its bottleneck."""
    slowest = (math.inf, "")
    num = cluster.num_workers
    for sender in range(num if num > 1 else 0):
        path = cluster.path(sender, (sender + 1) % num)
        slowest = min(slowest, (path.bytes_per_second, BETWEEN))
        for _, owner in path.links:
            rate = min(cluster.capacity((direction, owner)) for direction, link_owner in path.links if link_owner == owner)
            slowest = min(slowest, (rate, _link_name(owner)))
    return slowest


def _link_name(owner: int | str) -> str:
    if isinstance(owner, int):
        return f"link of node {owner}"
    if owner.startswith("way "):
        return BETWEEN
    number = _machine(owner.removeprefix("rack "))
    return f"uplink of {owner}" if number is None else f"network card of machine {number}"


def assumptions(question: AdviceQuestion) -> Iterator[str]:
    """Sentences on values that the question does not give: hetsim assumes them, or the catalogue has them."""
    experiment, named = question.experiment, question.named
    if not question.typed("cluster"):
        yield f"cluster={experiment.cluster.name} is taken, as no cluster is typed: add cluster=NAME, or your GPUs, such as '2*a100 + 4*t4'"
    if not (question.timing or experiment.workload.has_model) and named is None:
        yield f"workload={experiment.workload.name} trains nothing, so all are ranked by time alone, as with timing"
    server = experiment.cluster.server
    if not server.assumed.isdisjoint(LINKS) and any(Candidate(method).needs_server for method in question.methods):
        rates = dict.fromkeys((server.uplink_bytes_per_second, server.downlink_bytes_per_second))
        card = " up, ".join(bits(rate) for rate in rates if rate is not None)
        place = "" if server.rack is None else f" in rack {server.rack}"
        yield (
            f"a server on a machine of its own{place} with a {card} network card is assumed for methods with a parameter server "
            "(cluster.server)"
        )
    if named is not None:
        yield from map(str, named.times.values())
        if any(times.series[0] != OWN for times in named.times.values()):
            yield f"a program of your own {SPREAD}"


def unmeasured_remark(cluster: Cluster, names: Names, *candidates: tuple[Candidate, Sequence[int]]) -> str | None:
    """A sentence on nodes whose samples in a candidate, in rank order, are outside their table of seconds; None if there are none."""
    few: dict[int, int] = {}
    many: dict[int, int] = {}
    for candidate, batch_sizes in candidates:
        for rank, batch in zip(kept_nodes(candidate, cluster), batch_sizes, strict=False):
            table, samples = cluster.nodes[rank].table, min(batch, cluster.nodes[rank].micro_batch or batch)
            if table and 0 < samples < table[0][0]:
                few[rank] = min(samples, few.get(rank, samples))
            if table and samples > table[-1][0]:
                many[rank] = max(samples, many.get(rank, samples))
    remarks = []
    if few:
        least = {cluster.nodes[rank].table[0][0] for rank in few}
        remarks.append(
            f"{nodes_in_words(sorted(few), cluster, names)} would take as few as {min(few.values())} samples, fewer than measured "
            f"({' and '.join(map(str, sorted(least)))}): hetsim assumes that a smaller batch takes as long as the smallest measured one"
        )
    if many:
        most = {cluster.nodes[rank].table[-1][0] for rank in many}
        remarks.append(
            f"{nodes_in_words(sorted(many), cluster, names)} would take as many as {max(many.values())} samples, more than measured "
            f"({' and '.join(map(str, sorted(most)))}): hetsim assumes that further samples take as long as the last measured ones"
        )
    return "; ".join(remarks) or None


def loss_hint(question: AdviceQuestion) -> str:
    """How to compare how fast the loss falls, for a ranking by time alone."""
    if not question.experiment.workload.has_model:
        return PHANTOM
    return "Ask without timing." if question.timing else "Ask again, with more time."


UNKNOWN_PARTS = "Fixed(parts=[…])"


def script_hint(candidate: Candidate, *, num_nodes: int, batch_size: int) -> str:
    """How to train your own model with the candidate, on this number of nodes."""
    if num_nodes == 1 and candidate.synchronous:
        return "train with it: your own script, which needs no DistributedDataParallel there"
    return f"train with it: {team(candidate, batch_size)}, in your own script (docs/guide/your-loop.md)"


def team(candidate: Candidate, batch_size: int, parts: str | None = None) -> str:
    """Python code for a script that trains with the candidate. `parts` is code for a fixed split, in rank order."""
    if candidate.method.choices["coordination"] == "hierarchical":
        return "hetsim.Team.from_config(model, optimizer, …), with the words of the command"
    arguments = ["model", "optimizer", f"batch_size={batch_size}"]
    if candidate.method.name != "ddp":
        arguments.append(f'method="{candidate.method.name}"')
    allocation = candidate.allocation or candidate.method.choices.get("allocation", "even")
    if parts is not None:
        arguments.append(f"allocation=hetsim.policies.allocation.Fixed(parts={parts})")
    elif allocation == "static":  # which measures before a run
        arguments.append(f"allocation=hetsim.policies.allocation.{UNKNOWN_PARTS}")
    elif candidate.allocation not in (None, "even"):
        arguments.append(f'allocation="{candidate.allocation}"')
    return f"hetsim.Team({', '.join(arguments)})"


def bits(rate: float) -> str:
    """A rate in bytes per second as bits, such as 1 Gbit/s."""
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if 8 * rate >= size:
            return f"{8 * rate / size:.3g} {unit}"
    return f"{8 * rate:.3g} bit/s"


@dataclass(frozen=True)
class AdvisedSplit:
    """An unequal split of each batch."""

    batch_sizes: tuple[int, ...]
    """The samples of each participating node, in rank order."""
    sentence: str
    """A sentence with the samples of each kind of node."""
    script: str | None
    """Python code that fixes the split in a script; None if the method does not train as DDP does."""


def advised_split(candidate: Candidate, batch_sizes: Sequence[int], cluster: Cluster, names: Names) -> AdvisedSplit | None:
    """The split of a candidate; None if all nodes take equally many samples, give or take one.

    Args:
        candidate: what was simulated.
        batch_sizes: the samples of each node that took part, in rank order, at the end of the simulated run.
        cluster: all nodes.
        names: the named GPUs.
    """
    batch = sum(batch_sizes)
    if not batch_sizes or tuple(batch_sizes) == proportional([1.0] * len(batch_sizes), batch):
        return None
    kept = kept_nodes(candidate, cluster)
    shares = dict(zip(kept, batch_sizes, strict=True))
    listed = list(_kinds(cluster, shares, names))
    if len(listed) > MOST_KINDS:
        few, many = min(kept, key=shares.__getitem__), max(kept, key=shares.__getitem__)
        listed = [f"{shares[few]} (node {few}) to {shares[many]} (node {many})"]
    script = None
    if candidate.synchronous and min(batch_sizes) > 0:
        script = f"team = {team(candidate, batch, _python_list(batch_sizes))}"
    return AdvisedSplit(tuple(batch_sizes), f"Of each batch of {batch} samples: {', '.join(listed)}.", script)


def _kinds(cluster: Cluster, shares: Mapping[int, int], names: Names) -> Iterator[str]:
    """The share of each kind of node. A kind is a named GPU, or nodes with equal descriptions."""
    remaining = dict.fromkeys(shares)
    for name, ranks in names.items():
        if some := [rank for rank in ranks if rank in remaining]:
            yield f"{_amount(shares, some)} for {'each' if len(some) > 1 else 'the'} {name}"
        remaining = {rank: None for rank in remaining if rank not in some}
    while remaining:
        node = replace(cluster.nodes[next(iter(remaining))], rack=None)
        some = [rank for rank in remaining if replace(cluster.nodes[rank], rack=None) == node]
        yield f"{_amount(shares, some)} for {'each of ' if len(some) > 1 else ''}{noun_with_numbers('node', some)}"
        remaining = {rank: None for rank in remaining if rank not in some}


def _amount(shares: Mapping[int, int], ranks: Sequence[int]) -> str:
    low, high = (pick(shares[rank] for rank in ranks) for pick in (min, max))
    return str(low) if low == high else f"{low} {'or' if high == low + 1 else 'to'} {high}"


def _python_list(numbers: Sequence[int]) -> str:
    """Numbers as Python code. Equal neighbours are combined if that is shorter."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    by_run = " + ".join(f"[{run[0]}] * {len(run)}" if len(run) > 1 else str(run) for run in runs)
    return min(str([*numbers]), by_run, key=len)
