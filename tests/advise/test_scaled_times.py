"""The advice simulates the beginning of a training. Its seconds are those of the whole training, also if later steps take longer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from here import Here, last_of_each

from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.candidates import Candidate
from hetsim.advice.conditions import Conditions, Course
from hetsim.advice.question import asked
from hetsim.advice.simulated import SimulatedRun, experiment_of, simulate
from hetsim.advice.timing import CandidateTimes, ranking
from hetsim.cluster.network.changing import CYCLES, seconds_of_changes
from hetsim.config.methods import shipped

SLOW, FAST = "seconds_per_sample: 5e-3, overhead_seconds: 3e-2", "seconds_per_sample: 1e-3, overhead_seconds: 5e-3"
TRAINING = ("workload=phantom", "workload.num_samples=4000", "budget.epochs=10", "batch_size=64")
"""625 updates of about 0.06 s: twice as many as an advice usually simulates."""
FREE = "cluster.network={latency_seconds: 0, bytes_per_second: 1e300}"
LATE, EARLY = "0,1\n20,4\n", "0,4\n5,1\n"


def words_of(*, last: str = FAST, more: str = "", folder: Path, factors: str = LATE) -> list[str]:
    """The arguments of an advice on four nodes. The last one has other keys, which may name the file of its slowdown."""
    file = folder / "factors.csv"
    file.write_text(f"seconds,factor\n{factors}")
    nodes = f"cluster.nodes=[{{count: 3, {FAST}}}, {{count: 1, {last}{more.replace('FILE', str(file))}}}]"
    return ["cluster=mixed4", nodes, "cluster.network={latency_seconds: 1e-4, bytes_per_second: 125e6}", *TRAINING]


def advised(*words: str) -> AdviceFindings:
    """By time alone, on all nodes."""
    return advice(asked([*last_of_each(*words), "++cluster.leave_out=[]", "timing"], None), Here(), lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "keys"),
    [
        (("method=ddp", "allocation=even"), {}),
        (("method=ddp", "allocation=optperf"), {"last": SLOW}),  # which probes in the first ten updates
        (("method=ddp", "allocation=lb_bsp"), {"last": SLOW}),  # which moves samples one after the other
        (("method=pipe_sgd", "allocation=even"), {}),  # which warms up for 20 updates
        (("method=ddp", "allocation=even"), {"more": ", slowdown: FILE"}),
        (("method=ddp", "allocation=even"), {"more": ", slowdown: FILE", "factors": EARLY}),
        (("method=ddp", "allocation=even"), {"more": ", slowdown: FILE, slowdown_period_seconds: 20", "factors": EARLY}),
        (("method=ddp", "allocation=dbs"), {"more": ", slowdown: FILE"}),
        (("method=asgd", "allocation=even"), {"more": ", link_slowdown: FILE"}),
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_the_seconds_are_those_of_the_whole_training(candidate: tuple[str, str], keys: dict[str, str], tmp_path: Path) -> None:
    words = words_of(**keys, folder=tmp_path)
    row = next(iter(advised(*words, *candidate).rows))
    weighting = [] if candidate[1] == "allocation=even" else ["weighting=per_sample"]

    whole = simulate([*words, *candidate, *weighting, "backend=sim"], None).numbers

    assert row.seconds.mean == pytest.approx(whole["seconds"] + whole["profile_seconds"], rel=0.005)


@pytest.mark.slow
def test_losses_of_nodes_count(tmp_path: Path) -> None:
    """Each node is absent for a sixth of the time, in outages that are rarer than an advice's usual run is long."""
    crash, repair = ("{distribution: expon, scale: %d}" % seconds for seconds in (25, 5))  # noqa: UP031
    faults = f"schedule: [{{nodes: all, seconds_to_crash: {crash}, seconds_to_repair: {repair}}}]"
    words = words_of(folder=tmp_path)

    without = advised(*words, "method=ddp", "allocation=even")
    found = advised(*words, f"+cluster.faults={{detection_seconds: 1, regroup_seconds: 1, {faults}}}", "method=ddp", "allocation=even")

    assert found.baseline.seconds.mean > 1.1 * without.baseline.seconds.mean  # type: ignore[operator]
    assert not any("changes over time" in remark for remark in found.remarks)


FEW = "0,1\n6,3\n14,1\n"
FAULTS = (
    "+cluster.faults={detection_seconds: 1, regroup_seconds: 0.5, schedule: [{nodes: [0], crash: 8, repair: 9}, {nodes: [3], leave: 20}]}"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "more"),
    [
        (("method=ddp", "allocation=even"), ", slowdown: FILE, slowdown_period_seconds: 25"),
        (("method=ddp", "allocation=even"), ", link_slowdown: FILE, link_slowdown_period_seconds: 25"),
        (("method=ddp", "allocation=dbs"), ", slowdown: FILE, slowdown_period_seconds: 25"),
        (("method=asgd", "allocation=even", FREE), ", slowdown: FILE"),
        (("method=local_sgd", "allocation=even"), ", slowdown: FILE, slowdown_period_seconds: 25"),
        (("method=ddp", "allocation=even", FAULTS), ""),
        (("method=asgd", "allocation=even", FREE, FAULTS), ""),
    ],
    ids=str,
)
@pytest.mark.sampled(3)
def test_each_condition_of_the_cluster_counts_for_as_long_as_it_lasts(
    candidate: tuple[str, ...], more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if each run ends before the first change."""
    monkeypatch.setattr("hetsim.advice.timing.STEPS", 240)
    monkeypatch.setattr("hetsim.advice.timing.MOST", 60)
    words = words_of(more=more, folder=tmp_path, factors=FEW)
    findings = advised(*words, *candidate)
    weighting = [] if candidate[1] == "allocation=even" else ["weighting=per_sample"]

    whole = simulate([*words, *candidate, *weighting, "backend=sim"], None).numbers

    assert next(iter(findings.rows)).seconds.mean == pytest.approx(whole["seconds"] + whole["profile_seconds"], rel=0.01)
    assert "judged" not in findings.sentence.lower()


def test_a_cluster_whose_nodes_all_come_later_is_judged_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a trace of spot nodes may begin, which then has many conditions."""
    monkeypatch.setattr("hetsim.advice.timing.STEPS", 240)
    monkeypatch.setattr("hetsim.advice.timing.MOST", 60)
    words = words_of(more="", folder=tmp_path, factors=FEW)
    schedule = "[{nodes: all, join: 3}, {nodes: all, crash: 9, repair: 11}, {nodes: [1], crash: 20, repair: 22}]"
    words.append(f"+cluster.faults={{regroup_seconds: 0.5, schedule: {schedule}, checkpoint: {{every: 2, restart_seconds: 1}}}}")
    findings = advised(*words, "method=ddp", "allocation=even")

    whole = simulate([*words, "method=ddp", "allocation=even", "backend=sim"], None).numbers

    assert next(iter(findings.rows)).seconds.mean == pytest.approx(whole["seconds"], rel=0.01)


def test_nodes_that_never_come_back_end_the_training(tmp_path: Path) -> None:
    """Also if the network goes on to change. If all others come back, they have lost weights, except with a server."""
    (tmp_path / "factors.csv").write_text(f"seconds,factor\n{FEW}")
    later = f"link_slowdown: {tmp_path / 'factors.csv'}, link_slowdown_period_seconds: 25"
    rows = f"cluster.nodes=[{{count: 2, {FAST}}}, {{count: 2, {FAST}, {later}}}]"
    faults = "schedule: [{nodes: [0, 1], leave: 20}, {nodes: [2, 3], crash: 8, repair: 9}]"
    words = ["cluster=mixed4", rows, *TRAINING, f"+cluster.faults={{detection_seconds: 0, regroup_seconds: 0, {faults}}}", "method=ddp"]
    saved = "+cluster.faults.checkpoint={every: 3, restart_seconds: 2}"
    conditions, with_checkpoints = (Conditions.of(experiment_of([*words, *more], None).cluster) for more in ([], [saved]))
    per_sample = {conditions.key(second): 0.01 for second in (0, 7, 8.5, 9.5, 15, 21, 35)}

    assert conditions.course(5000, per_sample, (2, 3), collective=True) == Course()
    assert conditions.course(5000, per_sample, (0, 1), collective=False).seconds == pytest.approx(51)
    assert conditions.course(5000, per_sample, (0, 1), collective=True).seconds == pytest.approx(59)
    assert with_checkpoints.course(5000, per_sample, (0, 1), collective=True).seconds == pytest.approx(11 + 44)
    assert conditions.course(1000, per_sample, (2, 3), collective=True).seconds == pytest.approx(10)


@pytest.mark.slow
def test_what_may_come_later_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change at one of very many seconds, each with other factors, or a rare spell."""
    monkeypatch.setattr("hetsim.advice.timing.STEPS", 240)
    monkeypatch.setattr("hetsim.advice.timing.MOST", 60)
    many = "".join(f"{5 * second},{1.2**second}\n" for second in range(40))
    spells = ", slow_spells: {factor: 2, seconds_between: {distribution: uniform, scale: 20}, seconds_lasting: 1}"

    for more, factors in ((", slowdown: FILE", many), (spells, LATE)):
        findings = advised(*words_of(more=more, folder=tmp_path, factors=factors), "method=ddp", "allocation=even")

        assert findings.sentence.startswith("Judged by the first ")


@pytest.mark.parametrize(
    ("keys", "seconds"),
    [
        ("", 0.0),
        (", slowdown: FILE", math.inf),
        (", slowdown: FILE, slowdown_period_seconds: 60", 60.0 * CYCLES),
        (", link_slowdown: FILE", math.inf),
        (", link_slowdown: FILE, link_slowdown_period_seconds: 60", 60.0 * CYCLES),
        (", slow_spells: {factor: 2, seconds_between: {distribution: uniform, scale: 20}, seconds_lasting: 1}", 11.0 * CYCLES),
    ],
)
def test_a_run_must_be_so_long(keys: str, seconds: float, tmp_path: Path) -> None:
    made = experiment_of([*words_of(more=keys, folder=tmp_path), "method=ddp"], None)

    assert seconds_of_changes(made.cluster) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [
        ("schedule: [{nodes: [0], leave: 5}]", math.inf),
        ("schedule: [{nodes: [0], seconds_to_crash: {distribution: expon, scale: 60}}]", math.inf),
        (
            "schedule: [{nodes: [0], seconds_to_crash: {distribution: uniform, scale: 60}, seconds_to_repair: {distribution: uniform}}]",
            30.5 * CYCLES,
        ),
    ],
)
def test_faults_do_or_do_not_come_again(faults: str, seconds: float, tmp_path: Path) -> None:
    made = experiment_of([*words_of(folder=tmp_path), f"+cluster.faults={{{faults}}}", "method=ddp"], None)

    assert seconds_of_changes(made.cluster) == pytest.approx(seconds, rel=0.05)


def test_of_splits_that_take_the_same_time_the_simplest_comes_first() -> None:
    """Without a constant part of a step, `optperf` and `dbs` find the same split. `optperf` is ahead by a thousandth."""
    rows = ", ".join(f"{{count: {count}, seconds_per_sample: {seconds}, overhead_seconds: 0}}" for count, seconds in ((2, 1e-3), (4, 3e-3)))
    method = next(method for method in shipped() if method.name == "ddp")
    outcome = SimulatedRun({}, ())
    seconds = {None: 200.0, "static": 99.7, "optperf": 99.72, "dbs": 99.85, "lb_bsp": 99.95}

    order = ranking([CandidateTimes(Candidate(method, split), (its,), outcome) for split, its in seconds.items()])
    found = advised("cluster=mixed4", f"cluster.nodes=[{rows}]", FREE, *TRAINING, "method=ddp")

    assert [each.candidate.allocation for each in order] == ["dbs", "static", "optperf", "lb_bsp", None]
    assert found.rows[0].candidate.allocation == "dbs"
