"""What an advice says: machines and links by their names, the commands in order, and what was assumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from here import Here, text
from worlds import experiment

from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.answer import answer
from hetsim.advice.candidates import Candidate, baseline
from hetsim.advice.decision import assumptions, bits, label, machines, noun_with_numbers, script_hint, slowest_link, what_to_do
from hetsim.advice.question import asked
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.methods import shipped

METHODS = {method.name: method for method in shipped()}
BOXES = (
    *("cluster=mixed4", "~cluster.nodes", "~cluster.network", "~cluster.server"),
    "+cluster.machines=[{gpus: {count: 2, seconds_per_sample: 2.5e-3}, inside: 3e11, network: 1 Gbit/s}, "
    "{gpus: {count: 4, seconds_per_sample: 12.5e-3}, inside: 1.2e10, network: 1 Gbit/s}]",
)
PHANTOM = ("workload=phantom", "workload.num_parameters=25.6M", "workload.num_samples=3840", "batch_size=384", "budget.epochs=1")


def advised(*words: str) -> AdviceFindings:
    return advice(asked([*BOXES, *PHANTOM, *words], None), Here(), lambda _: None)


def test_numbers_and_rates_are_said_in_words() -> None:
    assert [noun_with_numbers("node", ranks) for ranks in ((3,), (2, 3, 4, 5), (0, 1), (0, 2, 3, 4, 7))] == [
        *("node 3", "nodes 2 to 5", "nodes 0 and 1", "nodes 0, 2 to 4 and 7")
    ]
    assert [bits(rate) for rate in (1.25e8, 1.25e9, 1e6, 12.5)] == ["1 Gbit/s", "10 Gbit/s", "8 Mbit/s", "100 bit/s"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ssgd", "asgd"])
def test_plain_ddp_is_recommended_if_nothing_is_faster(method: str) -> None:
    """Of the named methods, on two equal nodes: SSGD reduces after the backward pass, and ASGD sends all to a server."""
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-2, overhead_seconds: 0}]"
    found = advice(asked(["cluster=mixed4", nodes, *PHANTOM, f"method={method}", "timing"], None), Here(), lambda _: None)

    assert found.sentence == "Keep both nodes and run ddp: nothing here is clearly faster than plain DDP on both nodes."
    assert found.best.candidate.method.name == method
    assert found.recommended is found.baseline
    assert "method=ddp" in text(found)
    assert f"method={method}" not in text(found)
    assert "fastest of all" not in text(found)
    assert "fastest by time alone" not in text(found)


@pytest.mark.slow
def test_one_candidate_has_no_picture() -> None:
    """Its method is named once."""
    nodes = "cluster.nodes=[{count: 2, seconds_per_sample: 1e-2, overhead_seconds: 0}]"
    found = advice(asked(["cluster=mixed4", nodes, *PHANTOM, "method=ddp", "timing"], None), Here(), lambda _: None)

    assert {row.label for row in (*found.rows, found.baseline)} == {"ddp"}
    assert answer(found).pictures[0].draw() is None


@pytest.mark.parametrize(
    ("out", "order", "name"),
    [
        ((), "keep all 8 GPUs and run ddp", "ddp"),
        ((3, 4, 5, 6, 7), "leave out the five T4 and run ddp on the RTX 3090 and the two L4", "ddp, without the five T4"),
        (
            (1, 2, 3, 4, 5, 6, 7),
            "leave out the two L4 and the five T4 and run on the RTX 3090 alone",
            "ddp, without the two L4 and the five T4",
        ),
        (
            (0, 6, 7),
            "leave out the RTX 3090 and two of the five T4 (nodes 6 and 7) "
            "and run ddp on the two L4 and three of the five T4 (nodes 3 to 5)",
            "ddp, without the RTX 3090 and two of the five T4 (nodes 6 and 7)",
        ),
    ],
)
def test_named_gpus_are_called_by_their_names(out: tuple[int, ...], order: str, name: str) -> None:
    """Some of several equal ones also by the numbers of their nodes. Without names, all nodes have numbers."""
    question = asked(["3090 + 2*l4 + 5*t4", "model=resnet50", "network=1e9"], None)
    candidate, cluster = replace(baseline(), leave_out=out), question.experiment.cluster

    assert what_to_do(candidate, cluster, question.gpus) == order
    assert label(candidate, cluster, question.gpus) == name
    assert "T4" not in label(candidate, cluster, {})
    assert question.batches == "batches of 256 (the default)"
    alone = what_to_do(replace(candidate, leave_out=(0, 1, 2, 4, 5, 6, 7)), cluster, {})
    assert alone.endswith(" and run on node 3 alone")


def test_a_cluster_that_was_not_typed_is_said() -> None:
    unsaid, said = (list(assumptions(asked([*words, *PHANTOM, "timing"], None))) for words in ((), ("cluster=mixed4",)))

    assert unsaid[0].startswith("cluster=mixed4 is taken, as no cluster is typed: add cluster=NAME, or your GPUs")
    assert unsaid[1:] == said


def test_whole_machines_are_named_by_their_number() -> None:
    """Others, machines with one GPU and racks by the ranks of their nodes."""
    gpus: dict[str, Any] = {"gpus": {"count": 2, "seconds_per_sample": 1}, "inside": 1e9, "network": 1e8}
    one = {"seconds_per_sample": 1, "network": 2e8, "rack": "machinery"}
    cluster = parse_cluster({"name": "some", "machines": [{**gpus, "count": 2}, one, gpus], "network": {"racks": {"machinery": {}}}})

    assert machines((0, 1), cluster) == "machine 0 (nodes 0 and 1)"
    assert machines((0, 1, 2, 3, 4), cluster) == "machines 0 and 1 (nodes 0 to 3) and node 4"
    assert machines((1, 2), cluster) == "nodes 1 and 2"
    assert machines((4, 5, 6), cluster) == "machine 3 (nodes 5 and 6) and node 4"
    assert slowest_link(cluster) == (1e8, "network card of machine 0")


@pytest.mark.slow
def test_a_phantom_is_timed_whether_timing_is_typed_or_not() -> None:
    """Only the remark differs. Its command is a rehearsal, before that of the fastest."""
    typed, found = text(advised("method=ddp,diloco", "timing")).splitlines(), text(advised("method=ddp,diloco")).splitlines()

    assert [line for line in found if line not in typed] == [
        "workload=phantom trains nothing, so all are ranked by time alone, as with timing"
    ]
    assert found[0].startswith("Leave out machine 1 (nodes 2 to 5) and run ddp on machine 0 (nodes 0 and 1): ")
    assert ", because in plain DDP the 1 Gbit/s network card of machine 0 takes " in found[0]
    assert any(": time for 1 epoch of 3840 samples, batches of 384, by " in line for line in found)
    assert "Ask without timing" not in "".join(typed)
    assert "assumed" not in "".join(found)


def test_a_card_that_nobody_described_is_named_with_the_rack_of_the_server() -> None:
    """Also where the cluster says in which rack the server stands."""
    words = (
        "cluster=machines",
        "+cluster.machines.0.rack=a",
        "+cluster.network.racks={a: {}}",
        "+cluster.server.rack=a",
        "workload=phantom",
    )

    assert list(assumptions(asked(["method=ddp,asgd", "timing", *words], None))) == [
        "a server on a machine of its own in rack a with a 1 Gbit/s network card is assumed for methods with a parameter server "
        "(cluster.server)"
    ]
    assert not [*assumptions(asked(["method=ddp,asgd", "timing", *words, "+cluster.server.network=1Gbit/s"], None))]
    assert not [*assumptions(asked(["method=ddp,hetgrad", "timing", *words], None))]


@pytest.mark.slow
def test_the_recommended_command_is_before_the_fastest() -> None:
    found = advised("method=ddp,asgd", "timing")
    gain = replace(found.recommended.gain, mean=99.0)
    asgd = replace(found.baseline, candidate=Candidate(METHODS["asgd"]), command="hetsim method=asgd", gain=gain)
    lines = text(replace(found, rows=(asgd, *found.rows))).splitlines()

    assert "a server on a machine of its own with a 1 Gbit/s network card is assumed for methods with a parameter server" in text(found)
    assert [line.split(": ")[0] for line in lines[-3:]] == [
        *("rehearse it, padded and without a model", "train with it", "the fastest, which trains differently")
    ]
    real = text(replace(found, rows=(asgd, *found.rows), trains=True)).splitlines()
    assert [line.split(": ")[0] for line in real[-2:]] == ["run it", "the fastest, which trains differently"]


def test_each_method_is_a_line_of_a_script_of_ones_own() -> None:
    said = {name: script_hint(Candidate(METHODS[name]), num_nodes=2, batch_size=64) for name in METHODS}

    assert said["ddp"] == "train with it: hetsim.Team(model, optimizer, batch_size=64), in your own script (docs/guide/your-loop.md)"
    assert 'hetsim.Team(model, optimizer, batch_size=64, method="asgd"), in' in said["asgd"]
    assert "hetsim.Team.from_config(" in said["halos"]
    assert 'batch_size=64, allocation="dbs")' in script_hint(Candidate(METHODS["ddp"], "dbs"), num_nodes=2, batch_size=64)
    assert script_hint(Candidate(METHODS["ddp"]), num_nodes=1, batch_size=64).startswith("train with it: your own script, ")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(8)
def test_which_methods_have_a_server_is_what_their_programs_say(name: str) -> None:
    assert experiment(f"method={name}", "workload=phantom").coordination.needs_server == Candidate(METHODS[name]).needs_server
