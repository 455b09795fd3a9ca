"""How much work an advice is: compositions, processes, and what equal nodes share."""

from __future__ import annotations

from typing import Any

import pytest

from hetsim.advice.advice import advised
from hetsim.advice.question import asked
from hetsim.advice.simulations import Simulations
from hetsim.advice.variants import Variant, variant_experiment
from hetsim.cluster.fewer import without
from hetsim.cluster.network.collectives import shared_collectives
from hetsim.config.compositions import Compositions, compositions

GPUS = ["2x(2*a100-40gb) + 4*t4", "model=resnet50", "batch_size=384", "network=1 Gbit/s"]
TIMED = ["cluster=uniform4", "workload=phantom", "budget.epochs=1", "batch_size=400", "method=ssgd,asgd", "timing"]


def never(*_: object, **__: object) -> Any:
    """Fail the test."""
    raise AssertionError("another process was started")


@pytest.mark.parametrize("words", [GPUS, TIMED], ids=["GPUs", "a cluster"])
def test_a_small_question_is_answered_in_one_process(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each choice of files is composed once: each method has its own."""
    composed: list[tuple[str, ...]] = []
    by_hydra = Compositions.by_hydra
    monkeypatch.setattr("hetsim.advice.simulations.SECONDS_ALONE", 1e9)
    monkeypatch.setattr("hetsim.pool.pool.Process", never)
    compositions.cache_clear()
    monkeypatch.setattr(Compositions, "by_hydra", lambda self, chosen, mode: [composed.append((*chosen,)), by_hydra(self, chosen, mode)][1])
    question = asked(words, None)

    findings = advised(question, 2, None, None, lambda _: None)

    assert findings.rows
    assert len(composed) <= len({"ddp", *(method.name for method in question.methods)})


def test_a_long_question_gets_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first answer. Two answers of one question are the same from both."""
    monkeypatch.setattr("hetsim.advice.simulations.SECONDS_ALONE", 1e-9)
    words = ["cluster=uniform4", "workload=phantom", "backend=sim", "trace=none", "budget.epochs=1"]
    with Simulations(1, None, alone=True) as processes:
        (here,) = processes.time_all(words, [("ssgd", Variant())])
        assert "_pool" not in vars(processes)
        (there,) = processes.time_all(words, [("ssgd", Variant())])
        assert processes._pool.size == 1

    assert repr(here).replace("(", "[").replace(")", "]") == repr(there).replace("(", "[").replace(")", "]")


@pytest.mark.parametrize(
    ("more", "small"),
    [([], True), (["trust=[mine]"], False), (["cluster.nodes=[{count: 400, seconds_per_sample: 1 ms, overhead_seconds: 0}]"], False)],
)
def test_neither_a_users_code_nor_many_nodes_run_in_the_process_of_the_question(more: list[str], small: bool) -> None:
    assert asked([*TIMED, *more], None).is_small == small


def test_a_model_is_not_trained_in_the_process_of_the_question() -> None:
    assert not asked(["cluster=uniform4", "timing"], None).is_small


def test_equal_nodes_stay_one_object_when_they_are_slowed() -> None:
    """Ranks 0 and 1 of four equal A100 are slower, and so are all T4."""
    question = asked(GPUS, None)
    words = [*question.words_of_timing, "backend=sim", "workload=phantom"]
    factors = ((0, 1.5), (1, 1.5), *((rank, 2.0) for rank in range(4, 8)))
    cluster = variant_experiment(words, "ddp", Variant(slower=factors), None).cluster

    assert len({id(node) for node in question.experiment.cluster.nodes[:4]}) == 2
    assert len({id(node) for node in cluster.nodes}) == 3
    assert cluster.nodes[4].table == tuple((b, 2.0 * seconds) for b, seconds in question.experiment.cluster.nodes[4].table)


def test_clusters_that_differ_in_compute_alone_share_their_collectives() -> None:
    question = asked(GPUS, None)
    words = [*question.words_of_timing, "backend=sim", "workload=phantom"]
    cluster, slower = (variant_experiment(words, "ddp", Variant(slower=slower), None).cluster for slower in ((), ((5, 2.0),)))

    assert shared_collectives(slower) is shared_collectives(cluster)
    assert shared_collectives(without(slower, (7,))) is shared_collectives(without(cluster, (7,)))
    assert shared_collectives(without(cluster, (3,))) is not shared_collectives(without(cluster, (7,)))
