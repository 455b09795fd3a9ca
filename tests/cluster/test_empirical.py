"""Laws of numbers that were measured, read from a file of the user's: seeded as all laws are, and nothing of the file is quoted."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from worlds import cluster, experiment, node

from hetsim.cluster.compute_times import StepTimes
from hetsim.cluster.distributions import parse_distribution
from hetsim.cluster.factors import MAX_BYTES, MAX_FACTORS
from hetsim.cluster.model import NodeSpec
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.sim import Simulation


@pytest.fixture
def law(tmp_path: Path) -> dict[str, Any]:
    """Three factors of mean 4, so 0.5, 0.5 and 2 of mean 1."""
    file = tmp_path / "residuals.csv"
    file.write_text("factor\n2\n2\n8\n")
    return {"distribution": "empirical", "file": str(file)}


def test_each_measured_number_is_drawn_as_often_as_any_other(law: dict[str, Any]) -> None:
    """Divided by their mean, which is 1 then, whatever their unit was."""
    drawn = parse_distribution("noise", law).sample(30_000, 0)
    counts = Counter(drawn)

    assert set(counts) == {0.5, 2.0}
    assert counts[2.0] / 30_000 == pytest.approx(1 / 3, abs=0.01)
    assert sum(drawn) / 30_000 == pytest.approx(1.0, abs=0.02)


def test_it_is_stretched_and_shifted_as_other_laws_are(law: dict[str, Any]) -> None:
    plain, moved = (parse_distribution("noise", {**law, **more}).sample(50, 3) for more in ({}, {"loc": 1, "scale": 0.1}))

    assert moved == pytest.approx([1 + 0.1 * factor for factor in plain])


def test_streams_are_those_of_any_law(law: dict[str, Any]) -> None:
    """By seed and rank: nodes that are added after the others change no number of theirs."""
    two, three = (parse_cluster(cluster(node(1.0, count=count, noise=law))).nodes for count in (2, 3))

    def drawn(nodes: Sequence[NodeSpec], seed: int, rank: int) -> list[float]:
        times = StepTimes(nodes[rank], seed=seed, rank=rank)
        return [times.seconds(1) for _ in range(200)]

    assert drawn(two, 0, 1) == drawn(two, 0, 1) == drawn(three, 0, 1)
    assert len({tuple(drawn(two, seed, rank)) for seed in (0, 1) for rank in (0, 1)}) == 4


def test_lockstep_draws_what_events_draw(law: dict[str, Any]) -> None:
    """A timing-only run of equal ranks is in lockstep; with an own trace it is not another one."""
    described = cluster(node(1e-3, 0.0, count=3, noise=law), seconds_per_update=1e-3)
    seconds = [
        Simulation(experiment("method=ssgd", f"workload={name}", cluster=described, budget={"updates": 20}, batch_size=30)).run()["seconds"]
        for name in ("phantom", "digits")
    ]

    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


@pytest.mark.parametrize("place", ["noise of the server", "jitter", "slow spells", "a number for each node"])
def test_it_is_a_law_wherever_one_is(place: str, law: dict[str, Any]) -> None:
    described = cluster(node(1e-3, count=2), seconds_per_update=1e-3)
    if place == "noise of the server":
        described["server"]["noise"] = law
    elif place == "jitter":
        described["network"] = {**described["network"], "jitter_seconds": {**law, "scale": 1e-3}}
    elif place == "slow spells":
        described["nodes"][0]["slow_spells"] = {"factor": 2, "seconds_between": law, "seconds_lasting": law}
    else:
        described["nodes"][0]["seconds_per_sample"] = {**law, "scale": 1e-3}
        assert {described_node.seconds_per_sample for described_node in parse_cluster(described).nodes} <= {0.5e-3, 2e-3}
    run = experiment("method=asgd", "workload=phantom", cluster=described, budget={"updates": 30})

    assert Simulation(run).run()["num_updates"] == 30


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "its first line is not factor"),
        ("secret\n1\n", "its first line is not factor"),
        ("factor\n", "it has 0 numbers"),
        ("factor\n1\nhunter2\n", "its line 3 is not one number between 1e-09 and 1e+09"),
        ("factor\n1,2\n", "its line 2 is not one number"),
        ("factor\n0\n", "its line 2 is not one number"),
        ("factor\n-1\n", "its line 2 is not one number"),
        ("factor\nnan\n", "its line 2 is not one number"),
        ("factor\ninf\n", "its line 2 is not one number"),
        (b"\xff\xfe\x00", "it is not text"),
        ("factor\n" + "1\n" * (MAX_FACTORS + 1), f"it has {MAX_FACTORS + 1} numbers, and 1 to {MAX_FACTORS} can be read"),
        ("factor\n" + " " * MAX_BYTES, f"it has over {MAX_BYTES} bytes"),
    ],
)
def test_a_file_of_something_else_is_one_sentence_without_its_contents(content: str | bytes, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    said = f"noise.file={file} cannot be read ({reason}"

    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as refused:
        parse_distribution("noise", {"distribution": "empirical", "file": str(file)})
    assert "hunter2" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for name, reason in (
        (tmp_path / "pipe", "it is not a regular file"),
        (tmp_path, "it is not a regular file"),
        ("/proc/self/environ", "it is no"),
    ):
        with pytest.raises(ValueError, match=reason):
            parse_distribution("noise", {"distribution": "empirical", "file": str(name)})
    with pytest.raises(ValueError, match="No such file or directory"):
        parse_distribution("noise", {"distribution": "empirical", "file": str(tmp_path / "gone.csv")})
    with pytest.raises(ValueError, match=r"^noise.file must be the name of a CSV file"):
        parse_distribution("noise", {"distribution": "empirical", "file": 3})
    with pytest.raises(ValueError, match=r"^noise.a is unknown"):
        parse_distribution("noise", {"distribution": "empirical", "file": "x", "a": 3})


def test_a_file_that_has_changed_is_read_again(law: dict[str, Any]) -> None:
    before = parse_distribution("noise", law).values
    Path(law["file"]).write_text("factor\n1\n1\n1\n1\n")

    assert before == (0.5, 0.5, 2.0)
    assert parse_distribution("noise", law).values == (1.0,) * 4
