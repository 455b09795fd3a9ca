"""Bad values that once ended in a traceback, a hang, a lack of memory or a silent default: each is one sentence, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import exit_status

from hetsim.cli.main import main

pytestmark = pytest.mark.slow

NODES = "cluster.nodes=[{count: 2, overhead_seconds: 0, seconds_per_sample: SECONDS}]"
NOISY = "cluster.nodes=[{count: 2, overhead_seconds: 0, seconds_per_sample: 1e-3, noise: {NOISE}}]"
SPELLS = "slow_spells: {factor: 2, seconds_between: 1e-9, seconds_lasting: 1e-9}"
PHANTOM = ("workload=phantom", "budget.epochs=null", "budget.updates=100")
HUGE = "1" + "0" * 23
DIGITS = "9" * 400

BAD: dict[tuple[str, ...], str] = {
    # what is typed: what the sentence holds
    ("workload.resize=20000",): "workload.resize=20000, of 1797 images, would take 9275.2 GB of memory, and ",
    (f"workload.resize={HUGE}",): f"workload.resize must be at most 1000000000000000, not {HUGE}",
    ("workload.augmentation.pad=100000",): "workload.augmentation.pad=100000 must be less than the 8 pixels of an image's side: lower it",
    ("workload=quadratic", "workload.num_samples=2048000000000"): "workload=quadratic would take 409600.0 GB of memory, and ",
    ("workload=quadratic", "experiment=diloco_500"): "GB are available: lower workload.num_samples or workload.num_parameters",
    ("workload=quadratic", "workload.num_parameters=1000000000"): "workload=quadratic would take 8704.0 GB of memory, and ",
    ("workload=quadratic", "learning_rate_schedule={_target_: torch.optim.lr_scheduler.ExponentialLR, gamma: 1e300}"): (
        "learning_rate_schedule gives a learning rate of 1e+299 in epoch 1: keep it below 1e+30"
    ),
    ("workload=quadratic", "learning_rate=1e300"): "optimizer gives a learning rate of 1e+300 in epoch 0: keep it below 1e+30",
    ("threads=100000",): "threads=100000 is more than the ",
    ("method=pipe_sgd", "cluster=shared", *PHANTOM, "+cluster.faults={detection_seconds: 1e300, schedule: [{nodes: [0], crash: 0.02}]}"): (
        "cluster.faults.detection_seconds must be between 1e-15 and 1e+12 seconds, not 1e+300"
    ),
    ("method=pipe_sgd", "cluster=shared", *PHANTOM, "+cluster.faults={detection_seconds: 1e12, schedule: [{nodes: [0], crash: 0.02}]}"): (
        "a pause before a step has over 100000 changes of speed: make slow_spells' seconds_between and seconds_lasting"
    ),
    ("method=local_sgd", *PHANTOM, "coordination.period=1000000000"): "coordination.period must be at most 100000, not 1000000000",
    ("method=ssd_sgd", *PHANTOM, "coordination.pull_every=1000000000"): "coordination.pull_every must be at most 100000, not 1000000000",
    (
        "method=ssgd",
        "allocation=static",
        "allocation.repetitions=1000000000",
    ): "allocation.repetitions must be at most 1000, not 1000000000",
    (*PHANTOM, NODES.replace("SECONDS", "1e-3, " + SPELLS)): "has over 100000 changes of speed: make slow_spells' seconds_between",
    (*PHANTOM, NODES.replace("SECONDS", "1e307")): "seconds_per_sample must be between 1e-15 and 1e+12 seconds, not 1e+307",
    (
        *PHANTOM,
        NODES.replace("SECONDS", "1e-320"),
    ): "cluster.nodes.0.seconds_per_sample must be between 1e-15 and 1e+12 seconds, not 1e-320",
    (*PHANTOM, NODES.replace("SECONDS", "{distribution: uniform, scale: 1e-200}")): "a draw of cluster.nodes.0.seconds_per_sample must be",
    (
        *PHANTOM,
        NOISY.replace("NOISE", "distribution: lognorm, s: 1000"),
    ): "cluster.nodes.0.noise drew 0, which is not between 1e-100 and 1e+12",
    (*PHANTOM, "method=asgd", NOISY.replace("NOISE", "distribution: pareto, b: 1e-3")): "cluster.nodes.0.noise drew inf, which is not",
    (*PHANTOM, "method=ssgd", NOISY.replace("NOISE", "distribution: lognorm, s: 99")): "make it narrower",
    (f"batch_size={HUGE}",): f"batch_size must be at most 1000000000000000, not {HUGE}",
    ("method=asgd", f"batch_size={HUGE}"): f"batch_size must be at most 1000000000000000, not {HUGE}",
    (
        "++workload.model_options={dropout: nan}",
    ): "refuses model_options {'dropout': nan}: dropout must be a finite number of at least zero",
    ("+workload.model_options.hidden=[100000000000]",): "parameters, would take ",
    ("workload.model_options=1",): "workload.model_options must be a mapping, not 1",
    ("~batch_size",): "batch_size is missing: give it a value",
    (f"cluster.server.seconds_per_update={DIGITS}",): f"must be a finite number of at least zero, not {DIGITS[:200]} …",
    (f"cluster.server.seconds_per_update={DIGITS * 20}",): "a whole number of thousands of digits was given: shorten it",
    ("seed=${oc.env:NOT_THERE}",): "seed refers to something that has no value (\"Environment variable 'NOT_THERE' not found\")",
    ("cluster.nodes=${cluster.nodes[9]}",): "cluster.nodes refers to something that has no value (maximum recursion depth exceeded",
    ("seed=[1",): "seed=[1 cannot be read as key=value: close its brackets, and quote the whole word for the shell, as in 'seed=…'",
    ("compensation=1",): "compensation=1 names no choice: type one of dana, dc, dc_adaptive, gap_aware, mixing, none",
}


@pytest.mark.parametrize("typed", BAD, ids=lambda typed: " ".join(typed)[:60])
def test_a_bad_value_is_one_sentence(
    typed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key, the value and what to do. A value out of its usual range is a remark before."""
    status = exit_status(monkeypatch, "hetsim", main, *typed, "pictures=false", f"hydra.run.dir={tmp_path / 'run'}")

    *warnings, told = capsys.readouterr().err.splitlines()
    assert status == 1
    assert [line for line in warnings if not line.startswith("hetsim: warning: ") or "probably a mistake" not in line] == []
    assert told.startswith("hetsim: error: ")
    assert BAD[typed] in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("seed=range(0,1000000000000)",), "the sweep would have 1000000000000 runs: at most 1000000 can be listed"),
        (("seed=range(0,2000)", "batch_size=range(1,1000,0.5)"), "the sweep would have 3996000 runs: at most 1000000 can be listed"),
        (("seed=range(0,1,0)",), "seed=range(0,1,0) has a step of 0: give it another"),
        (("learning_rate=range(0.1,1,0.0)",), "learning_rate=range(0.1,1,0.0) has a step of 0: give it another"),
        (("hydra.sweeper.max_batch_size=-1",), "hydra.sweeper.max_batch_size must be at least 1, not -1, or null"),
        (
            ("hydra/launcher=joblib", "hydra.launcher.n_jobs=100000000"),
            "hydra.launcher.n_jobs must be at most 10000, not 100000000",
        ),
    ],
)
def test_a_sweep_that_nobody_can_wait_for_is_refused(
    typed: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra lists all runs before the first one."""
    assert exit_status(monkeypatch, "hetsim", main, "-m", *typed, f"hydra.sweep.dir={tmp_path / 'sweep'}") == 1

    assert capsys.readouterr().err == f"hetsim: error: {said}\n"
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_of_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Hydra's glob(*) is for groups of choices, and of a key makes no value at all."""
    assert exit_status(monkeypatch, "hetsim", main, "-m", "batch_size=glob(*)", f"hydra.sweep.dir={tmp_path / 'sweep'}") == 1

    told = capsys.readouterr()
    assert told.err == "hetsim: error: the sweep has no runs: give each key a value (glob(…) is for groups of choices)\n"
    assert told.out == ""


def test_a_sweep_that_is_refused_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its sweeper refuses it."""
    sweep = f"hydra.sweep.dir={tmp_path / 'sweep'}"

    assert exit_status(monkeypatch, "hetsim", main, "-m", "seed=shuffle(1,2),${budget}", sweep) == 1

    assert not (tmp_path / "sweep").exists()
