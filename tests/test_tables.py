"""`hetsim-table`: a row for each config, ranked within its cluster by a number that compares like with like."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from worlds import exit_status

from hetsim.answers.text import markdown as as_markdown
from hetsim.cli.table import main as table_main
from hetsim.files.identity import config_header
from hetsim.files.summary_and_curve import time_to, value_at
from hetsim.results.reading.finished_runs import finished_runs
from hetsim.results.tables.answer import answer
from hetsim.results.tables.estimates import estimate, paired_ratio
from hetsim.results.tables.metrics import METRICS, Target
from hetsim.results.tables.question import TableQuestion
from hetsim.results.tables.table import Ranking, table

T2 = 0.95 / math.sqrt(2 * 0.975 * 0.025)
"""Student's t of 97.5 % at two degrees of freedom, in closed form."""


def made(
    folder: Path,
    seed: int,
    *,
    accuracies: tuple[float, ...] = (),
    losses: tuple[float, ...] = (),
    typed: tuple[str, ...] = (),
    summary: Mapping[str, Any] | None = None,
    **keys: Any,
) -> None:
    """A finished run by hand: one second between the points of its curve."""
    folder.mkdir(parents=True)
    names = ("seconds", "updates_per_second", "samples_per_second", "staleness_mean", "staleness_max", "idle_share")
    final = {"train_loss": losses[-1] if losses else None, "test_accuracy": accuracies[-1] if accuracies else None}
    entries = {"method": "ssgd", "backend": "sim", "seed": seed, **dict.fromkeys(names, 1.0), "final": final, **(summary or {})}
    rows = [losses or [""] * len(accuracies), accuracies or [""] * len(losses)]
    points = [f"{second}.0,{second},0,{loss},{accuracy}" for second, (loss, accuracy) in enumerate(zip(*rows, strict=True))]
    (folder / "curve.csv").write_text("\n".join(["seconds,version,samples,train_loss,test_accuracy", *points]) + "\n")
    config = {"method": "ssgd", "seed": seed, **keys}
    (folder / "config.yaml").write_text(config_header("-", typed) + OmegaConf.to_yaml(OmegaConf.create(config)))
    (folder / "summary.json").write_text(json.dumps(entries))


def tabulate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim-table`."""
    return exit_status(monkeypatch, "hetsim-table", table_main, *arguments)


def asked(
    folder: Path, metric: str | None = None, *, baseline: str | None = None, best_of: tuple[str, ...] = (), **target: float
) -> Ranking:
    """The table of the runs below a folder."""
    return table(finished_runs(folder), TableQuestion(metric, Target(**target), baseline, best_of))


def markdown(table: Ranking) -> str:
    """What `hetsim-table` prints."""
    return as_markdown(answer(table))


def methods(folder: Path, rates: Mapping[str, tuple[float, ...]], **keys: Any) -> None:
    """A run of each method for each of its rates in samples per second, seeds 0, 1, …"""
    for method, numbers in rates.items():
        for seed, rate in enumerate(numbers):
            name = f"{method}-{seed}-{len(list(folder.glob('*')))}"
            about = {"method": method, "samples_per_second": rate}
            typed = (f"method={method}", *(f"{key}={value['name'] if isinstance(value, dict) else value}" for key, value in keys.items()))
            made(folder / name, seed, summary=about, typed=typed, **{"method": method, **keys})


# Estimates


def test_an_interval_of_times_is_one_of_logarithms_and_never_reaches_zero() -> None:
    """Against the formula; numbers that are not above zero, shares, and a single run."""
    found = estimate([1.0, 2.0, 4.0], scale="logarithmic")
    half = T2 * math.log(2) / math.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 * math.exp(-half), 2 * math.exp(half)), rel=1e-9)
    wide = estimate([0.01, 1.2], scale="logarithmic")
    assert wide.low is not None
    assert wide.low > 0
    linear = estimate([1.0, 2.0, 3.0], scale="linear")
    assert (linear.mean, linear.low, linear.high) == pytest.approx((2.0, 2 - T2 / math.sqrt(3), 2 + T2 / math.sqrt(3)), rel=1e-9)
    late = estimate([0.0, 0.1], scale="logarithmic")
    assert (late.mean, late.low) == (0.05, 0.0)
    assert estimate([-1.0, 0.1], scale="logarithmic").low == pytest.approx(-0.45 - 12.706204736 * 0.55, rel=1e-9)
    share = estimate([0.5, 0.99], scale="share")
    assert (share.low, share.high) == (0.0, 1.0)
    one = estimate([7.0], scale="logarithmic")
    assert (one.mean, one.low, one.high) == (7.0, None, None)
    same = estimate([0.1, 0.1, 0.1], scale="logarithmic")
    assert (same.mean, same.low, same.high) == pytest.approx((0.1, 0.1, 0.1), rel=1e-15)


@pytest.mark.parametrize("name", METRICS)
def test_no_interval_of_a_table_is_below_zero(name: str) -> None:
    """However much the runs differ, because no number of a table is: neither times, rates and losses nor staleness."""
    low = estimate([0.001, 0.9], scale=METRICS[name].scale).low

    assert low is not None
    assert low >= 0


def test_a_number_that_some_run_lacks_has_no_mean() -> None:
    """To leave that run out would favour its config."""
    found = estimate([1.0, None], scale="linear")
    assert (found.mean, found.low, found.num_known, found.num_runs) == (None, None, 1, 2)


def test_a_gain_is_paired_by_seed() -> None:
    """Seeds differ a hundredfold, their ratios by a few percent: the interval of the ratio is narrow, and the same upside down."""
    one, other = {0: [1.0], 1: [10.0], 2: [100.0]}, {0: [2.1], 1: [20.0], 2: [190.0]}
    gain, loss = paired_ratio(other, one), paired_ratio(one, other)
    logarithms = [math.log(ratio) for ratio in (2.1, 2.0, 1.9)]
    mean = sum(logarithms) / 3
    half = T2 * math.sqrt(sum((value - mean) ** 2 for value in logarithms) / 2 / 3)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((math.exp(mean), math.exp(mean - half), math.exp(mean + half)), rel=1e-9)
    assert gain.mean is not None
    assert (loss.low, loss.high) == pytest.approx((1 / (gain.high or 0), 1 / (gain.low or 0)), rel=1e-9)
    assert paired_ratio({0: [1.0, 4.0], 5: [9.0]}, {0: [1.0], 7: [3.0]}).mean == pytest.approx(2.0)  # repeats of a seed; seeds of one only
    assert paired_ratio({0: [1.0]}, {1: [1.0]}).mean is None
    assert paired_ratio({0: [1.0], 1: [None]}, {0: [1.0], 1: [1.0]}).mean is None


def test_curves_are_interpolated() -> None:
    """Between the evaluation that reached the target and the one before; at a moment between two; never outside."""
    points = [(0.0, 2.0, 0.1), (1.0, 1.0, 0.5), (3.0, None, 0.9), (4.0, 3.0, 0.3)]
    assert time_to(points, accuracy=0.7) == pytest.approx(2.0)
    assert time_to(points, accuracy=0.5) == 1.0
    assert time_to(points, accuracy=0.05) == 0.0
    assert time_to(points, accuracy=0.95) is None
    assert time_to(points, loss=1.25) == pytest.approx(0.75)
    assert time_to([(0.0, math.inf, None), (1.0, 0.5, None)], loss=1.0) == 1.0
    assert value_at(points, 2.0, 2) == pytest.approx(0.7)
    assert value_at(points, 2.5, 1) == pytest.approx(2.0)
    assert [value_at(points, moment, 2) for moment in (0.0, 4.0)] == [0.1, 0.3]
    assert value_at(points, 4.5, 2) is None
    assert value_at([(1.0, None, 0.5)], 1.0, 2) == 0.5


# What is compared


def test_the_default_is_the_time_to_the_accuracy_that_every_row_reaches(tmp_path: Path) -> None:
    """Interpolated, the best first; a diverged row does not count, and the row that is the limit is named."""
    for seed in (0, 1):
        made(tmp_path / f"a{seed}", seed, accuracies=(0.0, 0.4, 0.8), typed=("method=a",), method="a")
        made(tmp_path / f"b{seed}", seed, accuracies=(0.0, 0.6, 0.6 + seed / 10), typed=("method=b",), method="b")
        made(tmp_path / f"c{seed}", seed, accuracies=(0.0, 0.1, 0.1), typed=("method=c",), method="c", summary={"diverged": seed == 1})

    found = asked(tmp_path)

    assert found.metric == "seconds_to_accuracy"
    assert [(row.label, row.numbers["seconds_to_accuracy"].mean) for row in found.rows] == [
        ("b", 1.0),
        ("a", pytest.approx(1.5)),
        ("c", None),
    ]
    assert any("every row reaches the accuracy 0.6, and b reaches no higher one" in remark for remark in found.remarks)
    assert "| `c` | 2 (1 diverged) | never reached |" in markdown(found)
    assert "| seconds to 0.6 |" in markdown(found)
    higher = asked(tmp_path, accuracy=0.65)
    assert [row.numbers["seconds_to_accuracy"].num_known for row in higher.rows] == [2, 1, 0]
    assert "reached by 1 of 2" in markdown(higher)


def test_a_group_without_accuracies_stands_beside_one_with_them(tmp_path: Path) -> None:
    """A phantom, say, in the folder of runs that learn: no time to an accuracy is compared there."""
    for name, accuracies in {"digits": (0.1, 0.9), "phantom": ()}.items():
        for method in ("ssgd", "asgd"):
            made(
                tmp_path / name / method, 0, accuracies=accuracies, losses=() if accuracies else (1.0, 0.5), typed=(f"method={method}",),
                summary={"workload": name}, method=method, workload={"name": name},
            )  # fmt: skip

    text = markdown(asked(tmp_path))

    assert "| seconds to 0.9 |" in text
    assert "| seconds to an accuracy |" in text


def test_without_accuracies_the_default_is_samples_per_second(tmp_path: Path) -> None:
    """Never the seconds of a budget of updates, which are of fewer samples in an asynchronous method."""
    methods(tmp_path, {"ssgd": (10.0, 10.0), "asgd": (30.0, 30.0)})

    found = asked(tmp_path)

    assert (found.metric, [row.label for row in found.rows]) == ("samples_per_second", ["asgd", "ssgd"])
    assert "seconds |" not in markdown(found)


def test_seconds_compare_runs_of_equal_samples_only(tmp_path: Path) -> None:
    """One sentence says which number to take."""
    for place, samples in enumerate((100, 100, 25)):
        made(
            tmp_path / str(place),
            0,
            batch_size=place,
            summary={"num_samples": samples, "seconds": 3.0 - place},
            typed=(f"batch_size={place}",),
        )

    with pytest.raises(ValueError, match=r"would compare runs of 25 to 100 samples.*take --metric samples_per_second"):
        asked(tmp_path, "seconds")
    subprocess.run(["rm", "-r", tmp_path / "2"], check=True)
    assert [row.label for row in asked(tmp_path, "seconds").rows] == ["batch_size=1", "batch_size=0"]


def test_loss_and_accuracy_at_equal_time(tmp_path: Path) -> None:
    """What had ended before has no number, and says so."""
    made(tmp_path / "0", 0, accuracies=(0.0, 0.4, 0.8), losses=(3.0, 2.0, 1.0), typed=("method=a",), method="a")
    made(tmp_path / "1", 0, accuracies=(0.0, 0.8), losses=(3.0, 1.0), typed=("method=b",), method="b")

    found = asked(tmp_path, seconds=0.5)
    assert (found.metric, [row.numbers["accuracy_at_seconds"].mean for row in found.rows]) == ("accuracy_at_seconds", [0.4, 0.2])
    assert [row.numbers["loss_at_seconds"].mean for row in found.rows] == [2.0, 2.5]
    assert "had ended" in markdown(asked(tmp_path, seconds=1.5))
    assert asked(tmp_path, loss=1.5).metric == "seconds_to_loss"


def test_rows_are_ranked_within_their_cluster(tmp_path: Path) -> None:
    """One ranking each; where each cluster has one row, one ranking of all."""
    for cluster, factor in (("one", 1.0), ("two", 10.0)):
        methods(tmp_path / cluster, {"ssgd": (factor,), "asgd": (2 * factor,)}, cluster={"name": cluster})

    found = asked(tmp_path)

    assert [(group.label, [group.name(row) for row in group.rows]) for group in found.groups] == [
        ("cluster=one", ["asgd", "ssgd"]),
        ("cluster=two", ["asgd", "ssgd"]),
    ]
    assert markdown(found).count("| method | runs | samples/s |") == 2
    for cluster in ("one", "two"):
        subprocess.run(f"rm -r {tmp_path}/{cluster}/ssgd*", shell=True, check=True)
    (group,) = asked(tmp_path).groups
    assert [row.label for row in group.rows] == ["cluster=two", "cluster=one"]


def test_a_gain_is_over_the_baseline_of_the_same_cluster(tmp_path: Path) -> None:
    """Above 1 where the row is better, for rates and for times; the baseline's own is 1."""
    for cluster, factor in (("one", 1.0), ("two", 10.0)):
        methods(tmp_path / cluster, {"ssgd": (factor, 2 * factor), "asgd": (3 * factor, 6 * factor)}, cluster={"name": cluster})

    found = asked(tmp_path, baseline="method=ssgd")

    assert [row.gain and (row.gain.mean, row.gain.low) for row in found.rows] == [pytest.approx((3, 3)), (1, 1)] * 2
    assert "| samples/s | gain over `method=ssgd` |" in markdown(found)
    with pytest.raises(ValueError, match="--baseline method=x: no row is it; the rows are asgd, cluster=one; "):
        asked(tmp_path, baseline="method=x")
    with pytest.raises(ValueError, match="--baseline ssgd: name a row by its keys, such as method=ssgd"):
        asked(tmp_path, baseline="ssgd")


def test_rows_on_fewer_nodes_are_in_one_table_with_one_baseline(tmp_path: Path) -> None:
    """That on all nodes, where the baseline does not say which; else the one that it names, however a list is written."""
    for name, factor, cluster in (
        ("all", 1.0, {"name": "one", "leave_out": None}),
        ("none", 1.5, {"name": "one", "leave_out": [0]}),
        ("two", 3.0, {"name": "one", "leave_out": [0, 1]}),
    ):
        typed = (f"++cluster.leave_out={json.dumps(cluster['leave_out'], separators=(',', ':'))}",)
        for method in ("ssgd", "asgd"):
            keys = {"samples_per_second": factor * (2 if method == "asgd" else 1)}
            made(tmp_path / f"{name}-{method}", 0, typed=(f"method={method}", *typed), summary=keys, method=method, cluster=cluster)

    def gains(baseline: str) -> dict[str, float | None]:
        (group,) = asked(tmp_path, baseline=baseline).groups
        return {" ".join(row.keys.values()): row.gain and row.gain.mean for row in group.rows}

    on_all = gains("method=ssgd")
    assert on_all == pytest.approx({"asgd [0,1]": 6, "ssgd [0,1]": 3, "asgd [0]": 3, "asgd null": 2, "ssgd [0]": 1.5, "ssgd null": 1})
    assert gains("method=ssgd,cluster.leave_out=[]") == on_all
    assert gains("method=ssgd,cluster.leave_out=[0, 1]") == pytest.approx({key: gain / 3 for key, gain in on_all.items() if gain})


def test_a_baseline_that_may_be_one_of_two_rows_is_refused(tmp_path: Path) -> None:
    """The sentence names both."""
    for method, size in (("a", 1), ("b", 1), ("c", 2)):
        methods(tmp_path / method, {method: (1.0,)}, batch_size=size)

    with pytest.raises(ValueError, match="a, batch_size=1 and b, batch_size=1 are both it; name more keys, or see --best-of"):
        asked(tmp_path, baseline="batch_size=1")


def test_a_gain_of_times_is_the_baselines_over_the_rows(tmp_path: Path) -> None:
    """Half the time is a gain of two."""
    made(tmp_path / "0", 0, accuracies=(0.0, 0.4, 0.8), typed=("method=a",), method="a")
    made(tmp_path / "1", 0, accuracies=(0.0, 0.8, 0.8), typed=("method=b",), method="b")

    assert [row.gain and row.gain.mean for row in asked(tmp_path, baseline="method=a").rows] == [pytest.approx(2.0), 1.0]


def test_a_baseline_in_a_grid_is_the_row_that_agrees_in_the_other_keys(tmp_path: Path) -> None:
    """`allocation=even` in a sweep over methods and allocations: each method over its own even split."""
    rates = {("ssgd", "even"): 1.0, ("ssgd", "dbs"): 2.0, ("asgd", "even"): 10.0, ("asgd", "dbs"): 15.0}
    for place, ((method, allocation), rate) in enumerate(rates.items()):
        typed = (f"method={method}", f"allocation={allocation}")
        summary = {"method": method, "samples_per_second": rate}
        made(tmp_path / str(place), 0, summary=summary, typed=typed, method=method, allocation={"_target_": f"a.{allocation}"})

    found = asked(tmp_path, baseline="allocation=even")

    assert {row.label: row.gain and row.gain.mean for row in found.rows} == pytest.approx(
        {"asgd, allocation=dbs": 1.5, "asgd, allocation=even": 1.0, "ssgd, allocation=dbs": 2.0, "ssgd, allocation=even": 1.0}
    )


def test_each_methods_best_rates_are_kept_and_said(tmp_path: Path) -> None:
    """A best value at the end of those tried is said; the target is what the best rows reach."""
    reached = {("a", 0.1): 0.5, ("a", 0.2): 0.8, ("a", 0.4): 0.6, ("b", 0.1): 0.6, ("b", 0.2): 0.7, ("b", 0.4): 0.9}
    for place, ((method, rate), accuracy) in enumerate(reached.items()):
        typed = (f"method={method}", f"learning_rate={rate}")
        made(tmp_path / str(place), 0, accuracies=(0.0, accuracy), typed=typed, method=method, learning_rate=rate, follows=2 * rate)

    found = asked(tmp_path, best_of=("learning_rate",))

    assert [row.label for row in found.rows] == ["b, learning_rate=0.4", "a, learning_rate=0.2"]
    assert found.groups[0].target.accuracy == 0.8
    assert "b, learning_rate=0.4: the best learning_rate is the largest of the 3 tried, so a better one may lie beyond" in found.remarks
    assert not any(remark.startswith("a, learning_rate=0.2: the best") for remark in found.remarks)
    with pytest.raises(ValueError, match=r"--best-of lerning_rate: the runs do not differ in it.*did you mean 'learning_rate'"):
        asked(tmp_path, best_of=("lerning_rate",))


def test_no_value_is_the_best_of_equal_ones(tmp_path: Path) -> None:
    """Samples per second do not depend on a learning rate, so the table would keep any."""
    for place, rate in enumerate((0.1, 0.2, 0.4)):
        for method, speed in (("ssgd", 2.0), ("asgd", 3.0)):
            made(
                tmp_path / f"{method}-{place}", 0, losses=(1.0, 0.5 - rate), typed=(f"method={method}", f"learning_rate={rate}"),
                summary={"samples_per_second": speed}, method=method, learning_rate=rate,
            )  # fmt: skip

    with pytest.raises(
        ValueError, match=r"--best-of learning_rate: give --target-loss L .* ranked by samples per second, whatever the values"
    ):
        asked(tmp_path, best_of=("learning_rate",))
    with pytest.raises(
        ValueError, match=r"--best-of learning_rate: no run reached a training loss of 0.01 \(the lowest is 0.1\), so rows are"
    ):
        asked(tmp_path, best_of=("learning_rate",), loss=0.01)
    with pytest.raises(ValueError, match=r"--best-of learning_rate: samples/s is the same whatever it is.*--metric final_loss"):
        asked(tmp_path, "samples_per_second", best_of=("learning_rate",))
    assert {row.keys["learning_rate"] for row in asked(tmp_path, "final_loss", best_of=("learning_rate",)).rows} == {"0.4"}


def test_a_target_that_no_run_reaches_is_said(tmp_path: Path) -> None:
    """With how far the best came; and what a ranking by samples per second does not say."""
    methods(tmp_path / "both", {"ssgd": (1.0,), "asgd": (2.0,)})
    for method in ("ssgd", "asgd"):
        made(tmp_path / "learning" / method, 0, accuracies=(0.1, 0.8), losses=(2.0, 0.7), typed=(f"method={method}",), method=method)
        made(tmp_path / "own" / method, 0, losses=(2.0, 0.7), typed=(f"method={method}",), method=method)

    assert (
        "no run reached an accuracy of 0.9 (the highest is 0.8), so rows are ranked by samples per second"
        in asked(tmp_path / "learning", accuracy=0.9).remarks
    )
    assert (
        "no run reached an accuracy of 0.9 (none was measured), so rows are ranked by samples per second"
        in asked(tmp_path / "own", accuracy=0.9).remarks
    )
    assert any(remark.startswith("give --target-loss L to compare the times") for remark in asked(tmp_path / "own").remarks)
    assert not any("--target-loss" in remark for remark in asked(tmp_path / "both").remarks)
    with pytest.raises(ValueError, match=r"--metric seconds_to_loss: no run reached a training loss of 0.4 \(the lowest is 0.7\)"):
        asked(tmp_path / "learning", "seconds_to_loss", loss=0.4)


def test_a_column_has_one_scale(tmp_path: Path) -> None:
    """A loss that is not above zero in one row has no logarithm in any; nor is there a gain, which is said."""
    for method, losses in {"ssgd": (0.1, 1.0, 10.0), "asgd": (-0.5, 0.5, 1.0)}.items():
        for seed, loss in enumerate(losses):
            made(tmp_path / f"{method}-{seed}", seed, losses=(20.0, loss), typed=(f"method={method}",), method=method)

    table = asked(tmp_path, "final_loss", baseline="method=ssgd")

    means = {row.keys["method"]: row.numbers["final_loss"].mean for row in table.rows}
    assert means == {"ssgd": pytest.approx(3.7), "asgd": pytest.approx(1 / 3)}
    assert "a gain is a ratio of numbers above zero, and final loss is not in every run" in table.remarks


def test_a_gain_that_is_equal_in_all_seeds_is_said_to_be(tmp_path: Path) -> None:
    """It has no interval; nor does a single run's, of which nothing is known."""
    methods(tmp_path / "three", {"ssgd": (2.0, 3.0, 4.0), "asgd": (4.0, 6.0, 8.0)})
    methods(tmp_path / "one", {"ssgd": (2.0,), "asgd": (4.0,)})

    assert "2 (equal in all 3)" in markdown(asked(tmp_path / "three", baseline="method=ssgd"))
    assert "| 2 |" in markdown(asked(tmp_path / "one", baseline="method=ssgd"))


def test_rows_of_several_coordinations_are_marked(tmp_path: Path) -> None:
    """In a column, and in one sentence; not where a key says it already."""
    for place, name in enumerate(("all_reduce.SynchronousAllReduce", "parameter_server.ParameterServer")):
        target = {"_target_": f"hetsim.coordination.{name}"}
        made(tmp_path / str(place), 0, typed=(f"method={place}",), method=place, coordination=target)

    found = asked(tmp_path)

    assert [row.coordination for row in found.rows] == ["all_reduce", "parameter_server"]
    assert "| method | coordination | runs |" in markdown(found)
    assert sum("rows differ in coordination" in remark for remark in found.remarks) == 1


def test_numbers_of_the_users_own_have_columns(tmp_path: Path) -> None:
    """By their names, as final.NAME."""
    for place, error in enumerate((0.3, 0.1)):
        final = {"train_loss": None, "test_accuracy": None, "mae": error}
        made(tmp_path / str(place), 0, batch_size=place, typed=(f"batch_size={place}",), summary={"final": final})

    found = asked(tmp_path, "final.mae")

    assert [(row.label, row.numbers["final.mae"].mean) for row in found.rows] == [("batch_size=1", 0.1), ("batch_size=0", 0.3)]
    assert "| final mae |" in markdown(found)


# Files


def test_a_number_of_the_users_own_is_not_hetsims_of_the_same_head(tmp_path: Path) -> None:
    """final.accuracy is not final_accuracy, whichever is asked for first."""
    final = {"train_loss": 1.0, "test_accuracy": 0.5, "accuracy": 7.0, "loss": 9.0}
    made(tmp_path / "run", 0, accuracies=(0.1, 0.5), summary={"final": final})

    (row,) = asked(tmp_path).rows

    found = {name: row.numbers[name].mean for name in ("final_accuracy", "final_loss", "final.accuracy", "final.loss")}
    assert found == {"final_accuracy": 0.5, "final_loss": 1.0, "final.accuracy": 7.0, "final.loss": 9.0}


def test_more_of_a_number_of_the_users_own_may_be_better(tmp_path: Path) -> None:
    """Ranked, compared and kept so."""
    for method, value in {"ssgd": 0.5, "asgd": 0.75}.items():
        made(
            tmp_path / method, 0, losses=(2.0, 1.0), typed=(f"method={method}",), method=method,
            summary={"final": {"train_loss": 1.0, "test_accuracy": None, "r_squared": value}},
        )  # fmt: skip

    def ranked(direction: str | None) -> list[tuple[str, float | None]]:
        found = table(finished_runs(tmp_path), TableQuestion("final.r_squared", baseline="method=ssgd", direction=direction))
        return [(row.keys["method"], row.gain.mean if row.gain else None) for row in found.rows]

    assert ranked(None) == ranked("minimize") == [("ssgd", 1.0), ("asgd", pytest.approx(2 / 3))]
    assert ranked("maximize") == [("asgd", pytest.approx(1.5)), ("ssgd", 1.0)]
    with pytest.raises(ValueError, match="--direction must be minimize or maximize, not up"):
        TableQuestion("final.r_squared", direction="up")
    with pytest.raises(ValueError, match=r"--direction is for a number of your own: add --metric final\.NAME"):
        TableQuestion("final_loss", direction="maximize")


def test_the_same_table_is_in_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Markdown on the screen and in a file, CSV, Parquet, a picture."""
    from pyarrow import csv, parquet

    for seed, rate in enumerate((1.0, 2.0, 4.0)):
        made(tmp_path / "a" / str(seed), seed, summary={"samples_per_second": rate}, batch_size=8, typed=("batch_size=8",))
        made(tmp_path / "b" / str(seed), seed, summary={"samples_per_second": 2 * rate}, batch_size=16, typed=("batch_size=16",))

    assert tabulate(monkeypatch, tmp_path, "--baseline", "batch_size=8", "--to", tmp_path / "told") == 0

    told = capsys.readouterr()
    columns = parquet.read_table(tmp_path / "told" / "table.parquet").to_pydict()
    half = math.exp(T2 * math.log(2) / math.sqrt(3))
    assert told.err == ""
    assert [line.split(" | ")[:4] for line in told.out.splitlines()[2:]] == [
        ["| `16`", "3", "4 (0.715 … 22.4)", "2 (equal in all 3)"],
        ["| `8`", "3", "2 (0.357 … 11.2)", "1"],
    ]
    assert columns["label"] == ["batch_size=16", "batch_size=8"]
    assert columns["samples_per_second_mean"] == pytest.approx([4.0, 2.0])
    assert columns["samples_per_second_low"] == pytest.approx([4 / half, 2 / half])
    assert columns["samples_per_second_high"] == pytest.approx([4 * half, 2 * half])
    assert columns["gain_mean"] == pytest.approx([2.0, 1.0])
    assert columns["seconds_to_accuracy_mean"] == [None, None]
    assert csv.read_csv(tmp_path / "told" / "table.csv").column_names == list(columns)
    assert (tmp_path / "told" / "table.md").read_text() == told.out
    assert {path.name for path in (tmp_path / "told").iterdir()} == {"table.parquet", "table.csv", "table.md", "table.png"}


@pytest.mark.slow
def test_hundreds_of_clusters_make_a_picture_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty rows; the others are in the other files."""
    for number in range(33):
        methods(tmp_path / str(number), {"ssgd": (1.0,), "asgd": (2.0,)}, cluster={"name": f"c{number}"})

    assert tabulate(monkeypatch, tmp_path) == 0
    assert (tmp_path / "table.png").stat().st_size < 10**6


def test_a_row_is_labelled_by_what_was_typed(tmp_path: Path) -> None:
    """Of the many keys that a method sets the method is enough; what was not typed is named only where nothing else tells rows apart."""
    made(tmp_path / "0", 0, method="ssgd", momentum=0.9, allocation={"_target_": "a.Even"}, typed=("method=ssgd",))
    made(tmp_path / "1", 0, method="asgd", momentum=0.0, allocation={"_target_": "a.Even"}, typed=("method=asgd", "pictures=false"))
    made(tmp_path / "2", 0, method="asgd", momentum=0.0, allocation={"_target_": "a.Dbs"}, typed=("method=asgd", "allocation=dbs"))
    made(tmp_path / "3", 0, method="asgd", momentum=0.1, allocation={"_target_": "a.Dbs"}, typed=("method=asgd", "allocation=dbs"))

    assert [row.label for row in asked(tmp_path).rows] == [
        "asgd, allocation=dbs, momentum=0.0",
        "asgd, allocation=dbs, momentum=0.1",
        "asgd, allocation=even, momentum=0.0",
        "ssgd, allocation=even, momentum=0.9",
    ]


def test_the_same_simulated_run_counts_once(tmp_path: Path) -> None:
    """A copy would make an interval too narrow; it is reported."""
    made(tmp_path / "0", 0, pictures=True)
    made(tmp_path / "1", 0, pictures=False)

    found = asked(tmp_path)
    (row,), (remark,) = found.rows, found.remarks

    assert len(row.runs) == 1
    assert "are the same run: one of them is counted" in remark


def test_a_table_of_nothing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No folder, no run, no number, a run that is none."""

    def told(*arguments: object) -> str:
        assert tabulate(monkeypatch, *arguments) == 1
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line.removeprefix("hetsim-table: error: ")

    assert told(tmp_path / "x").startswith(f"{tmp_path / 'x'} is not a folder: give the folder of a sweep")
    assert told(tmp_path).startswith(f"{tmp_path} holds no finished run: give")
    made(tmp_path / "0", 0)
    assert told(tmp_path, "--metric", "final_accuracy").startswith(
        "no run has a number for final_accuracy: take --metric samples_per_second or "
    )
    assert told(tmp_path, "--metric", "second").endswith("; did you mean 'seconds'?\n")
    assert told(tmp_path, "--accuracy", "90").startswith("--target-accuracy must be above 0 and at most 1, not 90")
    (tmp_path / "0" / "summary.json").write_text("{}")
    assert "lacks updates/s" in told(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"0"}


def test_long_values_that_would_look_the_same_are_shown_in_full(tmp_path: Path) -> None:
    """Two clusters that differ in the middle of their nodes; a short one beside them, and a long one that is like no other."""
    begin, end = "count: 2, seconds_per_sample: ", ", overhead_seconds: 0.001, noise: null, rack: null"
    nodes = [f"[{begin}{seconds}{end}]" for seconds in ("0.001", "0.002")] + ["[one]", f"[some other beginning, {begin}1{end}]"]
    for place, value in enumerate(nodes):
        made(tmp_path / str(place), 0, nodes=value, typed=(f"nodes={value}",))

    told = markdown(asked(tmp_path))

    assert [f"`{value}`" in told for value in nodes] == [True, True, True, False]


def test_a_cell_is_nothing_but_its_text(tmp_path: Path) -> None:
    """A value may be a stranger's: it ends no cell, no code and no line, and is no tag of HTML."""
    for place, value in enumerate(("a | b", "`c` <img src=x>", "d\x1b[2J")):
        made(tmp_path / str(place), 0, nodes=value, typed=(f"nodes={value}",))

    told = markdown(asked(tmp_path))

    assert all(line.replace("\\|", "").count("|") == told.split("\n")[0].count("|") for line in told.strip().split("\n"))
    assert {"`a ¦ b`", "`'c' ‹img src=x›`", "`d\\x1b[2J`"} <= {cell.strip() for cell in re.split(r"(?<!\\)\|", told)}


def test_a_table_is_neither_a_picture_nor_a_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Markdown and in a spreadsheet; numbers stay as they are."""
    key = "![x](http://evil.example/t.png)"
    for place, value in enumerate(("=cmd|calc", "-0.5", "+1e-3", "x;=cmd|calc", "＝cmd|calc")):
        made(tmp_path / str(place), 0, **{key: value}, typed=(f"{key}={value}",))

    assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path) == 0

    assert capsys.readouterr().out.startswith(f"| `{key}` |")
    written = (tmp_path / "table.csv").read_text()
    assert all(text in written for text in ('"\'=cmd|calc"', '"-0.5"', '"+1e-3"', "\"x;'=cmd"))
    assert '"=cmd' not in written
    assert '"＝cmd' not in written


def test_folders_that_are_nested_too_deeply_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An archive can hold thousands of levels."""
    made(tmp_path / "sweep" / "0", 0)
    monkeypatch.chdir(tmp_path / "sweep")
    for _ in range(1500):
        os.mkdir("a")
        os.chdir("a")
    os.chdir(tmp_path)

    try:
        assert exit_status(monkeypatch, "hetsim-table", table_main, tmp_path / "sweep") in (0, 1)
        told = capsys.readouterr().err
        assert told in ("", f"hetsim-table: error: {tmp_path}/sweep has folders that are nested hundreds deep: move them elsewhere\n")
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "sweep"], check=True)


@pytest.mark.parametrize(
    ("key", "values", "typed"),
    [
        ("learning_rate", (0.001, 0.01), ("1e-3", "0.001", "1E-3", "0.0010")),
        ("rate", (1e6, 1e7), ("1e6", "1000000.0", "1e+06", "1000000")),
        ("rate", (0.12345678, 0.2), ("0.12345678", "1.2345678e-1")),
        ("flag", (True, False), ("true",)),
        ("text", ("two words", "x"), ("'two words'", "two words")),
    ],
)
def test_a_baseline_is_found_however_its_value_is_written(
    tmp_path: Path, key: str, values: tuple[Any, Any], typed: tuple[str, ...]
) -> None:
    for place, value in enumerate(values):
        made(tmp_path / str(place), 0, typed=(f"{key}={value}",), **{key: value, "same": values[0]})

    for text in typed:
        for baseline in (f"{key}={text}", f"method=ssgd,{key}={text},same={text}"):
            (group,) = asked(tmp_path, baseline=baseline).groups
            assert [row.runs[0].name for row in group.baselines] == ["0"], baseline
