"""Several choices of machines: one source for all, prices, when another choice pays, and the cheapest nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from here import Here

from hetsim.advice.advice import advice
from hetsim.advice.candidates import equal_nodes
from hetsim.advice.options import Option, answer, questions_about
from hetsim.advice.question import alternatives, asked
from hetsim.advice.simulated import Goal
from hetsim.advice.timing import SLACK, Timing
from hetsim.catalogue.prices import prices_of
from hetsim.catalogue.tables import shipped_catalogue
from hetsim.results.tables.estimates import estimate

QUESTION = ("model=resnet50", "batch_size=128", "network=1 Gbit/s", "workload.num_samples=6000", "budget.epochs=2")
LOOK_UP = shipped_catalogue().gpu


@pytest.mark.parametrize(
    "text",
    ["3090: 0.22, a100: 1.1", "{rtx3090: 0.22, 'a100-40gb': 1.1}", "RTX 3090=0.22,A100-SXM4-40GB=1.1"],
)
def test_prices_are_typed_or_in_a_file(text: str, tmp_path: Path) -> None:
    """With a comma, a colon or an equals sign; a file may have comments and a head."""
    file = tmp_path / "prices.csv"
    file.write_text("gpu,price_per_hour\n# of today\n3090,0.22\na100-40gb: 1.1  # dear\n\n")
    expected = {"rtx3090": 0.22, "a100-40gb": 1.1}

    assert prices_of(text, LOOK_UP) == expected
    assert prices_of(str(file), LOOK_UP) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("3090: cheap, t4: 1", "prices has '3090: cheap', which is not a GPU and its price"),
        ("3090: -1", "prices has '3090: -1', which is not a GPU and its price"),
        ("t4: 1, tesla t4: 2", "gives t4 a second price"),
        ("nothing: 1", "prices: 'nothing' is no GPU of the catalogue"),
        ("no/such/file.csv", "is neither prices nor a file that can be read (No such file or directory)"),
        ("/proc/self/environ", "it is not a regular file"),
    ],
)
def test_prices_that_cannot_be_read_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        prices_of(text, LOOK_UP)


def test_a_file_of_prices_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("password hunter2\n")

    with pytest.raises(ValueError, match="line 1 of the file of prices is not a GPU and its price") as raised:
        prices_of(str(file), LOOK_UP)

    assert "hunter2" not in str(raised.value)


def test_all_choices_have_one_source_and_one_precision() -> None:
    """That which measured most of all GPUs; so a choice does not change because of another program."""
    options = [asked(words, None) for words in alternatives(["3090 + 2*1080ti", *QUESTION], ["4090", "2*a100-40gb"])]
    series = {times.series for question in options if question.named for times in question.named.times.values()}

    assert len(series) == 1
    assert [question.experiment.num_workers for question in options] == [3, 1, 2]
    with pytest.raises(ValueError, match="--or compares GPUs that are named"):
        alternatives(["cluster=mixed4"], ["4090"])


@pytest.fixture(scope="module")
def options() -> list[Option]:
    """Two choices with prices and one without."""
    words = ["2*t4", *QUESTION, "prices=t4: 0.35, a100: 3"]
    questions = [(option[0], asked(option, None)) for option in alternatives(words, ["a100-40gb", "l4"])]
    return [Option(machines, question, advice(question, Here(), lambda _: None)) for machines, question in questions]


@pytest.mark.slow
def test_the_break_even_is_the_price_at_which_both_cost_the_same(options: list[Option]) -> None:
    t4, a100, l4 = options
    result = answer(options)
    limit = float(result.answer[1].split("less than ")[2].split()[0])

    assert t4.cost is not None
    assert limit * a100.seconds / 3600 == pytest.approx(t4.cost, rel=0.01)
    assert a100.hourly == pytest.approx(3)
    assert l4.cost is None
    assert result.answer[0].startswith("The fastest is a100-40gb, ")
    assert result.answer[0].endswith("; the cheapest is 2*t4, of the 2 with prices.")
    assert [row[0] for row in result.sheets[0].rows] == [option.machines for option in sorted(options, key=lambda option: option.seconds)]
    assert result.data["options"][1]["samples_per_second"] == pytest.approx(2 * 6000 / a100.seconds)
    assert result.pictures[0].draw() is not None


@pytest.mark.slow
def test_a_choice_that_cannot_hold_the_batch_or_the_model_comes_last(options: list[Option]) -> None:
    """The others stay ranked. If none can hold it, the first one's sentence is the error."""
    typed = [word for word in QUESTION if not word.startswith(("model=", "batch_size="))]
    questions, small = questions_about(["4*a100", *typed, "model=resnet50", "batch_size=1024"], ["t4", "8*a100"], None)
    of_model = questions_about(["a100-80gb", *typed, "model=opt-1.3b", "batch_size=1"], ["1080ti"], None)[1]
    result = answer(options, small=[*small, *of_model])

    assert [machines for machines, _ in questions] == ["4*a100", "8*a100"]
    assert [row[0] for row in result.sheets[0].rows][3:] == ["t4", "1080ti"]
    assert [row[-1] for row in result.sheets[0].rows][3:] == ["cannot hold the batch", "cannot hold the model"]
    assert result.remarks[0].startswith("t4 is not ranked: these GPUs hold 283 samples of resnet50 in all, but batch_size=1024")
    assert [choice["machines"] for choice in result.data["too_small"]] == ["t4", "1080ti"]
    with pytest.raises(ValueError, match="these GPUs hold 283 samples"):
        questions_about(["t4", *typed, "model=resnet50", "batch_size=1024"], ["1080ti"], None)


@pytest.mark.slow
def test_a_choice_that_misses_the_goal_has_no_time(options: list[Option]) -> None:
    def missed(option: Option) -> Option:
        row = replace(option.advice.baseline, seconds=estimate([None], scale="logarithmic"), cost=None)
        return replace(option, advice=replace(option.advice, rows=(), alike=None, baseline=row, goal=Goal(accuracy=0.9)))

    assert answer([*map(missed, options)]).answer[0].startswith("No choice reaches test accuracy 0.9")
    one = answer([missed(options[0]), options[1]])
    assert one.answer == ["The fastest is a100-40gb; the cheapest is a100-40gb, of the 1 with prices."]
    assert [row[2] == "–" for row in one.sheets[0].rows] == [False, True]
    assert one.pictures[0].draw() is not None


@pytest.mark.slow
@pytest.mark.parametrize("prices", ["0.1 0.5 3", "3 0.5 0.1"])
@pytest.mark.sampled(1)
def test_the_cheapest_nodes_are_those_of_an_exhaustive_search(prices: str) -> None:
    """Whatever the fastest are."""
    speeds, network = (1e-3, 3e-3, 1e-2), "cluster.network={latency_seconds: 1e-4, bytes_per_second: 1e8}"
    rows = ", ".join(
        f"{{count: 2, seconds_per_sample: {seconds}, overhead_seconds: 1e-3, cost_per_hour: {price}}}"
        for seconds, price in zip(speeds, prices.split(), strict=True)
    )
    words = ("cluster=mixed4", f"cluster.nodes=[{rows}]", network, "workload=phantom", "workload.num_parameters=1e5", "batch_size=120")
    question, here = asked([*words, "workload.num_samples=12000", "budget.epochs=2", "timing", "method=ddp"], None), Here()
    findings = advice(question, here, lambda _: None)
    classes = equal_nodes(question.experiment.cluster)
    sets = [
        tuple(rank for ranks, out in zip(classes, outs, strict=True) if out for rank in ranks)
        for outs in product((False, True), repeat=3)
        if not all(outs)
    ]
    timing = Timing(question, here, here.sizes([*question.words, "method=ddp", "allocation=even"]))
    allocations = {times.candidate for times in timing.search() if not times.candidate.leave_out and times.candidate.synchronous}

    every = timing.times([type(one)(one.method, one.allocation, out) for one in allocations for out in sets])

    assert findings.cheapest is not None
    assert findings.cheapest.cost is not None
    assert findings.cheapest.cost <= min(map(timing.cost, every)) / (1 - 2 * SLACK)
