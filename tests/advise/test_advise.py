"""`hetsim-advise`: the best of a few candidates whose times are known, and one sentence for each mistake."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from here import Here, last_of_each, text
from worlds import exit_status

import hetsim
from hetsim.advice.advice import AdviceFindings, advice, worth_training
from hetsim.advice.answer import answer
from hetsim.advice.candidates import Candidate, allocation_variants, baseline
from hetsim.advice.question import asked
from hetsim.advice.simulated import Goal, SimulatedRun, experiment_of, simulate
from hetsim.advice.simulations import Simulations
from hetsim.advice.timing import CandidateTimes, Courses, Timing
from hetsim.advice.training import CandidateTraining, Trained, TrainingRound, reachable_goal
from hetsim.answers.html import document
from hetsim.answers.text import as_json
from hetsim.cli.advise import main
from hetsim.config.methods import shipped
from hetsim.files.summary_and_curve import LossPoint

pytestmark = pytest.mark.slow

ROW = "overhead_seconds: 0, seconds_per_update: 0"
SLOW_NODE = f"cluster.nodes=[{{count: 1, seconds_per_sample: 1e-2, {ROW}}}, {{count: 3, seconds_per_sample: 1e-3, {ROW}}}]"
"""The first of four nodes is ten times slower than the others."""
FREE = "cluster.network={latency_seconds: 0, bytes_per_second: 1e300}"
PHANTOM = ("workload=phantom", "workload.num_parameters=1000", "workload.num_samples=1200", "budget.epochs=10", "batch_size=120")
METHODS = {method.name: method for method in shipped()}
FRESH_SEEDS = 2


def by_time(*words: str) -> AdviceFindings:
    """An advice on the cluster with a slow node, or with the nodes of these words, by time alone."""
    nodes = [] if any(word.startswith("cluster.nodes=") for word in words) else [SLOW_NODE]
    return advice(asked(last_of_each("cluster=mixed4", *nodes, FREE, *PHANTOM, *words), None), Here(), lambda _: None)


def test_plain_ddp_has_equal_batches_whatever_all_candidates_have() -> None:
    """Of speeds 1 : 10 : 10 : 10, a split of 120 samples by speed takes 40 ms, an equal one 300 ms. Measuring takes time, too."""
    found = by_time("method=ddp", "allocation=static")

    assert [row.candidate.allocation for row in found.rows] == [None]
    assert 5 < found.rows[0].gain.mean <= 7.5  # type: ignore[operator]
    assert found.baseline.seconds.mean == pytest.approx(1200 * 10 / 4 * 1e-2)
    assert found.baseline.candidate.allocation == "even"


def test_equal_batches_are_better_without_a_node_that_is_ten_times_slower() -> None:
    """With N equal batches of B/N samples an iteration takes B/4 · 10 ms with it, and B/3 · 1 ms without it: 7.5 times less."""
    found = by_time("method=ssgd", "allocation=even")

    best = found.rows[0]
    assert best.candidate.leave_out == (0,)
    assert best.gain.mean == pytest.approx(7.5)
    assert best.seconds.mean == pytest.approx(1200 * 10 / 3 * 1e-3)
    assert found.baseline.seconds.mean == pytest.approx(1200 * 10 / 4 * 1e-2)
    assert shlex.split(best.command)[-4:] == ["allocation=even", "method=ssgd", "++cluster.leave_out=[0]", "backend=dist"]
    assert text(found).startswith(
        "Leave out node 0 and run ssgd on nodes 1 to 3: 7.5 times as fast as plain DDP on all 4 nodes, because in plain DDP each step "
    )


def test_a_share_in_proportion_keeps_it() -> None:
    """Of a node that is three times slower: all speeds add up, to B/3.33 · 1 ms an iteration, 10 % less than without it."""
    found = by_time("method=ssgd,dbs", SLOW_NODE.replace("1e-2", "3e-3"), "batch_size=400", "workload.num_samples=4000")

    best = found.rows[0]
    assert best.candidate.leave_out == ()
    assert best.seconds.mean == pytest.approx(4000 * 10 / (10 / 3) * 1e-3, rel=0.03)
    assert text(found).startswith("Keep all 4 nodes and run ")


def test_methods_that_differ_in_what_they_compute_alone_are_one_row() -> None:
    found = by_time("method=asgd,dana,dbs_sgd", "allocation=even")

    assert sorted([row.candidate.method.name, *row.alike] for row in found.rows if row.alike) == [
        ["asgd", "dana, without node 0", "dbs_sgd, without node 0"]
    ]
    assert "as fast as row 1: dana, without node 0; dbs_sgd, " in text(found)


def test_what_it_costs_is_what_those_cost_that_take_part() -> None:
    dear = SLOW_NODE.replace("count: 1,", "count: 1, cost_per_hour: 36,").replace("count: 3,", "count: 3, cost_per_hour: 360,")
    found = by_time("method=ssgd", "allocation=even", dear)

    assert found.rows[0].cost == pytest.approx(4.0 * 3 * 0.1)
    assert found.baseline.cost == pytest.approx(30.0 * (0.01 + 3 * 0.1))
    assert "cost per epoch" in text(found)


def test_what_a_calibration_leaves_open_widens_the_seconds() -> None:
    """By its factor in both directions; times themselves and gains stay. A gain that is smaller is to be tried."""
    held = (
        "+cluster.calibrated={date: '2026-01-01', machine: x86_64, workload: phantom, num_parameters: 1000, samples: [1, 120], "
        "dtype: float32, torch: 2.11.0, threads: 1, device: cpu, error: 0.25}"
    )
    without, found = (by_time("method=ssgd", "allocation=even", *more) for more in ((), (held,)))

    assert found.rows[0].seconds.mean == without.rows[0].seconds.mean == pytest.approx(4.0)
    assert found.rows[0].seconds.bounds == pytest.approx((4.0 / 1.309, 4.0 * 1.309), rel=1e-3)
    assert found.rows[0].gain == without.rows[0].gain
    assert "predictions may be 31 % off (90 %), which is in the intervals of times" in text(found)
    assert "run both before you decide" not in text(found)  # it gains 7.5 times
    even = by_time("method=ssgd", "allocation=even", "cluster.nodes=[{count: 2, seconds_per_sample: 0.1, overhead_seconds: 0}]", held)
    assert "run both before you decide" not in text(even)  # nothing is gained


def test_what_is_doubtful_about_the_times_is_told() -> None:
    """A calibration that is not trustworthy, and shares that are smaller or larger than each measured batch."""
    held = (
        "+cluster.calibrated={date: '2026-01-01', machine: x86_64, workload: phantom, num_parameters: 1000, samples: [1, 120], "
        "dtype: float32, torch: 2.11.0, threads: 1, device: cpu, error: 0.25, doubts: [ssgd was off]}"
    )
    table = "cluster.nodes=[{count: 4, table: [[MIN, 1e-2], [128, 2e-2]], seconds_per_update: 0}]"
    doubtful = by_time("method=ssgd", "allocation=even", held)
    few, enough = (by_time("method=ssgd", "allocation=even", table.replace("MIN", str(least))) for least in (64, 30))
    many = by_time("method=ssgd", "allocation=even", table.replace("MIN", "8").replace("128", "16"))

    assert doubtful.remarks[0].startswith("the calibration is not trustworthy: ssgd was off")
    said = "nodes 0 to 3 would take as few as 30 samples, fewer than measured (64): "
    assert sum(remark.startswith(said) for remark in few.remarks) == 1
    assert not any("than measured" in remark for remark in (*enough.remarks, *doubtful.remarks))
    assert any(remark.startswith("nodes 0 to 3 would take as many as 30 samples, more than measured (16): ") for remark in many.remarks)


def test_the_end_of_a_run_is_no_longer_in_a_longer_one() -> None:
    """Of 90 of 100 samples in 9 s, and the rest in 5 s: ten times as many take 100 s, and 4 s of waiting for the last."""
    question = asked(["cluster=mixed4", *PHANTOM, "timing"], None)
    points: tuple[LossPoint, ...] = tuple((float(second), None, None) for second in range(10))
    numbers = {"seconds": 14.0, "profile_seconds": 1.0, "samples_per_second": 7.0}
    short = SimulatedRun(numbers, (*points, (14.0, None, None)), (*range(0, 100, 10), 100))

    run = Courses(baseline(), 0)

    Timing(question, Here(), (1000, 100))._continue(run, (short, ""))

    assert run.seconds == pytest.approx(10 * 10 + 4 + 1)


def test_candidates_differ_in_split_nodes_and_rates() -> None:
    question = asked(["method=ssgd,dbs_sgd", "timing"], None)
    published = [Candidate(method) for method in question.methods]

    assert [each.label for each in allocation_variants(question, published)] == [
        *(f"ssgd, allocation {name}" for name in ("dbs", "lb_bsp", "optperf", "static"))
    ]
    assert Candidate(METHODS["ssgd"], "dbs", (1, 2), 0.5).words() == [
        *("method=ssgd", "allocation=dbs", "weighting=per_sample", "++cluster.leave_out=[1,2]", "learning_rate=0.05")
    ]
    assert Candidate(METHODS["asgd"], "dbs").words(rates=False) == ["method=asgd", "allocation=dbs"]
    assert Candidate(METHODS["local_sgd"], factor=2).scaled == ("local_learning_rate",)
    assert Candidate(METHODS["od_sgd"], factor=2).scaled == ("learning_rate", "local_learning_rate")
    assert list(allocation_variants(asked(["allocation=dbs", "timing"], None), published)) == []


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)], ids=["a fifth", "all"])
def test_every_word_of_a_candidate_is_one_of_hetsim(step: int) -> None:
    """Each method that takes equal batches composes with another allocation."""
    question = asked(["timing"], None)
    published = [Candidate(method) for method in question.methods]
    for each in [one for one in allocation_variants(question, published) if one.allocation == "dbs"][::step]:
        assert experiment_of([*each.at(0.5).words(), "backend=sim"], None).method == each.method.name


def test_a_method_is_trained_as_published_and_with_its_fastest_split() -> None:
    def timed(candidate: Candidate, seconds: float) -> CandidateTimes:
        return CandidateTimes(candidate, (seconds,), SimulatedRun({}, ()))

    even, split = Candidate(METHODS["ssgd"]), Candidate(METHODS["ssgd"], "dbs")
    alone, hardly = Candidate(METHODS["asgd"]), Candidate(METHODS["asgd"], "dbs")
    found = worth_training([timed(split, 1.0), timed(hardly, 1.5), timed(alone, 1.51), timed(even, 2.0)])

    assert found == [alone, even, split]
    fewer = Candidate(METHODS["ssgd"], None, (0,))
    assert worth_training([timed(fewer, 1.0), timed(split, 1.1), timed(even, 2.0)]) == [even, fewer, split]


CURVE: tuple[LossPoint, ...] = ((0.0, 2.0, 0.1), (1.0, 1.0, 0.5), (2.0, 0.5, 0.9), (3.0, 0.6, 0.8))


def test_a_goal_is_what_equal_batches_reach() -> None:
    """A test error 1.25 times the lowest of the seed that does worst; without an accuracy, so much of a loss."""
    worse = tuple((seconds, loss, accuracy and accuracy - 0.1) for seconds, loss, accuracy in CURVE)
    both = Trained(baseline(), (0, 1), (SimulatedRun({}, CURVE), SimulatedRun({}, worse)))
    assert reachable_goal(both).accuracy == pytest.approx(1 - 1.25 * 0.2)
    blind = tuple((seconds, loss, None) for seconds, loss, _ in CURVE)
    assert reachable_goal(Trained(baseline(), (0,), (SimulatedRun({}, blind),))) == Goal(loss=0.625)


def test_who_misses_the_goal_comes_last() -> None:
    numbers = {"profile_seconds": 0.5}
    fast, slow = (
        SimulatedRun(numbers, CURVE),
        SimulatedRun(numbers, tuple((2 * seconds, loss, accuracy) for seconds, loss, accuracy in CURVE)),
    )
    never = SimulatedRun(numbers, CURVE[:2])
    diverged = SimulatedRun(numbers, ((0.0, math.nan, 0.1),))
    goal = Goal(accuracy=0.9)
    each = {name: Trained(baseline(), (0, 1), outcomes) for name, outcomes in {
        "fast": (fast, fast), "slow": (slow, slow), "once": (fast, never), "diverged": (diverged, diverged),
    }.items()}  # fmt: skip

    assert fast.time_to(goal) == 2.5
    assert sorted(each, key=lambda name: each[name].key(goal)) == ["fast", "slow", "once", "diverged"]


def test_of_those_that_miss_the_goal_who_came_nearest_to_it_is_first() -> None:
    """A large rate may have the higher loss until shortly before it is there; one that diverges was nowhere near."""
    numbers = {"profile_seconds": 0.0}
    large = SimulatedRun(numbers, ((0.0, 2.0, 0.1), (1.0, 0.5, 0.88), (2.0, 0.6, 0.86)))
    small = SimulatedRun(numbers, ((0.0, 2.0, 0.1), (1.0, 0.5, 0.8), (2.0, 0.4, 0.85)))
    lost = SimulatedRun(numbers, ((0.0, 2.0, 0.1), (1.0, 0.3, 0.89), (2.0, math.nan, 0.1)))
    each = {name: Trained(baseline(), (0,), (outcome,)) for name, outcome in {"large": large, "small": small, "lost": lost}.items()}

    assert sorted(each, key=lambda name: each[name].key(Goal(accuracy=0.9))) == ["large", "small", "lost"]
    assert sorted(each, key=lambda name: each[name].key(Goal(loss=0.1))) == ["small", "large", "lost"]


def test_in_a_short_round_who_is_at_the_goal_sooner_is_before_who_ends_lower() -> None:
    """Else a cluster on which some methods take a tenth of the time of equal batches would have those that are lowest after it."""
    numbers = {"profile_seconds": 0.0}
    sooner = SimulatedRun(numbers, ((0.0, 2.0, 0.1), (1.0, 0.4, 0.9), (9.0, 0.3, 0.9)))
    lower = SimulatedRun(numbers, ((0.0, 2.0, 0.1), (5.0, 0.4, 0.9), (9.0, 0.1, 0.95)))

    class Short(CandidateTraining):
        def train_for_share(self, candidates: Any, share: float, seeds: Any) -> list[Trained]:
            became = {"ssgd": sooner, "dbs_sgd": lower}
            return [Trained(each, seeds, (became[each.method.name],) * len(seeds)) for each in candidates]

    question = asked(["method=dbs_sgd,ssgd", "learning_rate=0.1"], None)
    training = Short(question, Here(), lambda _: None, goal=Goal(accuracy=0.9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetsim.advice.training.ROUNDS", (TrainingRound(1 / 8, 1, 1),))
        assert [each.label for each in training.search([Candidate(method) for method in question.methods])] == ["ssgd"]


@pytest.fixture(scope="module")
def trained() -> Iterator[AdviceFindings]:
    """An advice on digits, between two methods at two rates, and on two fresh seeds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetsim.advice.training.FRESH_SEEDS", FRESH_SEEDS)
        patch.setattr("hetsim.advice.training.SEEDS", 1)
        patch.setattr("hetsim.advice.training.FACTORS", (1.0, 2.0))
        words = ["cluster=mixed4", "method=ssgd,dbs_sgd", "budget.epochs=3", "target_accuracy=0.85"]
        yield advice(asked(words, None), Here(), lambda _: None)


def test_training_ranks_by_the_time_to_the_goal(trained: AdviceFindings) -> None:
    """Equal batches are the slowest way here; each row says what it gains over them, on the same seeds."""
    assert trained.goal == Goal(accuracy=0.85)
    best = trained.rows[0]
    assert best.candidate.label != "ssgd"
    assert best.gain.mean is not None
    assert best.gain.mean > 1.1
    assert best.seconds.num_known == best.seconds.num_runs == FRESH_SEEDS
    assert [row.seconds.mean for row in trained.rows] == sorted(row.seconds.mean or 0 for row in trained.rows)
    assert ": time to test accuracy 0.85, batches of 256 (the default), by " in text(trained)
    assert f"run it: {best.command}" in text(trained).splitlines()


def test_the_command_of_the_best_does_what_was_said(trained: AdviceFindings) -> None:
    """Simulated on a seed of its own, it reaches the goal in about the time that was expected."""
    best = trained.rows[0]
    words = [word for word in shlex.split(best.command)[1:] if not word.startswith(("backend=", "budget."))]
    run = simulate([*words, "budget.epochs=8", "evaluate_every_epochs=0.05", "seed=77"], None)

    assert trained.goal is not None
    assert best.seconds.mean is not None
    assert run.time_to(trained.goal) == pytest.approx(best.seconds.mean, rel=0.5)


def test_an_advice_is_json_and_a_picture(trained: AdviceFindings) -> None:
    again = json.loads(as_json(answer(trained)))

    assert again["rows"][0]["command"] == trained.rows[0].command
    assert again["goal"] == {"accuracy": 0.85, "loss": None}
    assert again["baseline"]["gain"]["mean"] == 1
    drawn = answer(trained).pictures[0].draw()
    assert drawn.axes[0].get_xlabel().startswith("time in s to test accuracy 0.85: mean and ")
    assert len(drawn.axes[0].get_yticklabels()) == len(trained.rows) + 1


def test_an_advice_is_a_page(trained: AdviceFindings) -> None:
    """With its sentence, its picture, both tables and the commands."""
    page = document(answer(trained, "hetsim-advise cluster=mixed4"), "hetsim-advise")

    assert all(escape(part) in page for part in (trained.sentence, trained.rows[0].why, trained.rows[0].command))
    assert page.count("<svg") == 1
    assert page.count("<tr>") >= 2 + 2 + len(trained.rows)


def test_a_goal_that_nobody_reaches_is_said(trained: AdviceFindings) -> None:
    missed = replace(trained.rows[0].seconds, mean=None, low=None, high=None, num_known=0)
    row = replace(trained.rows[0], seconds=missed)

    assert "nothing reached test accuracy 0.85 in all its runs" in text(replace(trained, rows=(row,)))
    assert f"reached by 0 of {FRESH_SEEDS}" in text(replace(trained, rows=(row,)))


MISTAKES = {
    "an advice is by one thing: leave out all but one of timing, target_accuracy=… and target_loss=…": ("timing", "target_loss=1"),
    "budget.seconds is what an advice sets itself: leave it out": ("budget.seconds=3",),
    "an advice is by simulation: leave backend out": ("backend=dist",),
    "experiment chooses a method, which an advice does itself": ("experiment=diloco_500",),
    "method='sgd' is not a shipped method": ("method=sgd",),
    "target_accuracy is a share from 0 to 1, not 90": ("target_accuracy=90",),
    "target_loss must be a number above zero, not 'low'": ("target_loss=low",),
    "target_accuracy must be a number above zero, not '-1'": ("target_accuracy=-1",),
    "'timings' is not an argument of hetsim; did you mean 'timing'?": ("timings",),
    "method is given twice": ("method=ssgd", "method=asgd"),
    "trains nothing, so it reaches no test accuracy 0.9: ask for timing": (*PHANTOM, "target_accuracy=0.9"),
    "there is no node 9, because the cluster has 4": ("+cluster.leave_out=[9]",),
    "budget has neither epochs, updates nor seconds": ("budget.epochs=null",),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_each_mistake_is_one_sentence(sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    words = MISTAKES[sentence]
    assert exit_status(monkeypatch, "hetsim-advise", main, "cluster=mixed4", *words) == 1
    said = capfd.readouterr().err
    assert re.fullmatch(r"hetsim-advise: error: .*\n", said)
    assert sentence in said


def test_the_command_prints_a_table_and_draws_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With processes of its own; the picture is a PNG, and no process is left."""
    file, page = tmp_path / "advice.png", tmp_path / "advice.html"
    words = (
        "cluster=mixed4",
        *PHANTOM,
        "method=ssgd,asgd",
        "timing",
        "--picture",
        str(file),
        "--processes",
        "1",
        "--json",
        "--html",
        str(page),
    )

    assert exit_status(monkeypatch, "hetsim-advise", main, *words) == 0
    printed = json.loads(capfd.readouterr().out)

    assert {row["method"] for row in printed["rows"]} == {"ssgd", "asgd"}
    assert file.read_bytes()[:4] == b"\x89PNG"
    assert "hetsim-advise cluster=mixed4" in page.read_text(encoding="utf-8")
    for wrong, sentence in {"no/such.png": "is in no folder that exists", str(tmp_path / "advice.pdf"): "must end in .png"}.items():
        assert exit_status(monkeypatch, "hetsim-advise", main, "timing", "--picture", wrong) == 1
        assert sentence in capfd.readouterr().err


def test_python_has_the_same(tmp_path: Path) -> None:
    found = hetsim.advise("cluster=mixed4", *PHANTOM, "method=ssgd,asgd", "timing", processes=1)

    assert found.data["rows"][0]["method"] == "asgd"
    assert found.data["trains_as_ddp"]["command"] == found.data["command"]
    assert f"\nrehearse it, padded and without a model: {found.data['command']}\ntrain with it: " in repr(found)
    assert found.picture().axes
    simulated_best = [word for word in found.words if word != "backend=dist"]
    assert hetsim.run(*simulated_best, "pictures=false", folder=tmp_path / "run").summary["method"] == "ssgd"
    with pytest.raises(ValueError, match="processes must be from 1 to the"):
        hetsim.advise("timing", processes=1000)


def test_a_process_that_is_killed_costs_one_candidate() -> None:
    """Its next question goes to another one."""
    with Simulations(1, None) as processes:
        first = processes._pool._all[0]
        first._process.kill()
        first._process.wait()
        words = ["cluster=mixed4", *PHANTOM, "method=ssgd", "backend=sim", "trace=none", "pictures=false"]
        found = processes.run_all([words, [*words, "batch_size=1"]])

    assert isinstance(found[0], SimulatedRun)
    assert found[1] == "batch_size=1 is less than one sample for each of 4 workers: raise it"
