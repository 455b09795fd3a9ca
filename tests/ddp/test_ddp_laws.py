"""A Team in three real processes over gloo: the gradient is that of one process, whatever DistributedDataParallel is combined with.

All laws run in one world (`ddp_laws.py`), as starting processes is what takes time; each is asserted by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean, median

import pytest
import yaml
from ddp_laws import BATCH_SIZE, PARTS, all_laws
from pyarrow import parquet
from ranks import result, world

import hetsim
from hetsim.cli import calibrate
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.ddp.schedule import Data
from hetsim.files.summary_and_curve import read_summary
from hetsim.policies.allocation import proportional
from hetsim.results.comparison.answer import answer
from hetsim.results.comparison.findings import compare

pytestmark = pytest.mark.slow
F64, F32 = 1e-12, 5e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of traces."""
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict]:
    """What each rank found, by law."""
    return world(len(PARTS), all_laws, str(folder))


@pytest.fixture(scope="module")
def traced(found: list[dict], folder: Path) -> Path:
    """The trace of two epochs of uneven shares."""
    result(found, "traced")
    return folder / "uneven"


@pytest.fixture(scope="module")
def clusters(traced: Path, folder: Path) -> Path:
    """With a cluster of the trace."""
    return cluster_of(traced, folder)


def cluster_of(traced: Path, folder: Path) -> Path:
    """The folder of configs, in which `hetsim-calibrate` makes a cluster of a trace."""
    (folder / "cluster").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hetsim-calibrate", str(folder / "cluster" / f"{traced.name}.yaml"), "--from-trace", str(traced)])
        calibrate.main()
    return folder


EXACT = [
    "serial",
    "workers",
    "bucket_view",
    "unused",
    "static_graph",
    "buckets",
    "clip",
    "scaler",
    "compiled",
    "compiled_inside",
    "scale",
    "even",
]


@pytest.mark.parametrize("law", EXACT)
def test_the_gradient_is_that_of_one_process(found, law: str):
    """At uneven shares and with a short step at the end of each epoch: with loader workers, views of buckets, unused parameters, a static
    graph, many buckets, clipping, a GradScaler, compiled around and inside DDP; with `scale`; and plain DDP's at even shares."""
    for rank in range(len(PARTS)):
        assert result(found, law, rank) <= (0.0 if law == "even" else F64)


def test_lower_precision_costs_what_it_costs(found):
    """f32 over several steps; a hook that compresses to 16 bits; autocast to bfloat16, relative to the largest gradient."""
    assert result(found, "f32") <= F32
    assert 1e-6 < result(found, "fp16_hook") < 2e-3
    assert 1e-6 < result(found, "autocast") < 2e-2


def test_a_rank_without_samples_has_weight_zero_and_its_nan_does_not_spread(found):
    """Two samples for three ranks: the third computes one whose loss is no number; neither gradient nor mean has it."""
    for rank in range(len(PARTS)):
        seen = result(found, "zero_weight", rank)
        assert seen["shares"] == (1, 1, 0)
        assert seen["batch"] == 1
        assert seen["error"] <= F64
        assert seen["mean"] <= F64


def test_tokens_are_counted_exactly(found):
    """The mean over the tokens of all ranks: `count` without waiting, `scale` with a weight."""
    assert max(result(found, "tokens").values()) <= F64


def test_models_that_are_not_wrapped_take_a_scaled_loss(found):
    """FSDP2 and replicate."""
    assert max(result(found, "parallel").values()) <= F64


def test_collectives_in_the_forward_pass_need_a_scaled_loss(found):
    """Batch norm over all ranks, as in SyncBatchNorm: `scale` is exact, and the hook is not, which is why it is refused."""
    seen = result(found, "forward_collectives")

    assert seen["scale"] <= F64
    assert seen["hook"] > 0.01


def test_splits_change_between_windows_only(found):
    """With `accumulate`, every window of no_sync has one split; without, a window with two is refused."""
    seen = result(found, "windows")
    shares = seen["shares"]

    assert seen["error"] <= F64
    assert shares[::2] == shares[1::2]
    assert len(set(shares)) > 1
    assert "give the Team accumulate=2" in seen["sentence"]


def test_shares_follow_speed_and_each_sample_is_taken_once(found):
    """Ranks of speeds 4:2:1, one of which has loader workers: the same shares on all ranks, each sample once in each epoch."""
    each = [result(found, "measured", rank) for rank in range(len(PARTS))]

    assert each[0]["shares"] == each[1]["shares"] == each[2]["shares"]
    assert each[0]["shares"][-1] == (48, 24, 12)
    for epoch in range(3):
        places = [place for rank in each for _, taken in rank["taken"][10 * epoch : 10 * epoch + 10] for place in taken]
        assert sorted(places) == list(range(840))
    assert all(
        samples == shares[rank] for rank in range(3) for (samples, _), shares in zip(each[rank]["taken"], each[0]["shares"], strict=True)
    )


@pytest.mark.realtime
def test_waiting_for_others_is_not_timed(found):
    """Ranks that sleep 0, 40 and 80 ms a step, with two backward passes, a `mean` and buffers that are sent: their times are these."""
    seen = result(found, "waits")
    fast, middle, slow = (median(each) for each in zip(*seen["seen"], strict=True))

    assert seen["error"] <= F64
    assert len(seen["seen"]) >= 3
    assert fast < 0.04 < middle < 0.08 < slow


def test_once_settled_there_is_one_exchange_every_recheck_steps(found):
    """OptPerf: two probing splits, the solution, perhaps its repetition; then every tenth step."""
    exchanges = result(found, "settled")["exchanges"]
    steps = [step for step in range(1, len(exchanges)) if exchanges[step] > exchanges[step - 1]]

    assert [later - step for step, later in zip(steps[-6:], steps[-5:], strict=False)] == [10] * 5


def test_a_resumed_team_goes_on_where_it_stopped(found):
    """Through torch.save and weights_only: the position, the split and what the allocation knows; each sample once in the epoch."""
    each = [result(found, "resumed", rank) for rank in range(len(PARTS))]

    assert each[0]["before"] == each[0]["again"] == each[1]["before"]
    assert sorted(place for rank in each for place in rank["places"]) == list(range(300))
    assert each[0]["epoch"] == 1
    assert each[0]["mismatched"].startswith("seed is 1, but was 0 where the state was saved")


def test_a_trace_is_that_of_a_run(found, traced: Path):
    """The commands read it: rates and shares as they were, idleness by the clock; waiting for `mean` is not computing."""
    summary = read_summary(traced)
    compared = compare([traced], [traced])
    rows = parquet.read_table(traced / "trace.parquet").to_pylist()

    assert (summary["num_updates"], summary["num_samples"], summary["num_workers"]) == (22, 2 * 861, 3)
    assert summary["batch_sizes"] == [48, 24, 12]
    assert summary["weight_shares"] == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    for rank, worker in enumerate(summary["per_worker"]):
        least, most = result(found, "traced", rank)
        assert least <= worker["compute_seconds"] <= most
    assert [row["kind"] for row in rows].count("commit") == 22
    assert all(row["end"] >= row["start"] >= 0 for row in rows)
    assert {row["nbytes"] for row in rows if row["kind"] == "all_reduce"} == {8 * (6 * 16 + 16 + 16 * 2 + 2)}
    assert compared.components
    assert compared.sides.different == {}


@pytest.mark.realtime
def test_a_trace_becomes_a_cluster(traced: Path, clusters: Path):
    """`hetsim-calibrate --from-trace`: a node takes what its gradients took on average; the cluster is one that hetsim reads."""
    cluster = parse_cluster(yaml.safe_load((clusters / "cluster" / "uneven.yaml").read_text()))

    assert cluster.name == "uneven"
    rows = [row for row in parquet.read_table(traced / "trace.parquet").to_pylist() if row["version"] >= 2]
    for rank, samples in enumerate((48, 24, 12)):
        took = [row["end"] - row["start"] for row in rows if (row["kind"], row["rank"], row["samples"]) == ("gradient", rank, samples)]
        node = cluster.nodes[rank]
        assert node.overhead_seconds + samples * node.seconds_per_sample == pytest.approx(fmean(took), rel=0.1)
        assert node.seconds_per_update >= 0.001


WORDS = ("workload=phantom", "workload.num_parameters=146", "workload.num_samples=1680", "batch_size=84", "budget.epochs=5")
"""A workload as large as that of the traces: 146 parameters of 8 bytes are counted as of 4, which links this fast do not notice."""


@pytest.mark.realtime
def test_a_trace_is_compared_with_a_simulation_of_it(traced: Path, clusters: Path, tmp_path: Path):
    """On the cluster that was made of it, with the same split: as many updates a second, and as much of the time spent computing."""
    split = ("method=ssgd", "allocation=fixed", "allocation.parts=[4,2,1]", "weighting=per_sample")
    simulated = hetsim.run("cluster=uneven", *WORDS, *split, config_dir=clusters, folder=tmp_path / "simulated")
    compared = answer(compare([simulated.folder], [traced])).data

    assert abs(next(each["relative_error"] for name, each in compared["numbers"].items() if "updates" in name)) < 0.25
    assert abs(compared["components"]["compute"]["percentage_points"]) < 15


def test_a_trace_of_even_shares_says_what_another_split_would_gain(tmp_path: Path):
    """`hetsim-advise` on the cluster of it: a split by the ranks' speeds, 4:2:1, makes 7/3, less what does not depend on it."""
    nodes = [{"count": 1, "seconds_per_sample": 1e-3 / part, "overhead_seconds": 0} for part in PARTS]
    network = {"latency_seconds": 0, "bytes_per_second": 1e12}
    even = hetsim.run("method=ssgd", *WORDS, "pictures=false", cluster={"nodes": nodes, "network": network}, folder=tmp_path / "even")
    configs = cluster_of(even.folder, tmp_path)
    best = hetsim.advise("cluster=even", *WORDS, "timing", "method=ssgd", processes=1, config_dir=configs).data["rows"][0]

    assert best["allocation"] is not None
    assert 2.2 < best["gain"]["mean"] <= 7 / 3


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("seed", "seed must be the same on all ranks, and is not (0, 1, 2 in rank order)"),
        ("small", "batch_size=2 is less than one sample for each of 3 ranks: raise it"),
        ("name", "allocation must be dbs, "),
        ("parts", "allocation.parts has 2 numbers"),
        ("bounds", "max_samples hold 6 samples in all, but batch_size=28"),
        ("length", "the number of samples must be the same on all ranks, and is not (60, 61, 62 in rank order)"),
        ("sampler", "sampler is decided by the Team"),
        ("order", "in_order=False"),
        ("plain", "wrap takes a DistributedDataParallel, not Sequential"),
        ("norm", "SyncBatchNorm sends gradients between ranks before they are weighted"),
        ("twice", "weighted already"),
        ("timed", "SpeedProportional goes by measured times"),
        ("early", "there is no step yet"),
    ],
)
def test_what_would_be_wrong_is_refused_on_every_rank(found, what: str, sentence: str):
    """One sentence, the same on all ranks."""
    for rank in range(len(PARTS)):
        assert sentence in result(found, "refused", rank)[what]


def test_a_world_of_another_size_has_the_same_global_batches():
    """What `serial` is compared with: the order depends on the seed and the epoch alone."""
    assert proportional(PARTS, BATCH_SIZE) == (16, 8, 4)
    assert list(Data(60, 28).order(1)) == list(Data(60, 20).order(1))
