"""`hetsim-advise '2*a100-40gb + 4*t4' model=resnet50`: the words of hetsim that it stands for, and intervals of estimates."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hetsim.advice.question import asked, expanded_arguments

WORDS = ("2*a100-40gb + 4*t4", "model=resnet50", "batch_size=384", "network=1 Gbit/s")


def test_the_words_are_those_of_a_cluster() -> None:
    """One term is a machine; copies of a machine and one GPU alone are terms, too. Other words stay; DDP is the candidate."""
    assert expanded_arguments(WORDS) == [
        "cluster=machines",
        "cluster.machines=[{gpus:{a100-40gb:2},network:'1 Gbit/s'},{gpus:{t4:4},network:'1 Gbit/s'}]",
        "+cluster.catalogue.model=resnet50",
        "workload=phantom",
        "batch_size=384",
        "method=ddp",
    ]
    found = expanded_arguments(["8x(2*t4) + l4", "network=1e9", "model=yolov3", "inside=5e9", "precision=amp", "method=ssgd"])
    assert (
        found[1] == "cluster.machines=[{count:8,gpus:{t4:2},network:1000000000.0,inside:5000000000.0},{gpus:{l4:1},network:1000000000.0}]"
    )
    assert found[-1] == "method=ssgd"
    found = expanded_arguments(
        ["(3090 + 2*1080ti) + t4*0.5", "network=1e9", "model=yolov3", "inside=5 GB/s", "micro_batch=8", "loading=2 ms"]
    )
    assert found[1] == (
        "cluster.machines=[{gpus:{rtx3090:1,gtx1080ti:2,micro_batch:8},network:1000000000.0,inside:'5 GB/s',loading:'2 ms'},"
        "{gpus:{t4:1,speed:0.5,micro_batch:8},network:1000000000.0,loading:'2 ms'}]"
    )
    assert expanded_arguments(["cluster=mixed4", "timing"]) == ["cluster=mixed4", "timing"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["2*t4", "network=1e9"], "2*t4 needs model=…"),
        (["t4", "model=resnet50"], "t4 needs network=…"),
        (["model=resnet50"], "model=… goes with GPUs that are named"),
        (["2*t4", "l4", "model=resnet50", "network=1e9"], "GPUs are named in 2 words: quote all of them as one"),
        (["2*(t4*)", "model=resnet50", "network=1e9"], "'2*(t4*)' cannot be read at '*)'"),
        (["t44", "model=resnet50", "network=1e9"], "'t44' is no GPU of the catalogue"),
        (["timng", "batch_size=4"], "'timng' is not an argument of hetsim; did you mean 'timing'?"),
        (["2*t4", "model=resnet50", "network=1e9", "batch_size=4", "batch_size=8"], "batch_size is given twice"),
        (["2*t4", "model=resnet50", "model=yolov3", "network=1e9"], "model is given twice"),
    ],
)
def test_what_is_missing_is_one_sentence(words: list[str], sentence: str) -> None:
    """It shows a command that works."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        asked(words, None)

    assert sentence in str(caught.value)


def test_the_question_knows_which_nodes_are_estimated() -> None:
    """Nodes 2 to 5 are the L4, which nobody measured with this program."""
    named = asked(["2*a100-40gb + 4*l4", *WORDS[1:]], None).named

    assert named is not None
    assert named.ranks == {"a100-40gb": (0, 1), "l4": (2, 3, 4, 5)}
    assert named.times["a100-40gb"].error == 0
    assert named.times["l4"].error > 0


@pytest.mark.slow
@pytest.mark.long
def test_the_advice_says_what_is_estimated_and_whether_it_matters() -> None:
    """Two T4 and an L4 on a fast network: the L4 takes part at both ends of its interval, with another share. No torch is imported."""
    program = "import sys; from hetsim.cli.advise import main; main(); assert 'torch' not in sys.modules"
    words = ["2*t4 + l4", "model=resnet50", "batch_size=192", "network=100 Gbit/s"]
    said = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": ""},
    ).stdout

    assert re.search(r"l4 with resnet50 in amp: estimated, ± \d+ % \(leave-one-out over \d+ pairs\)", said)
    assert "a program of your own may take 0.4 to " in said
    assert "across the error range of the L4 (gain " in said
    assert "t4 with resnet50 in amp: measured at 8 batch sizes (sia)" in said
