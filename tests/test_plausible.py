"""A value that is almost surely a mistake is one warning, which names its key. A plausible value is none."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.config.build import build_experiment
from hetsim.config.compose import Composed, composed
from hetsim.config.plausible import implausible, out_of_range
from hetsim.config.resolved import resolved
from hetsim.trust.shipped import configs

PHANTOM = "workload=phantom budget.epochs=null budget.updates=5"
NODE = "count: 4, seconds_per_sample: 1 ms, overhead_seconds: 0"
NODES = f"{PHANTOM} 'cluster.nodes=[{{{NODE}, VALUE}}]'"
ONE = "count: 2, overhead_seconds: 0, seconds_per_sample"
TWO = f"'cluster.nodes=[{{{ONE}: VALUE}}, {{{ONE}: 1 ms}}]'"
MACHINES = f"{PHANTOM} cluster=machines 'cluster.machines=[{{gpus: {{count: 4, seconds_per_sample: 1 ms}}, VALUE}}]'"
SPEEDS = (
    f"{PHANTOM} cluster=machines 'cluster.machines=[{{network: 1 Gbit/s, speed: VALUE}}]' 'cluster.reference={{seconds_per_sample: 1 ms}}'"
)
FAULTS = f"{PHANTOM} '+cluster.faults={{VALUE}}'"
CRASH = "schedule: [{nodes: [3], crash: 1 s, repair: 2 s}]"
DRAWN = "schedule: [{nodes: all, seconds_to_crash: {distribution: expon, scale: 1 h}}]"
SCHEDULE = "learning_rate_schedule={_target_: torch.optim.lr_scheduler.StepLR, step_size: 2, gamma: VALUE}"
MEMORY = "max_samples: 64, micro_batch: 128", "max_samples: 4k, micro_batch: 128"
SPELLS = "slow_spells: {factor: VALUE, seconds_between: 5 s, seconds_lasting: 1 s}"

MISTAKES: list[tuple[str, str, str, str]] = [
    # what is typed, with VALUE; the mistake; a plausible value instead; what the warning names
    # the run
    ("workload=quadratic batch_size=VALUE", "1e10", "1e3", "batch_size is 1e+10,"),
    ("workload=digits budget.epochs=VALUE", "1e8", "1e3", "budget.epochs is 1e+08,"),
    ("workload=phantom budget.updates=VALUE", "1e12", "1e6", "budget.updates is 1e+12,"),
    (f"{PHANTOM} budget.seconds=VALUE", "1e-9", "1e-3", "budget.seconds is 1e-09 s,"),
    (f"{PHANTOM} evaluate_every_epochs=VALUE", "1e-8", "0.1", "evaluate_every_epochs is 1e-08,"),
    (f"{PHANTOM} evaluate_every_seconds=VALUE", "1e12", "1 h", "evaluate_every_seconds is 1e+12 s,"),
    (f"{PHANTOM} checkpoint.every_seconds=VALUE", "1e9", "600", "checkpoint.every_seconds is 1e+09 s,"),
    ("workload=digits method=ssgd learning_rate=VALUE", "1000", "1", "learning_rate is 1000,"),
    ("workload=digits method=ssgd learning_rate=VALUE", "0", "0.001", "learning_rate is 0,"),
    ("workload=digits method=local_sgd local_learning_rate=VALUE", "500", "1e-3", "local_learning_rate is 500,"),
    ("workload=digits method=ssgd optimizer=muon optimizer.lr=VALUE", "200", "0.02", "optimizer.lr is 200,"),
    ("workload=digits method=ssgd momentum=VALUE", "9", "0.9", "momentum is 9,"),
    ("workload=digits method=ssgd +optimizer.weight_decay=VALUE", "5", "5e-4", "optimizer.weight_decay is 5,"),
    ("workload=digits method=ssgd optimizer=adam +optimizer.eps=VALUE", "1e8", "1e-8", "optimizer.eps is 1e+08,"),
    ("workload=digits method=ssgd optimizer=rmsprop +optimizer.alpha=VALUE", "99", "0.99", "optimizer.alpha is 99,"),
    ("workload=digits method=heloco optimizer.most=VALUE", "50", "0.5", "optimizer.most is 50,"),
    ("workload=digits method=heloco optimizer.strength=VALUE", "1e5", "1", "optimizer.strength is 100000,"),
    (
        "workload=digits method=async_local_sgd optimizer=delayed_nesterov optimizer.buffer_size=VALUE",
        "1e6",
        "8",
        "optimizer.buffer_size is 1e+06,",
    ),
    (f"workload=digits method=ssgd '{SCHEDULE}'", "10", "0.1", "learning_rate_schedule.gamma is 10,"),
    # the workload
    (f"{PHANTOM} workload.num_parameters=VALUE", "25", "25M", "workload.num_parameters is 25,"),
    (f"{PHANTOM} +cluster.model.parameters=VALUE", "124", "124M", "cluster.model.parameters is 124,"),
    (f"{PHANTOM} workload.bytes_per_parameter=VALUE", "32", "4", "workload.bytes_per_parameter is 32,"),
    (f"{PHANTOM} workload.num_samples=VALUE", "1e14", "1e9", "workload.num_samples is 1e+14,"),
    ("workload=quadratic workload.condition=VALUE", "1e13", "1e3", "workload.condition is 1e+13,"),
    ("workload=quadratic workload.noise=VALUE", "1e6", "0.5", "workload.noise is 1e+06,"),
    ("workload=tiny_lm workload.num_layers=VALUE", "600", "6", "workload.num_layers is 600,"),
    ("workload=tiny_lm workload.context_length=VALUE", "1", "64", "workload.context_length is 1,"),
    ("workload=digits workload.resize=VALUE", "2", "16", "workload.resize is 2,"),
    ("workload=digits data=owned partition=dirichlet partition.alpha=VALUE", "1e7", "100", "partition.alpha is 1e+07,"),
    # the method
    ("workload=digits method=diloco coordination.period=VALUE", "100000", "500", "coordination.period is 100000,"),
    (f"{PHANTOM} method=ddp coordination.bucket_bytes=VALUE", "25", "25MB", "coordination.bucket_bytes is 25,"),
    (f"{PHANTOM} method=od_sgd coordination.warm_up=VALUE", "1e9", "100", "coordination.warm_up is 1e+09,"),
    (f"{PHANTOM} method=mindflayer coordination.trials=VALUE", "50000", "5", "coordination.trials is 50000,"),
    (f"{PHANTOM} method=mindflayer coordination.within=VALUE", "1e8", "1", "coordination.within is 1e+08 s,"),
    (f"{PHANTOM} method=fedbuff admission.size=VALUE", "1e8", "10", "admission.size is 1e+08,"),
    (f"{PHANTOM} method=ssp admission.bound=VALUE", "1e10", "10", "admission.bound is 1e+10,"),
    (f"{PHANTOM} method=dbs allocation.dead_band=VALUE", "5", "0.05", "allocation.dead_band is 5,"),
    (f"{PHANTOM} method=lb_bsp allocation.step=VALUE", "300", "3", "allocation.step=300"),
    (f"{PHANTOM} method=ata allocation.eta=VALUE", "5000", "2", "allocation.eta is 5000,"),
    ("workload=digits method=dc_asgd compensation.strength=VALUE", "1e6", "0.1", "compensation.strength is 1e+06,"),
    ("workload=digits method=cd_sgd compression.threshold=VALUE", "1e6", "0.5", "compression.threshold is 1e+06,"),
    ("workload=digits method=cd_sgd compression.full_every=VALUE", "1", "10", "compression.full_every is 1,"),
    ("workload=digits method=sparse_loco compression.keep=VALUE", "1024", "32", "compression.keep=1024"),
    ("workload=digits method=fedasync discount.exponent=VALUE", "50", "1", "discount.exponent is 50,"),
    ("workload=digits method=asgd discount=exponential discount.rate=VALUE", "200", "0.2", "discount.rate is 200,"),
    # nodes
    (f"{PHANTOM} cluster.nodes.0.seconds_per_sample=VALUE", "20", "20 ms", "cluster.nodes.0.seconds_per_sample is 20 s,"),
    (f"{PHANTOM} {TWO}", "200", "200 ms", "cluster.nodes.0.seconds_per_sample is 200 s"),
    (f"{PHANTOM} {TWO}", "5 ns", "5 ms", "cluster.nodes.1.seconds_per_sample is 0.001 s and that of cluster.nodes.0 5e-09 s"),
    (f"{PHANTOM} cluster.nodes.0.overhead_seconds=VALUE", "100", "100 ms", "cluster.nodes.0.overhead_seconds is 100 s,"),
    (f"{PHANTOM} cluster.nodes.0.seconds_per_update=VALUE", "100", "1", "cluster.nodes.0.seconds_per_update is 100 s,"),
    (NODES, "loading: 300", "loading: 3 ms", "cluster.nodes.0.loading is 300 s,"),
    (
        NODES,
        "noise: {distribution: gamma, a: 20}",
        "noise: {distribution: gamma, a: 20, scale: 0.05}",
        "cluster.nodes.0.noise has the mean 20,",
    ),
    (NODES, "noise: {distribution: lognorm, s: 10}", "noise: {distribution: lognorm, s: 1}", "cluster.nodes.0.noise has the mean"),
    (NODES, "noise: {distribution: pareto, b: 1}", "noise: {distribution: pareto, b: 3}", "cluster.nodes.0.noise has the mean inf,"),
    (NODES, "noise: {distribution: uniform}", "noise: {distribution: uniform, loc: 0.5}", "cluster.nodes.0.noise has the mean 0.5,"),
    (NODES, "noise: {distribution: invgauss, mu: 30}", "noise: {distribution: invgauss, mu: 1}", "cluster.nodes.0.noise has the mean 30,"),
    (f"{NODES.replace('VALUE', SPELLS)}", "0.5", "2", "cluster.nodes.0.slow_spells.factor is 0.5,"),
    (
        NODES,
        "slow_spells: {factor: 2, seconds_between: 1, seconds_lasting: 1 h}",
        "slow_spells: {factor: 2, seconds_between: 1 h, seconds_lasting: 1}",
        "cluster.nodes.0.slow_spells last 3600 s",
    ),
    (NODES, "slowdown: speeds.csv", "slowdown: factors.csv", "the slowdown of node 0"),
    (NODES, *MEMORY, "cluster.nodes.0.max_samples=64 is below micro_batch=128"),
    (NODES, "micro_batch: 10k", "micro_batch: 8", "cluster.nodes.0.micro_batch=10000"),
    (NODES, "cost_per_hour: 5e8", "cost_per_hour: 5", "cluster.nodes.0.cost_per_hour is 5e+08,"),
    (NODES, "overlap_seconds_per_byte: 1", "overlap_seconds_per_byte: 1e-10", "cluster.nodes.0.overlap_seconds_per_byte is 1 s/B,"),
    (
        NODES.replace("seconds_per_sample: 1 ms, overhead_seconds: 0, VALUE", "table: VALUE"),
        "[[1, 90], [8, 5 ms], [16, 9 ms]]",
        "[[1, 5 ms], [8, 4 ms], [16, 9 ms]]",
        "cluster.nodes.0.table falls from 90 s for 1",
    ),
    (f"{PHANTOM} +cluster.seed=VALUE", "7", "0", "cluster.seed does nothing"),
    (f"{PHANTOM} seed=VALUE", "7", "0", "seed does nothing"),
    # machines
    (MACHINES, "inside: 1 Gbit/s, network: 10 Gbit/s", "inside: 12 GB/s, network: 100 Gbit/s", "cluster.machines.0.inside is 1.25e+08 B/s"),
    (
        MACHINES,
        "inside: 12 GB/s, network: 3.2 Tbit/s",
        "inside: 12 GB/s, network: 8 x 100 Gbit/s",
        "cluster.machines.0.inside is 1.2e+10 B/s",
    ),
    (MACHINES, "inside: 300, network: 100", "inside: 300 GB/s, network: 100 Gbit/s", "cluster.machines.0.inside is 300 B/s,"),
    (
        SPEEDS,
        "80000",
        "0.8",
        "cluster.machines.0.speed is 80000,",
    ),
    # network and server
    (f"{PHANTOM} cluster.network.latency_seconds=VALUE", "50", "50 us", "cluster.network.latency_seconds is 50 s,"),
    (f"{PHANTOM} cluster.network.bytes_per_second=VALUE", "10", "10 Gbit/s", "cluster.network.bytes_per_second is 10 B/s,"),
    (
        f"{PHANTOM} '+cluster.network.jitter_seconds={{distribution: expon, scale: VALUE}}'",
        "5",
        "5 ms",
        "cluster.network.jitter_seconds has the mean 5 s,",
    ),
    (
        f"{PHANTOM} '+cluster.network.all_reduce_table=VALUE'",
        "[[1 MB, 8], [2 MB, 1 ms], [4 MB, 2 ms]]",
        "[[1 MB, 1 ms], [2 MB, 2 ms]]",
        "cluster.network.all_reduce_table falls",
    ),
    (
        f"{PHANTOM} cluster=two_racks cluster.network.racks.b.oversubscription=VALUE",
        "0.25",
        "4",
        "cluster.network.racks.b.oversubscription is 0.25,",
    ),
    (
        f"{PHANTOM} cluster=two_racks cluster.network.racks.b.latency_seconds=VALUE",
        "30",
        "30 us",
        "cluster.network.racks.b.latency_seconds is 30 s,",
    ),
    (f"{PHANTOM} method=asgd cluster.server.seconds_per_update=VALUE", "500", "500 us", "cluster.server.seconds_per_update is 500 s,"),
    (f"{PHANTOM} method=asgd +cluster.server.seconds_per_byte=VALUE", "0.1", "0.1 ns/B", "cluster.server.seconds_per_byte is 0.1 s/B,"),
    (f"{PHANTOM} method=asgd +cluster.server.shards=VALUE", "1e6", "8", "cluster.server.shards is 1e+06,"),
    (f"{PHANTOM} method=asgd '+cluster.server.noise={{distribution: gamma, a: VALUE}}'", "9", "1", "cluster.server.noise has the mean 9,"),
    # faults and the backend
    (FAULTS, "detection_seconds: 30", f"detection_seconds: 30, {CRASH}", "cluster.faults.detection_seconds does nothing"),
    (FAULTS, f"detection_seconds: 1e6, {CRASH}", f"detection_seconds: 10, {CRASH}", "cluster.faults.detection_seconds is 1e+06 s,"),
    (FAULTS, f"regroup_seconds: 3e6, {CRASH}", f"regroup_seconds: 30, {CRASH}", "cluster.faults.regroup_seconds is 3e+06 s,"),
    (
        FAULTS,
        f"detection_seconds: 5 h, {DRAWN}",
        f"detection_seconds: 5 s, {DRAWN}",
        "cluster.faults.schedule.0.seconds_to_crash has the mean 3600 s",
    ),
    (
        FAULTS,
        f"checkpoint: {{every: 30, seconds: 5 min}}, {CRASH}",
        f"checkpoint: {{every: 30 min, seconds: 5 min}}, {CRASH}",
        "cluster.faults.checkpoint.every is 30 s",
    ),
    ("backend=dist method=ssgd workload=digits backend.lost_after_seconds=VALUE", "1e6", "60", "backend.lost_after_seconds is 1e+06 s,"),
    (
        "backend=dist method=rennala_stops workload=digits backend.emulate=none backend.micro_batch=VALUE",
        "1000",
        "10",
        "backend.micro_batch=1000",
    ),
]


def doubts(run: Composed) -> list[str]:
    """The warnings about the values of a config."""
    return implausible(run.entries, build_experiment(run.entries)[0].cluster)


@pytest.fixture(autouse=True)
def _recorded_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("speeds.csv").write_text("seconds,factor\n0,1\n5,0.5\n", encoding="utf-8")
    Path("factors.csv").write_text("seconds,factor\n0,1\n5,2\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.sampled(25)
@pytest.mark.parametrize(("typed", "mistake", "plausible", "named"), MISTAKES)
def test_a_value_that_is_almost_surely_a_mistake_is_one_warning(typed: str, mistake: str, plausible: str, named: str) -> None:
    """It names the key, and a plausible value of this key is silent."""
    words = shlex.split(typed)
    warned, silent = (doubts(composed([word.replace("VALUE", value) for word in words], folder=".")) for value in (mistake, plausible))

    assert silent == []
    assert len(warned) == 1, warned
    assert warned[0].startswith(named)
    assert len(warned[0]) < 250


@pytest.mark.parametrize("group", sorted(folder.name for folder in configs().iterdir() if folder.is_dir() and folder.name != "cluster"))
def test_each_shipped_choice_is_plausible(group: str) -> None:
    """The numbers of its file are within their ranges."""
    for file in (configs() / group).glob("*.yaml"):
        config = OmegaConf.to_container(OmegaConf.load(file))

        assert [*out_of_range(config if group in ("method", "experiment") else {group: config})] == [], file.name


@pytest.mark.parametrize("cluster", sorted(file.stem for file in (configs() / "cluster").glob("*.yaml")))
def test_each_shipped_cluster_is_plausible(cluster: str) -> None:
    """Also its values together. `tests/test_docs.py` has the same check of each command of a page."""
    entries = composed(shlex.split(PHANTOM), folder=".").entries
    config = resolved({"cluster": OmegaConf.to_container(OmegaConf.load(configs() / "cluster" / f"{cluster}.yaml"))})["cluster"]

    assert implausible({**entries, "cluster": config}, parse_cluster(config)) == []
