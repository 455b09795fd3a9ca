"""`hetsim-compare`: repeats on each side, and where their time went; exact on traces written by hand and on phantoms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from worlds import cluster, exit_status, experiment, node

import hetsim
from hetsim.answers.text import terminal
from hetsim.cli.compare import main as compare_main
from hetsim.files.summary_and_curve import NUMBERS, read_summary
from hetsim.results.comparison.answer import answer, in_points
from hetsim.results.comparison.findings import (
    SCALES,
    ComparedNumber,
    Findings,
    PerUpdate,
    compare,
    compared_number,
    intervals,
    relative_error,
    seconds_per_update,
    sentence,
    staleness,
    wasserstein,
)
from hetsim.results.comparison.sides import sides
from hetsim.results.comparison.time_use import COMPONENTS, TimeUse, Total, TraceRows, read_rows, seconds_by_worker, time_use
from hetsim.results.tables.metrics import METRICS
from hetsim.results.writing.figures import curves, mean_line
from hetsim.runtime.recording.recorder import ALL_REDUCE, DOWN, GRADIENT, MESSAGE, UPDATE
from hetsim.runtime.recording.trace import as_table
from hetsim.sim import Simulator

PHANTOM = {"workload": {"num_parameters": 1000, "num_samples": 10_000}, "trace": "full"}
BYTES = 4000
"""Of the phantom's gradient."""


def ran(folder: Path, *choices: str, updates: int = 30, config: str = "{}\n", **keys: Any) -> Path:
    """The folder of a timing-only run."""
    Simulator().run(experiment(*choices, "workload=phantom", budget={"updates": updates}, **{**PHANTOM, **keys}), folder, config)
    return folder


def changed(folder: Path, **entries: Any) -> None:
    """Change entries of its summary."""
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def by_hand(folder: Path, rows: list[tuple[float, ...]], **entries: Any) -> TraceRows:
    """The rows of a run of two workers and a server, with this trace."""
    folder.mkdir(exist_ok=True)
    parquet.write_table(as_table([number for row in rows for number in row]), folder / "trace.parquet")
    found = read_rows(folder, {"num_workers": 2, "num_updates": 2, "seconds": 10.0, **entries})
    assert found is not None
    return found


def printed(findings: Findings) -> str:
    """What `hetsim-compare` prints of these findings."""
    return terminal(answer(findings))


def seconds(rows: TraceRows) -> list[dict[str, float]]:
    """Of each worker the seconds in each component that it has any in."""
    return [{name: each for name, each in zip(COMPONENTS, its, strict=True) if each} for its in seconds_by_worker(rows).tolist()]


def use(*workers: list[float], intervals: Mapping[str, Total] | None = None) -> TimeUse:
    """How a run of one update used its time: of each worker the seconds in each component."""
    return TimeUse(seconds=sum(workers[0]), num_updates=1, by_worker=np.array(workers), intervals=intervals or {}, staleness={})


def shares(folder: Path) -> dict[str, float]:
    """Of a run's components."""
    found = time_use(folder, read_summary(folder))
    assert found is not None
    return dict(zip(COMPONENTS, found.shares, strict=True))


# Numbers


def test_the_error_of_a_share_is_in_percentage_points() -> None:
    """0.9 instead of 0.6 is 30 points, and not 50 %."""
    row = compared_number("idle share", [0.9], [0.57, 0.63], scale="share", error=relative_error)

    assert in_points(row) == ("+30.00 pp", "6.00 pp")
    assert in_points(compared_number("idle share", [None], [0.6], scale="share", error=relative_error)) == ("–", "–")


# Components


def test_a_moment_in_several_components_counts_once(tmp_path: Path) -> None:
    """As absent before compute before communication before the server's updates before waiting."""
    rows = [
        (0.0, 2.0, 0, GRADIENT, 0, 4, 0, 0),
        (1.0, 4.0, 0, MESSAGE, 0, 0, 0, 8),  # a second of it is hidden behind the gradient
        (3.0, 5.0, 2, UPDATE, 0, 0, 0, 0),
        (5.0, 7.0, 2, MESSAGE, 1, 0, 0, 8),
        (8.0, 9.0, 0, GRADIENT, 1, 4, 0, 0),
        (8.5, 9.5, 0, UPDATE, 1, 0, 0, 0),
        (9.0, 99.0, 0, MESSAGE, 1, 0, 0, 8),  # goes on after the last commit
        (0.0, 6.0, 1, DOWN, 0, 0, 0, 0),
        (5.0, 6.5, 1, GRADIENT, 0, 4, 0, 0),
    ]

    assert seconds(by_hand(tmp_path, rows)) == [
        {"compute": 3.5, "communication": 4.5, "server": 1.0, "waiting": 1.0},
        {"absent": 6.0, "compute": 0.5, "waiting": 3.5},
    ]


def test_an_all_reduce_is_communication_from_the_last_entry_on(tmp_path: Path) -> None:
    """Before that a worker waits; where a rank was absent, by the ends of the others."""
    rows = [
        (0.0, 1.0, 0, GRADIENT, 0, 4, 0, 0),
        (0.0, 3.0, 1, GRADIENT, 0, 4, 0, 0),
        (1.0, 5.0, 0, ALL_REDUCE, 0, 0, 0, 8),
        (3.0, 5.0, 1, ALL_REDUCE, 0, 0, 0, 8),
    ]
    together = [
        {"compute": 1.0, "communication": 2.0, "waiting": 7.0},
        {"compute": 3.0, "communication": 2.0, "waiting": 5.0},
    ]

    assert seconds(by_hand(tmp_path, rows)) == together
    alone = [*rows, (6.0, 7.0, 0, ALL_REDUCE, 1, 0, 0, 8)]
    assert seconds(by_hand(tmp_path, alone))[0] == {"compute": 1.0, "communication": 3.0, "waiting": 6.0}
    assert seconds(by_hand(tmp_path, alone))[1] == together[1]


def test_updates_that_overlap_keep_the_server_busy_once(tmp_path: Path) -> None:
    """And none that lies within another one."""
    updates = [(4.0, 8.0, 2, UPDATE, 0, 0, 0, 0), (5.0, 6.0, 2, UPDATE, 0, 0, 0, 0), (7.0, 9.0, 2, UPDATE, 0, 0, 0, 0)]
    rows = by_hand(tmp_path, [(0.0, 1.0, 0, GRADIENT, 0, 4, 0, 0), *updates])

    assert seconds(rows) == [{"compute": 1.0, "server": 5.0, "waiting": 4.0}, {"server": 5.0, "waiting": 5.0}]


def test_weights_went_to_the_worker_that_computes_at_them_next(tmp_path: Path) -> None:
    """A trace does not say to whom. A reply without weights starts no gradient, and a further local step is after no message."""
    rows = [
        (0.0, 1.0, 2, MESSAGE, 0, 0, 0, 8),
        (0.0, 2.0, 2, MESSAGE, 0, 0, 0, 8),
        (1.0, 5.0, 1, GRADIENT, 0, 4, 0, 0),
        (2.0, 4.0, 0, GRADIENT, 0, 4, 0, 0),
        (1.5, 1.7, 1, GRADIENT, 0, 4, 0, 0),
        (5.0, 5.5, 2, MESSAGE, 3, 0, 0, 0),
        (6.0, 7.0, 2, MESSAGE, 4, 0, 0, 8),
        (5.0, 6.0, 2, MESSAGE, 3, 0, 0, 8),
        (8.0, 9.0, 0, GRADIENT, 3, 4, 0, 0),
    ]

    assert by_hand(tmp_path, rows).receiver.tolist() == [1, 0, -1, -1, -1, -1, -1, 0, -1]


def test_components_of_synchronous_sgd_are_its_closed_form(tmp_path: Path) -> None:
    """Gradients of 1 s and 3 s, and a ring: in each step of 3 s + a ring of r seconds the first worker waits for 2 s."""
    described = cluster(node(0.25), node(0.75), network={"latency_seconds": 0.5, "bytes_per_second": 4000.0})
    found = shares(ran(tmp_path / "run", "method=ssgd", cluster=described, batch_size=8))

    ring = 2 * (0.5 + BYTES / (2 * 4000))
    expected = {"compute": 4, "communication": 2 * ring, "server": 0, "waiting": 2, "absent": 0}
    assert found == {name: each / (2 * (3 + ring)) for name, each in expected.items()}


def test_components_of_a_server_and_one_worker_are_their_closed_form(tmp_path: Path) -> None:
    """Push, update, pull and gradient follow one another; the first pull is asked for by a message without weights."""
    described = cluster(node(0.25), network={"latency_seconds": 0.5, "bytes_per_second": 4000.0}, seconds_per_update=0.25)
    found = shares(ran(tmp_path / "run", "method=asgd", cluster=described, batch_size=4, updates=8))

    message, total = 0.5 + 1.0, 8 * (1 + 2 * 1.5 + 0.25) + 0.5
    assert found == {
        "compute": 8 * 1.0 / total,
        "communication": (0.5 + 16 * message) / total,
        "server": 8 * 0.25 / total,
        "waiting": 0.0,
        "absent": 0.0,
    }


@pytest.mark.parametrize("method", ["asgd", "ssp", "softsync", "backup", "ringmaster", "od_sgd", "ssd_sgd", "local_sgd", "hetgrad"])
def test_components_add_up_and_agree_with_the_summary(method: str, tmp_path: Path) -> None:
    """Compute is what is not idle, and the receiver of every message with weights is found."""
    more = ("coordination.warm_up=4",) if method in ("od_sgd", "ssd_sgd") else ()
    folder = ran(tmp_path / "run", f"method={method}", *more, updates=60)
    summary = read_summary(folder)
    rows = read_rows(folder, summary)
    assert rows is not None

    found = shares(folder)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert min(found.values()) >= 0
    assert found["compute"] == pytest.approx(1 - summary["idle_share"], abs=1e-12)
    of_server = rows.of(MESSAGE) & ~rows.of_workers & (rows.nbytes > 0) & (rows.end < rows.seconds)
    assert (rows.receiver[of_server] >= 0).all()


def test_in_an_asynchronous_method_weights_arrive_when_their_gradient_begins(tmp_path: Path) -> None:
    """So the worker that is found is the right one."""
    folder = ran(tmp_path / "run", "method=asgd")
    rows = read_rows(folder, read_summary(folder))
    assert rows is not None

    gradients = {(rows.version[at], rows.start[at], rows.rank[at]) for at in np.flatnonzero(rows.of(GRADIENT))}
    pulls = np.flatnonzero(rows.receiver >= 0)
    assert len(pulls) >= 30
    assert {(rows.version[at], rows.end[at], rows.receiver[at]) for at in pulls} <= gradients


# Staleness


def test_the_distance_of_two_distributions_is_the_area_between_them() -> None:
    """A quarter of the contributions is two versions older; the distance between repeats is the spread."""
    assert wasserstein({0: 4}, {0: 3, 2: 1}) == 0.5
    found = staleness([{0: 4}], [{0: 3, 2: 1}, {1: 4}, {1: 4}])

    assert found is not None
    assert found.second == {0: 3, 1: 8, 2: 1}
    assert found.means == (0.0, pytest.approx(10 / 12))
    assert found.distance == pytest.approx(10 / 12)
    assert found.relative_distance == pytest.approx(1)
    assert found.spread == 1.0
    assert found.within_spread
    assert staleness([{0: 4}], [{}]) is None


def test_staleness_is_that_of_the_summary(tmp_path: Path) -> None:
    """Counted in the trace, up to the last commit."""
    one, other = ran(tmp_path / "one", "method=asgd"), ran(tmp_path / "other", "method=ssgd")
    found = compare([one], [other]).staleness

    assert found is not None
    assert found.means == (read_summary(one)["staleness_mean"], 0.0)
    assert found.second == {0: 120}
    assert found.distance == pytest.approx(found.means[0])
    assert found.relative_distance is None
    assert "of staleness 0" in printed(compare([one], [other]))


# Where the time went


def test_a_sentence_names_the_component_and_the_worker(tmp_path: Path) -> None:
    """One of two workers computes for 4 s, not for 3: of the second per update half is its computing and half is the other's waiting."""
    one, other = (
        ran(tmp_path / str(slow), "method=ssgd", cluster=cluster(node(0.25), node(slow)), batch_size=8, updates=10) for slow in (1.0, 0.75)
    )
    found = compare([one], [other])

    assert found.where == "first minus second: +1 s per update, of which +0.5 s computing on worker 1, +0.5 s waiting on worker 0"
    gradient, *others = found.intervals
    assert gradient.name == "gradient"
    assert (gradient.first, gradient.second) == (PerUpdate(2.0, 2.5), PerUpdate(2.0, 2.0))
    assert (gradient.by_length, gradient.by_number) == (1.0, 0.0)
    assert all(row.by_length == row.by_number == 0 for row in others)
    assert compare([one], [one]).where == "an update takes 4 s on both sides, with the same components"


def test_parts_that_cancel_are_marked_by_themselves() -> None:
    """A prediction with the right total may have wrong parts."""

    measured = [use([4.0, 6.0, 0, 0, 0]), use([4.0, 6.5, 0, 0, 0])]

    assert sentence([use([8.0, 2.0, 0, 0, 0])], measured, ("simulated", "measured")) == (
        "simulated minus measured: -0.25 s (within) per update, of which -4.25 s communication, +4 s computing"
    )
    assert sentence([use([4.0, 6.0, 0, 0, 0])], measured, ("simulated", "measured")) == (
        "simulated minus measured: -250 ms (within) per update, of which -250 ms (within) communication"
    )


def test_a_worker_is_named_that_makes_up_most_of_a_component() -> None:
    """Another one made up for a part of it; where each has its part, none is named."""
    one, other = use([9.0, 1.0, 0, 0, 0], [1.0, 1.0, 0, 8.0, 0]), use([5.0, 1.0, 0, 0, 0], [2.0, 1.0, 0, 3.0, 0])
    said = sentence([one], [other], ("first", "second"))
    assert said == "first minus second: +4 s per update, of which +2.5 s waiting on worker 1, +1.5 s computing (+2 s of it on worker 0)"

    one = use([5.0, 1.0, 0, 0, 0], [5.0, 1.0, 0, 0, 0])
    other = use([3.0, 1.0, 0, 0, 0], [3.0, 1.0, 0, 0, 0])
    assert sentence([one], [other], ("first", "second")) == "first minus second: +2 s per update, of which +2 s computing"


def test_intervals_with_the_largest_difference_are_first() -> None:
    """By their length, by their number, or both; a kind that only one side has counts by its mean length."""
    one = use([1.0, 0, 0, 0, 0], intervals={"gradient": Total(2, 4.0), "gather": Total(1, 3.0), "all-reduce": Total(1, 1.0)})
    other = use([1.0, 0, 0, 0, 0], intervals={"gradient": Total(1, 1.0), "all-reduce": Total(1, 1.0), "regroup": Total(1, 9.0)})
    rows = intervals([one], [other])

    assert [row.name for row in rows] == ["regroup", "gradient", "gather", "all-reduce"]
    assert [row.by_length + row.by_number for row in rows] == [-9.0, 3.0, 3.0, 0.0]
    assert (rows[1].by_length, rows[1].by_number) == (1.5, 1.5)


def test_a_run_whose_intervals_all_end_late_has_none(tmp_path: Path) -> None:
    """It is compared all the same."""
    folder = ran(tmp_path / "run", "method=ssgd")
    changed(folder, seconds=1e-9)

    assert "% of the time" in printed(compare([folder], [folder]))


def test_differences_of_components_add_up_to_that_of_an_update(tmp_path: Path) -> None:
    """Over all workers, in seconds per update."""
    uses = []
    for method in ("asgd", "ssp"):
        folder = ran(tmp_path / method, f"method={method}")
        found = time_use(folder, read_summary(folder))
        assert found is not None
        uses.append(found)
    one, other = (its.by_worker.sum() / len(its.by_worker) / its.num_updates for its in uses)

    assert one - other == pytest.approx(seconds_per_update(uses[:1]) - seconds_per_update(uses[1:]), abs=1e-15)


# Repeats


@pytest.fixture
def repeats(tmp_path: Path) -> tuple[Path, Path]:
    """Three simulated runs below a folder, and three that say that they were measured, at 99, 100 and 102 updates/s."""
    for backend in ("sim", "dist"):
        for seed, rate in enumerate((99.0, 100.0, 102.0)):
            folder = ran(
                tmp_path / backend / str(seed), "method=asgd", config=f"method: asgd\nlearning_rate: 0.1\nseed: {seed}\n", seed=seed
            )
            changed(folder, backend=backend, updates_per_second=rate + (0.5 if backend == "sim" else 0), samples_per_second=rate)
    return tmp_path / "sim", tmp_path / "dist"


def comparing(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim-compare`."""
    return exit_status(monkeypatch, "hetsim-compare", compare_main, *arguments)


def test_an_error_within_the_spread_of_the_repeats_is_marked() -> None:
    """The spread is the largest less the smallest, in the unit of the error; a single run has none."""

    def both(first: list[float | None], second: list[float | None]) -> ComparedNumber:
        return compared_number("number", first, second, scale="linear", error=relative_error)

    found = both([2.0, 4.0], [4.0, 3.0, 5.0])
    assert (found.first.mean, found.second.mean, found.error) == (3.0, 4.0, -0.25)
    assert (found.spread, found.is_within_spread) == (0.5, True)
    assert found.second.bounds == pytest.approx((4 - 4.302653 / 3**0.5, 4 + 4.302653 / 3**0.5))
    assert not both([9.0], [4.0, 3.0]).is_within_spread
    assert not both([1.0], [4.0, 3.0]).is_within_spread
    single = both([9.0, 9.0], [4.0])
    assert (single.spread, single.is_within_spread) == (None, None)
    lacking = both([9.0], [4.0, None])
    assert (lacking.error, lacking.spread) == (None, None)


def test_a_folder_stands_for_the_runs_below_it(
    repeats: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As do the runs themselves, those of the second side after --with; the simulated side is first."""
    simulated, measured = repeats
    asked = ("--json", tmp_path / "found.json", "--pictures", tmp_path / "pictures")
    assert comparing(monkeypatch, measured, simulated, *asked) == 0
    below = capsys.readouterr()
    found = json.loads((tmp_path / "found.json").read_text())
    assert comparing(monkeypatch, *asked, *sorted(simulated.iterdir()), "--with", *sorted(measured.iterdir())) == 0
    assert capsys.readouterr() == below
    assert json.loads((tmp_path / "found.json").read_text()) == found

    assert below.err == ""
    assert "measured: 3 runs, means with 95 % intervals; seed 0, 1, 2" in below.out
    rates = found["numbers"]["updates_per_second"]
    assert rates["simulated"] == pytest.approx((99.5 * 100.5 * 102.5) ** (1 / 3)), "a geometric mean, as in tables"
    spread = found["repeats"]["updates_per_second"]
    assert spread["within_spread"]
    assert spread["spread"] == pytest.approx(3 / rates["measured"])
    assert spread["measured_interval"][0] < rates["measured"] < spread["measured_interval"][1]
    line = next(line for line in below.out.splitlines() if line.startswith("updates/s"))
    assert line.endswith("+0.50 % (within)    2.99 %")
    assert set(found["components"]) == set(COMPONENTS)
    assert found["components"]["compute"]["percentage_points"] == 0.0
    assert found["staleness"]["wasserstein_distance"] == 0.0
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"timeline.png"}


def test_many_different_keys_of_a_cluster_are_one_sentence(
    repeats: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a calibrated cluster differs from what is described in nearly all of them. A few keys are shown with their values."""
    described = "{name: a, nodes: 2, network: {latency_seconds: 1, bytes_per_second: 1}, server: {seconds_per_update: 1}}"
    for side, its in zip(repeats, (described, described.replace("1", "2").replace("a, nodes: 2", "b, nodes: 3")), strict=True):
        for number in range(3):
            (side / str(number) / "config.yaml").write_text(f"method: asgd\nlearning_rate: 0.1\nseed: {number}\ncluster: {its}\n")

    assert comparing(monkeypatch, *repeats) == 0
    assert "the runs differ in 5 keys of cluster: name, network, nodes, server\n" in capsys.readouterr().err


def test_runs_of_two_configs_are_no_repeats(
    repeats: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names the key, both values and both folders; three folders are not two sides, either."""
    simulated, measured = repeats
    (measured / "2" / "config.yaml").write_text("method: asgd\nlearning_rate: 0.2\nseed: 2\n")

    assert comparing(monkeypatch, simulated, measured) == 1
    assert capsys.readouterr().err == (
        "hetsim-compare: error: the runs of one side are repeats of one config, and differ in learning_rate "
        f"(0.1 in {measured / '0'} and 0.2 in {measured / '2'}): leave one out\n"
    )
    assert comparing(monkeypatch, simulated / "0", measured / "0", "--with", measured / "1") == 1
    assert "differ in backend: leave one out" in capsys.readouterr().err
    assert comparing(monkeypatch, simulated / "0", simulated / "1", measured / "0") == 2
    assert "3 folders are not two sides" in capsys.readouterr().err
    (simulated.parent / "empty").mkdir()
    assert comparing(monkeypatch, simulated, simulated.parent / "empty") == 1
    assert "holds no finished run: give the folder of one" in capsys.readouterr().err


def test_a_simulated_run_counts_once(repeats: tuple[Path, Path]) -> None:
    """Of one seed it is the same run; measured runs of one seed are repeats, but no folder counts twice."""
    simulated, measured = repeats
    for folder in (simulated, measured):
        changed(folder / "1", seed=0)
        (folder / "1" / "config.yaml").write_text("method: asgd\nlearning_rate: 0.1\nseed: 0\n")
    both = sides([simulated], [measured, measured / "0"])

    assert [side.num_runs for side in both.both] == [2, 3]
    assert [remark.endswith("are the same run: one of them is counted") for remark in both.remarks] == [True, True]
    assert both.different == {}


def test_without_intervals_in_a_trace_the_numbers_are_compared(repeats: tuple[Path, Path]) -> None:
    """And a sentence says what is not."""
    simulated, measured = repeats
    ran(simulated / "0", "method=asgd", config=(simulated / "0" / "config.yaml").read_text(), trace="commits")
    found = compare([simulated], [measured])

    assert len(found.remarks) == 1
    assert found.remarks[0].startswith("where the time went is not compared: simulated has a run without intervals")
    assert (found.components, found.staleness, found.intervals, found.where) == ([], None, [], "")
    assert "% of the time" not in printed(found)


def test_python_takes_runs_folders_and_lists_of_both(repeats: tuple[Path, Path]) -> None:
    """Each side its own way."""
    simulated, measured = repeats
    found = hetsim.compare(simulated, [hetsim.load(measured / "0"), measured / "1", measured / "2"])

    assert found.names == ("simulated", "measured")
    assert [len(side) for side in found.sides] == [3, 3]
    assert found.runs[1].folder == measured / "0"
    assert [row["name"] for row in found.components] == [*COMPONENTS]
    assert found.staleness is not None
    assert found.intervals[0]["first"]["per_update"] > 0
    assert "\nsimulated: 3 runs, means with 95 % intervals; seed 0, 1, 2\n" in repr(found)
    found.draw(simulated.parent / "drawn")
    assert (simulated.parent / "drawn" / "timeline.png").is_file()
    with pytest.raises(ValueError, match="one side has no runs"):
        hetsim.compare(simulated, [])


# Pictures


def test_a_mean_of_curves_is_where_all_have_begun_and_none_has_ended() -> None:
    """At the moments of each of them, interpolated."""
    assert mean_line([[(0.0, 4.0), (2.0, 0.0)], [(1.0, 1.0), (3.0, 3.0)]]) == ([1.0, 2.0], [1.5, 1.0])
    assert mean_line([[(0.0, 4.0)], [(1.0, 1.0)]]) == ([], [])


def test_repeats_are_thin_lines_and_their_mean_a_thick_one() -> None:
    """In the colour of their side."""
    runs = [[(0.0, {"train_loss": loss}), (1.0, {"train_loss": 1.0})] for loss in (2.0, 3.0)]
    figure = curves([("simulated", runs), ("measured", runs[:1])], title="curves")

    lines = figure.axes[0].get_lines()
    assert [line.get_linewidth() for line in lines] == [0.6, 0.6, 2.4, 1.8]
    assert len({line.get_color() for line in lines}) == 2
    assert lines[2].get_ydata()[0] == 2.5
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["simulated", "measured"]


def test_a_number_has_the_scale_that_it_has_in_a_table() -> None:
    """So both commands print the same mean of the same runs."""
    of_tables = {"final.train_loss": "final_loss", "final.test_accuracy": "final_accuracy"}

    assert {key: SCALES.get(key, "from zero") for key in NUMBERS.values()} == {
        key: METRICS[of_tables.get(key, key)].scale for key in NUMBERS.values()
    }
