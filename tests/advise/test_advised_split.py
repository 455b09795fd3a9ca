"""How an advice says what each node takes of a batch: in a sentence, as data, on the page, and as a line of Python."""

from __future__ import annotations

import json

import pytest
from here import Here, last_of_each, text

from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.answer import answer
from hetsim.advice.candidates import Candidate, baseline
from hetsim.advice.decision import AdvisedSplit, advised_split
from hetsim.advice.question import asked
from hetsim.advice.simulated import experiment_of
from hetsim.answers.html import document
from hetsim.answers.text import as_json
from hetsim.config.methods import shipped
from hetsim.policies.allocation import Fixed

METHODS = {method.name: method for method in shipped()}
SPEEDS = (
    "cluster.nodes=[{count: 2, seconds_per_sample: 1e-3, overhead_seconds: 0}, {count: 4, seconds_per_sample: 3e-3, overhead_seconds: 0}]"
)
LONE = (
    "cluster.nodes=[{count: 3, seconds_per_sample: 1e-3, overhead_seconds: 0}, {count: 1, seconds_per_sample: 2e-3, overhead_seconds: 0}]"
)


def found_for(*words: str) -> AdviceFindings:
    """By time alone, with a small phantom."""
    small = ("workload=phantom", "workload.num_parameters=100", "workload.num_samples=4000", "budget.epochs=10")
    return advice(asked(last_of_each(*small, *words), None), Here(), lambda _: None)


def split(
    *batch_sizes: int, words: tuple[str, ...] = ("cluster=mixed4", SPEEDS), out: tuple[int, ...] = (), **gpus: tuple[int, ...]
) -> AdvisedSplit:
    """The split of DDP without some nodes."""
    cluster = experiment_of([*words, "workload=phantom", "backend=sim"], None).cluster
    found = advised_split(Candidate(METHODS["ddp"], "dbs", out), batch_sizes, cluster, gpus)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [SPEEDS, LONE], ids=["two kinds", "a slow one"])
@pytest.mark.parametrize("method", ["ddp,hetgrad", "optperf", "dbs_sgd"])
@pytest.mark.sampled(3)
def test_the_parts_are_the_batch(cluster: str, method: str) -> None:
    """Of every row that is reported, whatever nodes it leaves out; the fast take more. What is printed makes the same split."""
    found = found_for("cluster=mixed4", cluster, f"method={method}", "batch_size=250", "cluster.network.bytes_per_second=1e9")

    for row in (*found.rows, found.baseline):
        assert sum(row.batch_sizes) == 250
        assert len(row.batch_sizes) == found.num_nodes - len(row.candidate.leave_out)
    its = found.split
    assert its is not None
    assert its.batch_sizes == found.recommended.batch_sizes
    assert max(its.batch_sizes) == its.batch_sizes[0] > 1.5 * its.batch_sizes[-1]
    assert text(found).splitlines()[1] == its.sentence
    assert its.sentence.startswith("Of each batch of 250 samples: ")
    assert json.loads(as_json(answer(found)))["split"]["batch_sizes"] == [*its.batch_sizes]
    assert its.sentence in document(answer(found, "hetsim-advise"), "hetsim-advise")
    if method == "dbs_sgd":  # waits for no other node, so no split of DDP is the same
        assert its.script is None
    else:
        assert its.script is not None
        assert text(found).splitlines()[-1].endswith(its.script)
        made: dict[str, object] = {"Fixed": Fixed}
        parts = eval(its.script.rpartition("Fixed(parts=")[2].removesuffix("))"), made)
        assert Fixed(parts=parts).initial(len(parts), 250) == its.batch_sizes


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [1000, 4001])
def test_a_smaller_last_batch_does_not_decide_the_split(num_samples: int) -> None:
    """Equal nodes have equal shares, give or take one, also of a data set with less than three batches."""
    words = (
        "cluster=mixed4",
        SPEEDS.replace("overhead_seconds: 0", "overhead_seconds: 0.05"),
        "method=ddp",
        "allocation=dbs",
        "++cluster.leave_out=[]",
    )
    sizes = found_for(*words, "batch_size=385", f"workload.num_samples={num_samples}", "budget.epochs=1").recommended.batch_sizes

    assert sum(sizes) == 385
    assert max(sizes[:2]) - min(sizes[:2]) <= 1
    assert max(sizes[2:]) - min(sizes[2:]) <= 1
    assert min(sizes[:2]) > 1.2 * max(sizes[2:])


def test_kinds_are_gpus_by_name_or_nodes_by_number() -> None:
    """Shares that differ within a kind are a range; nodes that are left out are not named."""
    assert (
        split(78, 78, 57, 57, 57, 57).sentence == "Of each batch of 384 samples: 78 for each of nodes 0 and 1, 57 for each of nodes 2 to 5."
    )
    assert split(78, 78, 21, 22, 22, 21, a100=(0, 1), t4=(2, 3, 4, 5)).sentence == (
        "Of each batch of 242 samples: 78 for each a100, 21 or 22 for each t4."
    )
    assert split(80, 20, 23, out=(1, 3, 4), a100=(0, 1)).sentence == (
        "Of each batch of 123 samples: 80 for the a100, 20 to 23 for each of nodes 2 and 5."
    )


def test_many_kinds_are_their_extremes() -> None:
    """As a line with a hundred numbers tells less; the script has all of them."""
    found = split(*range(1, 65), words=("cluster=synthetic64",))

    assert found.sentence == "Of each batch of 2080 samples: 1 (node 0) to 64 (node 63)."
    assert found.script is not None
    assert str([*range(1, 65)]) in found.script
    assert "parts=[9] * 60 + [7] * 3 + [8]" in str(split(*[9] * 60, 7, 7, 7, 8, words=("cluster=synthetic64",)).script)


def test_equal_shares_are_no_split() -> None:
    """Also where a remainder makes some of them one larger."""
    cluster = experiment_of(["cluster=mixed4", "workload=phantom", "backend=sim"], None).cluster

    assert advised_split(baseline(), (26, 25, 25, 25), cluster, {}) is None
    assert advised_split(baseline(), (), cluster, {}) is None
