"""Stragglers that are put into a job are found and named, and a job without any gives no alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import exit_status, experiment, node

import hetsim
from hetsim.cli.stragglers import main
from hetsim.sim import Simulator
from hetsim.straggling.accounting import ALWAYS, AT_TIMES, UNEXPLAINED, account
from hetsim.straggling.from_run import read_run, slow_links
from hetsim.straggling.job import Job
from hetsim.straggling.judging import COLLECTIVES, COMPUTING, LINKS, JudgedJob, judge_job
from hetsim.straggling.replay import replay_job
from hetsim.straggling.verdict import verdict

Draw = np.random.Generator
NOISES: dict[str, Callable[[Draw, tuple[int, int], float], Any]] = {
    "equal": lambda _, shape, __: np.ones(shape),
    "log-normal": lambda rng, shape, s: np.exp(s * rng.standard_normal(shape)),
    "gamma": lambda rng, shape, s: rng.gamma(1 / s**2, s**2, shape),
    "lasting": lambda rng, shape, s: np.exp(min(s, 0.1) * lasting(rng.standard_normal(shape))),
    "outliers": lambda rng, shape, s: np.exp(min(s, 0.1) * rng.standard_normal(shape)) * np.where(rng.random(shape) < 0.01, 3, 1),
}


def lasting(noise: Any) -> Any:
    """Noise of which each step has 0.7 of the step before."""
    for step in range(1, noise.shape[1]):
        noise[:, step] = 0.7 * noise[:, step - 1] + 0.51**0.5 * noise[:, step]
    return noise


def clean(rng: Draw) -> Any:
    """Seconds of ranks that differ by 1 % and share a drift."""
    shape = int(rng.choice([2, 3, 4, 8, 16, 64])), int(rng.choice([20, 50, 100, 400]))
    noise = NOISES[str(rng.choice(list(NOISES)))](rng, shape, float(rng.choice([0.01, 0.05, 0.1, 0.3])))
    drift = np.exp(0.3 * rng.standard_normal(shape[1]).cumsum() / shape[1] ** 0.5)
    return 0.1 * drift * (1 + 0.01 * rng.standard_normal((shape[0], 1))) * noise


@pytest.mark.slow
@pytest.mark.parametrize("number", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_fewer_than_one_in_a_hundred_clean_traces_has_an_alarm(number: int) -> None:
    """With noise of five kinds, of 1 to 30 %, on 2 to 64 ranks and 20 to 400 steps. Outliers are stalls if they cost something."""
    rng = np.random.default_rng(number)
    kinds = [{kind for straggler in judge_job(job(clean(rng), COMPUTING)).stragglers for kind in straggler.kinds} for _ in range(number)]

    assert sum(bool(of_trace - {"stalls"}) for of_trace in kinds) < number / 100


def job(seconds: Any, part: str) -> Job:
    """A job in which this part takes so long, and all else no time to speak of."""
    other = np.full(seconds.shape, 1e-3)
    arrays = {
        COMPUTING: {"gradients": seconds, "collectives": other[0]},
        LINKS: {"gradients": other, "links": seconds},
        COLLECTIVES: {"gradients": other, "collectives": seconds[0]},
    }[part]
    total = float(seconds.max(axis=0).sum())
    return Job(source="a job", updates=np.zeros(seconds.shape), samples=np.full(seconds.shape, 8.0), seconds=total, nbytes=8, **arrays)


def slowed(kind: str, rng: Draw, rank: int, ranks: int) -> Any:
    seconds = 0.1 * np.exp(0.05 * rng.standard_normal((ranks, 200)))
    if kind == "chronic":
        seconds[rank] *= 1.3
    elif kind == "periodic":
        seconds[rank, 7::20] *= 2.5
    else:
        seconds[rank, 50:70] *= 2
        seconds[rank, 150:160] *= 3
    return seconds


@pytest.mark.parametrize("part", [COMPUTING, LINKS])
@pytest.mark.parametrize("kind", ["chronic", "periodic", "spells"])
@pytest.mark.parametrize(("rank", "ranks"), [(1, 2), (0, 3), (2, 4), (11, 16)])
def test_a_slow_rank_is_found_and_named(part: str, kind: str, rank: int, ranks: int) -> None:
    """Its part, its kind, its rank, and no other."""
    (its,) = judge_job(job(slowed(kind, np.random.default_rng(rank), rank, ranks), part)).stragglers

    assert (its.rank, its.part, its.kinds) == (rank, part, (kind,))
    if kind == "chronic":
        assert its.slowdown == pytest.approx(1.3, rel=0.03)
    elif kind == "periodic":
        assert its.period == 20
    else:
        assert [(spell.first, spell.last) for spell in its.spells] == [(50, 69), (150, 159)]
        assert [spell.factor for spell in its.spells] == pytest.approx([2, 3], rel=0.1)


def test_a_rank_that_stalls_often_is_slow_on_average() -> None:
    """As by a quota of a processor: most of its steps are as fast as those of the others."""
    rng = np.random.default_rng(0)
    seconds = 0.1 * np.exp(0.05 * rng.standard_normal((4, 400)))
    seconds[2] += np.where(rng.random(400) < 0.1, 0.5, 0.0)
    (its,) = judge_job(job(seconds, COMPUTING)).stragglers

    assert (its.rank, its.kinds) == (2, ("chronic",))
    assert its.slowdown == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("kind", ["periodic", "spells"])
def test_slow_collectives_are_nobodys(kind: str) -> None:
    """All ranks end together."""
    (its,) = judge_job(job(slowed(kind, np.random.default_rng(1), 0, 4), COLLECTIVES)).stragglers

    assert (its.rank, its.part, its.kinds) == (None, COLLECTIVES, (kind,))


def test_two_slow_ranks_are_both_found() -> None:
    """And a rank may be slow always and slower now and then."""
    seconds = np.full((4, 100), 0.1)
    seconds[1] *= 2
    seconds[3] *= 1.5
    seconds[3, 40:60] *= 2

    one, other = judge_job(job(seconds, COMPUTING)).stragglers

    assert {one.rank: one.kinds, other.rank: other.kinds} == {1: ("chronic",), 3: ("chronic", "spells")}


def test_what_a_straggler_costs_is_what_the_job_would_save() -> None:
    """Four ranks of 0.1 s a step, of which one takes 0.2 s: half of the time. With a second one, each alone costs nothing."""
    seconds = np.full((4, 50), 0.1)
    seconds[2] = 0.2
    exact = job(seconds, COMPUTING)

    assert [its.cost for its in judge_job(exact).stragglers] == pytest.approx([0.5])
    seconds[3] = 0.2
    both = judge_job(job(seconds, COMPUTING))
    assert [its.cost for its in both.stragglers] == pytest.approx([0, 0])
    assert both.cost == pytest.approx(0.5)
    assert sentence(both) == (
        "Ranks 2 and 3 of 4 are slow: their computing always takes 2.00 times as long as the fastest ranks', "
        "which costs 50 % of the job's time."
    )


def sentence(judged: JudgedJob) -> str:
    return verdict(judged, None, account(judged))


def test_all_ranks_slow_at_once_are_slow_together() -> None:
    """Such as by an evaluation on all of them: nobody's, and it has a cost."""
    seconds = np.full((4, 100), 0.1)
    seconds[:, 30:50] *= 4
    judged = judge_job(job(seconds, COMPUTING))

    assert [(straggler.rank, straggler.kinds) for straggler in judged.stragglers] == [(None, ("spells",))]
    assert sentence(judged) == (
        "All 4 ranks are slow together: their computing takes 4.00 times as long in steps 30 to 49, which costs 37 % of the job's time."
    )


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("part", [COMPUTING, LINKS])
def test_a_slow_majority_is_found(ranks: int, part: str) -> None:
    """Any number of ranks is compared with the fastest ones, even if only one is fast. Their cost is that of all together."""
    for num_slow in {1, ranks // 2, ranks - 1}:
        rng = np.random.default_rng(ranks)
        seconds = 0.1 * np.exp(0.02 * rng.standard_normal((ranks, 60)))
        seconds[:num_slow] *= 2
        judged = judge_job(job(seconds, part))

        assert sorted(straggler.ranks for straggler in judged.stragglers) == [(rank,) for rank in range(num_slow)]
        assert [straggler.slowdown for straggler in judged.stragglers] == pytest.approx([2] * num_slow, rel=0.05)
        assert judged.cost == (None if part == LINKS else pytest.approx(0.5, abs=0.05))


STALLS = {
    "one": ([(2, step) for step in (15, 35, 55)], "Rank 2 stalls in steps 15, 35 and 55 for 2 s each, which costs 50 %"),
    "all": (
        [(rank, step) for rank in range(4) for step in (15, 35, 55)],
        "All 4 ranks stall together in steps 15, 35 and 55 for 2 s each, which costs 50 %",
    ),
    "most": (
        [(rank, step) for rank in range(3) for step in (15, 35, 55)],
        "Ranks 0 to 2 of 4 stall together in steps 15, 35 and 55 for 2 s each, which costs 50 %",
    ),
    "two": (
        [(rank, step) for rank in (0, 3) for step in (15, 35, 55)],
        "Ranks 0 and 3 of 4 stall 6 times in 60 steps, mostly several together, for 2 s each, which costs 50 %",
    ),
    "in turn": (
        [(0, 12), (1, 23), (2, 29), (3, 41), (0, 50)],
        "All 4 ranks stall 5 times in 60 steps, each alone, for 2 s each, which costs 62 %",
    ),
    "once": ([(1, 40)], "Rank 1 stalls in step 40 for 2 s, which costs 25 %"),
}


@pytest.mark.parametrize(("stalls", "words"), STALLS.values(), ids=STALLS)
def test_rare_stalls_are_found_by_what_they_cost(stalls: list[tuple[int, int]], words: str) -> None:
    """By whom, when, and whether together or alone, however rare they are."""
    seconds = 0.1 * np.exp(0.02 * np.random.default_rng(1).standard_normal((4, 60)))
    for rank, step in stalls:
        seconds[rank, step] += 2

    assert sentence(judge_job(job(seconds, COMPUTING))).startswith(words)


@pytest.mark.parametrize("slow_part", [COMPUTING, LINKS, COLLECTIVES])
def test_every_second_is_explained(slow_part: str) -> None:
    """Over drawn jobs: the parts add up to the job's seconds, none but the unexplained one is negative, and a rank's is its slowness."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        seconds = clean(rng)
        for _ in range(int(rng.integers(4))):
            kind = str(rng.choice(["always", "stall", "spell", "all"]))
            rank = int(rng.integers(len(seconds)))
            steps = slice(*sorted(rng.integers(seconds.shape[1], size=2))) if kind == "spell" else int(rng.integers(seconds.shape[1]))
            seconds[slice(None) if kind == "all" else rank, slice(None) if kind == "always" else steps] *= rng.uniform(1, 30)
        drawn = job(seconds, slow_part)
        drawn = replace(drawn, seconds=drawn.seconds * rng.uniform(0.5, 2))
        parts = account(judge_job(drawn))

        assert sum(part.seconds for part in parts) == pytest.approx(drawn.seconds)
        assert all(part.seconds >= -1e-9 for part in parts if part.name != UNEXPLAINED)


def test_the_parts_are_those_that_were_put_in() -> None:
    """Steps of 0.1 s and a collective of 0.05 s; two ranks twice as slow, a stall of 1 s, and 2 s that no step contains."""
    seconds = np.full((4, 100), 0.1)
    seconds[2:] *= 2
    seconds[1, 50] += 1
    exact = replace(job(seconds, COMPUTING), collectives=np.full(100, 0.05), seconds=20 + 0.9 + 5 + 3)
    judged = judge_job(exact)

    assert {(each.name, each.rank): pytest.approx(each.seconds) for each in account(judged)} == {
        (COMPUTING, None): 10,
        (ALWAYS, 2): 5,
        (ALWAYS, 3): 5,
        (AT_TIMES, 1): 0.9,
        ("communication", None): 5,
        ("waiting", None): 0,
        (UNEXPLAINED, None): 3,
    }
    assert sentence(judged).split(". ")[0].endswith("34 % of the job's time; 10 % of the time is unexplained; 17 % is communication")


NETWORK = {"latency_seconds": 1e-4, "bytes_per_second": 1e9, "sharing": "none"}


def simulated(folder: Path, method: str, *nodes: dict[str, Any], updates: int = 60) -> Path:
    """The folder of a run on these nodes."""
    described = {"name": "these", "nodes": list(nodes), "network": NETWORK, "server": {"seconds_per_update": 1e-4}}
    words = (f"method={method}", "workload=phantom")
    made = experiment(*words, cluster=described, batch_size=64, budget={"updates": updates}, trace="full", pictures=False)
    Simulator().run(made, folder, f"method: {method}\nseed: 0\n")
    return folder


@pytest.mark.parametrize("method", ["ssgd", "ddp"])
def test_the_replay_says_what_the_job_takes_without_the_straggler(method: str, tmp_path: Path) -> None:
    """As a simulation of the described cluster without it says."""
    equal = [node(1e-3), node(1e-3), node(1e-3)]
    slow = hetsim.stragglers(simulated(tmp_path / "slow", method, *equal, node(2e-3)))
    healthy = hetsim.stragglers(simulated(tmp_path / "healthy", method, *equal, node(1e-3)))
    saved = slow.data["replay"]["saved"]
    less = 1 - healthy.data["seconds"] / slow.data["seconds"]

    assert [(its["rank"], its["kinds"]) for its in slow.data["stragglers"]] == [(3, ["chronic"])]
    assert slow.data["stragglers"][0]["cost"] == pytest.approx(less, abs=0.01)
    assert saved["rank 3 at the median"] == pytest.approx(less, abs=0.01)
    assert 0 < saved["DBS"] < less
    assert abs(slow.data["replay"]["error"]) < 0.01
    assert healthy.data["stragglers"] == []
    assert "No rank is slow" in repr(healthy)


@pytest.mark.parametrize(("capped", "all_reduce"), [(True, 0.04), (False, 0.08)])
def test_under_quotas_the_all_reduce_takes_as_many_times_as_long_as_the_gradient(capped: bool, all_reduce: float) -> None:
    """Of three ranks of 0.1 s and one of 0.2 s: at the median, 0.08 s become half, where quotas cap the adding."""
    gradients = np.repeat([[0.1], [0.1], [0.1], [0.2]], 50, axis=1)
    rest = {"collectives": np.full(50, 0.08), "samples": np.full(gradients.shape, 8.0), "updates": np.zeros(gradients.shape)}
    its = Job(source="a job", gradients=gradients, seconds=50 * 0.28, nbytes=8, method="ssgd", capped_collectives=capped, **rest)
    saved = replay_job(judge_job(its)).saved

    assert saved["rank 3 at the median"] == pytest.approx(1 - (0.1 + all_reduce) / 0.28, abs=0.002)


@pytest.mark.parametrize("method", ["ssgd", "asgd"])
@pytest.mark.parametrize("allocation", ["fixed", "a user's own"])
def test_the_replay_has_the_split_of_the_job(method: str, allocation: str) -> None:
    """Samples of 10, 20 and 50: whatever the rule that chose them is called, an even split would not take the time of the trace."""
    samples = np.repeat([[10.0], [20.0], [50.0]], 50, axis=1)
    gradients = 0.001 * samples * [[1], [1], [2]]
    rest = {"collectives": np.full(50, 0.01)} if method == "ssgd" else {"links": np.full(samples.shape, 1e-3)}
    total = 50 * 0.11 if method == "ssgd" else 50 * 80 / sum([10, 20, 50] / (gradients[:, 0] + 1e-3))
    rule = "even" if allocation == "a user's own" else allocation
    arrays = {"gradients": gradients, "samples": samples, "updates": np.zeros(samples.shape), **rest}
    its = Job(source="a job", seconds=total, nbytes=8, method=method, allocation=rule, **arrays)

    assert abs(replay_job(judge_job(its)).error) < 0.02


def test_the_slow_link_of_a_worker_of_a_server_is_found(tmp_path: Path) -> None:
    """Its messages say so, and the replay what it costs."""
    slow = {**node(1e-3), "uplink_bytes_per_second": 1e8, "downlink_bytes_per_second": 1e8}
    its = hetsim.stragglers(simulated(tmp_path / "run", "asgd", node(1e-3, count=3), slow, updates=200))

    assert [(each["rank"], each["part"], each["kinds"]) for each in its.data["stragglers"]] == [(3, LINKS, ["chronic"])]
    assert its.data["replay"]["saved"]["rank 3 at the median"] > 0.05
    assert abs(its.data["replay"]["error"]) < 0.05


LINK = {"uplink_bytes_per_second": 1e7, "downlink_bytes_per_second": 1e7}


def test_a_slow_link_of_a_job_with_collectives_is_the_one_that_its_config_describes(tmp_path: Path) -> None:
    """A trace does not show it. Its cost is what the same job takes less without it."""
    folders = []
    for name, last in (("slow", LINK), ("healthy", {})):
        nodes = [node(1e-3, count=3), {**node(1e-3), **last}]
        folders.append(simulated(tmp_path / name, "ddp", *nodes))
        (folders[-1] / "config.yaml").write_text(json.dumps({"seed": 0, "cluster": {"nodes": nodes, "network": NETWORK}}))
    slow, healthy = (hetsim.stragglers(folder) for folder in folders)
    less = 1 - healthy.data["seconds"] / slow.data["seconds"]
    (cost,) = [part["seconds"] / slow.data["seconds"] for part in slow.data["parts"] if part["rank"] == 3]

    assert cost == pytest.approx(less, abs=0.02)
    assert slow.data["verdict"].startswith(
        "Rank 3 has a link that the config describes as 100 times slower than the fastest one, which costs "
    )
    assert healthy.data["verdict"].startswith("No rank is slow")


@pytest.mark.parametrize(
    "cluster",
    [
        None,
        {"nodes": 3, "network": {}},
        {"nodes": [3], "network": {}},
        {"nodes": [{"count": 10**12, **LINK}], "network": NETWORK},
        {"nodes": [{"count": True, **LINK}, {"count": 3}], "network": NETWORK},
        {"nodes": [{"count": 1, "uplink_bytes_per_second": "fast"}, {"count": 3}], "network": NETWORK},
        {"nodes": [{"count": 1, **LINK}, {"count": 3, "slowdown": "/etc/passwd"}], "network": {}},
    ],
)
def test_a_config_that_describes_no_links_is_not_asked(cluster: Any) -> None:
    """It may come from outside."""
    assert slow_links({"cluster": cluster}, 8, 4) is None


def test_spells_are_replayed_at_their_moments(tmp_path: Path) -> None:
    """A recorded slowdown of a rank, for a fifth of the run."""
    file = tmp_path / "load.csv"
    file.write_text("seconds,factor\n0,1\n0.3,3\n0.6,1\n")
    run = simulated(tmp_path / "run", "ssgd", node(1e-3, count=3), {**node(1e-3), "slowdown": str(file)})
    its = hetsim.stragglers(run)

    assert [(each["rank"], each["kinds"]) for each in its.data["stragglers"]] == [(3, ["spells"])]
    assert its.data["replay"]["saved"]["rank 3 at the median"] == pytest.approx(its.data["cost"], abs=0.02)
    assert abs(its.data["replay"]["error"]) < 0.02


def test_the_command_writes_a_table_a_picture_a_report_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulated(tmp_path / "run", "ssgd", node(1e-3, count=3), node(2e-3))
    files = [tmp_path / name for name in ("slow.json", "slow.png", "slow.html")]
    options = ["--json", files[0], "--picture", files[1], "--html", files[2]]

    assert exit_status(monkeypatch, "hetsim-stragglers", main, run, *options) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Rank 3 is slow: its computing always takes 2.00 times as long as the fastest ranks', which costs")
    assert "\n3     × 2.00     computing: chronic" in printed
    assert json.loads(files[0].read_text())["verdict"] == printed.splitlines()[0]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert "Rank 3 is slow" in files[2].read_text()


def test_a_job_of_one_rank_or_of_few_steps_is_one_sentence(tmp_path: Path) -> None:
    for nodes, updates, words in (((node(1e-3),), 20, "has one rank"), ((node(1e-3, count=2),), 3, "has 3 steps")):
        with pytest.raises(ValueError, match=words):
            read_run(simulated(tmp_path / f"{len(nodes)}-{updates}", "ssgd", *nodes, updates=updates))
    with pytest.raises(ValueError, match="does not exist"):
        hetsim.stragglers(tmp_path / "none")
    with pytest.raises(ValueError, match="no trace was given"):
        hetsim.stragglers()


def test_a_rank_that_costs_hardly_anything_is_in_the_table_only() -> None:
    seconds = np.full((4, 1000), 0.1)
    seconds[1, 50:53] *= 2

    its = judge_job(job(seconds, COMPUTING))

    assert [each.kinds for each in its.stragglers] == [("spells",)]
    assert sentence(its) == "No rank costs the job 1.0 % of its time; the table has 1 with slow steps."
