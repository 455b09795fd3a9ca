"""The command line: what a user types, which files that leaves, and one sentence for each error."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from worlds import exit_status

from hetsim.cli.compare import main as compare_main
from hetsim.cli.main import main
from hetsim.config.arguments import read_arguments
from hetsim.distributed import Processes
from hetsim.files.schema import SUMMARY
from hetsim.results.comparison.findings import relative_error
from hetsim.trust.shipped import configs

pytestmark = pytest.mark.slow

QUICK = ("workload=quadratic", "budget.epochs=2", "pictures=false")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `hetsim` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["hetsim", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


ON_A_SHARE = "cluster.nodes=[{count: 2, seconds_per_sample: 1, overhead_seconds: 0, cpu_quota: 0.5}]"
BAD = {
    # what is typed: what the sentence must hold
    "nothing=1": "nothing is not a key of the config",
    "bacth_size=4": "bacth_size is not a key of the config: 'hetsim --help' lists all keys; did you mean 'batch_size'?",
    "budget.nothing=1": "budget.nothing is not a key of the config",
    "cluster.network.all_reduce=ring": "cluster.network.all_reduce is not a key of the config as it stands: add a + in front, as +cluster",
    "cluster.nodes={count: 3}": "cluster.nodes={count: 3} does not fit what the config has there: give a list for a list",
    "cluster.name=${nothing}": "refers to ${nothing}, which is not a key of the config",
    "budget.epochs": "budget.epochs cannot be read as key=value",
    "--config-name nothing": "--config-name nothing is not a file in the folder of --config-dir: leave it out",
    "+nothing=1": "nothing is not a key of the config: 'hetsim --help' lists",
    "+allocation.nothing=1": "allocation.nothing is not a key of hetsim.policies.allocation.SpeedProportional",
    "+cluster.nothing=1": "cluster.nothing is unknown: known are name, nodes, network, server",
    "+cluster.network.jitter=1": "cluster.network.jitter is unknown; did you mean 'jitter_seconds'?",
    "method=nothing": "method=nothing is not a choice: take abs_sgd, acco, asgd, async_local_sgd, ata, backup",
    "method=hetgard": "static or streaming_diloco; did you mean 'hetgrad'?",
    "cluster=ours": "; hetsim looks for cluster/ours.yaml in the folder of --config-dir",
    "method=DDP": "; did you mean 'ddp'?",
    "cluster=my/cluster/boxes.yaml": "cluster=my/cluster/boxes.yaml: there is no such file\n",
    "cluster=my/boxes.yaml": "is a path: move it to my/cluster/boxes.yaml, and type cluster=boxes with --config-dir my\n",
    "cluster=boxes.yaml": "is a path: move it to cluster/boxes.yaml, and type cluster=boxes with --config-dir .\n",
    "epochs=1": "epochs must be independent or aligned, not 1: for the length of the run type budget.epochs=1\n",
    "model=resnet50": "model is not a key of the config: type workload.model=lenet, or workload=phantom workload.num_parameters=25.6M",
    "workload=phantom workload.model=resnet50": (
        "num_samples, bytes_per_parameter, name): take workload=arrays, cifar10, digits, fashion_mnist or mnist, which has model"
    ),
    "workload=phantom +workload.model=resnet50": (
        ": add '~workload.model' to leave it out, or take workload=arrays, cifar10, digits, fashion_mnist or mnist, which has model"
    ),
    "cluster.nodes=[{count: 2, images_per_second: 400}]": (
        "cluster.nodes.0.images_per_second is unknown: write seconds_per_sample: 400 samples/s are 2.5 ms"
    ),
    "cluster.nodes=[4]": "must be a mapping, such as {count: 2, seconds_per_sample: 2.5 ms, overhead_seconds: 1 ms}, not 4",
    "method=ssgd,asgd": "method=ssgd,asgd has several values: add -m to run each\n",
    "seed=1,2": "seed=1,2 has several values: add -m to run each, or put them in brackets if they are one list, seed=[1,2]",
    "seed=range(0,2)": "seed=range(0,2) has several values: add -m to run each",
    "budget.update=3": "budget.update is not a key of the config: budget has epochs, updates, seconds; did you mean 'updates'?",
    "allocation=nothing": "=nothing is not a choice: take ata, dbs, dbs_per_epoch, even, fixed, lb_bsp, omnilearn, optperf or static",
    "cluster.network.latency_seconds=-1": "cluster.network.latency_seconds must be a finite number of at least zero, not -1",
    "cluster.network.bytes_per_second=0": "cluster.network.bytes_per_second must be a finite number above zero, not 0",
    "cluster.network.bytes_per_second=nan": "cluster.network.bytes_per_second must be a finite number above zero, not nan",
    "cluster.network.bytes_per_second=null": "cluster.network.bytes_per_second is missing",
    "cluster.network.latency_seconds=fast": "cluster.network.latency_seconds must be seconds, such as 200 ms or 5 min, not 'fast'",
    "cluster.server.seconds_per_update=inf": "cluster.server.seconds_per_update must be a finite number of at least zero, not inf",
    "cluster.nodes=[]": "cluster.nodes is empty",
    "cluster.nodes=4": "cluster.nodes must be a list of nodes, not 4",
    "cluster.nodes=[{count: 2, seconds_per_sample: 1e-3}]": "cluster.nodes.0.overhead_seconds is missing",
    "cluster.nodes=[{count: 2, overhead_seconds: 1e-3}]": "cluster.nodes.0.seconds_per_sample is missing",
    "cluster.nodes=[{count: 0, seconds_per_sample: 1, overhead_seconds: 0}]": "cluster.nodes.0.count must be at least 1, not 0",
    "cluster.nodes=[{count: 1, seconds_per_sample: 0, overhead_seconds: 0}]": "cluster.nodes.0.seconds_per_sample must be a finite number",
    "cluster.nodes=[{count: 1, seconds_per_sample: 1, overhead_seconds: 0, speed: 3}]": "nodes.0.speed is unknown: known are count",
    "cluster.nodes=[{count: 1, seconds_per_sample: 1, overhead_seconds: 0, noise: {distribution: norm}}]": "must never be negative",
    "cluster.nodes=[{count: 1, seconds_per_sample: 1, overhead_seconds: 0, noise: {distribution: gama}}]": "did you mean 'gamma'?",
    "method=ssgd discount=inverse_staleness": "discount is InverseStaleness, but an all-reduce waits for all workers",
    "method=ssgd compensation=dc": "compensation is DelayCompensation, but an all-reduce waits for all workers",
    "method=ssgd compression=two_bit": "compression is TwoBit, but only pushes to a server and changes by local steps",
    "method=streaming_diloco compression=two_bit": "compression is TwoBit, but fragments are added up by an all-reduce",
    "method=pipe_sgd compression=two_bit": "compression is TwoBit, but only pushes to a server and changes by local steps",
    "method=ssgd admission=ssp": "admission is BoundedStaleness, but an all-reduce waits for all workers",
    "method=ssgd coordination=parameter_server discount=inverse_staleness": "admission is Barrier, which lets no gradient be late",
    "method=backup compensation=dc": "admission is Backup, which lets no gradient be late: take none, or another admission",
    "method=ssgd local_optimizer=sgd": "local_optimizer would do nothing, because in SynchronousAllReduce no worker takes local steps",
    "method=od_sgd coordination=parameter_server": "local_optimizer would do nothing, because in ParameterServer",
    "method=local_sgd local_optimizer=none": "local_optimizer is none, but between two averages the workers take local steps",
    "method=pipe_sgd compensation=dc": "local_optimizer is none, but DelayCompensation corrects a worker's local step: add one",
    "method=od_sgd compensation=dana": "compensation is Dana, but a worker cannot correct its local step by it: take dc",
    "method=od_sgd compensation=gap_aware": "compensation is GapAware, but a worker cannot correct its local step by it",
    "method=od_sgd admission=ssp": "admission is BoundedStaleness, but in a one-step delay all workers wait for one another",
    "method=od_sgd discount=inverse_staleness": "discount is InverseStaleness, but in a one-step delay all workers wait",
    "method=od_sgd coordination=one_step_delay_all_reduce +coordination.pull_every=2": "coordination.pull_every is not a key of",
    "method=dana weighting=per_sample": "weighting is PerSample, but compensation is Dana, which assumes plain SGD along each gradient",
    "method=gap_aware discount=inverse_staleness": "discount is InverseStaleness, but compensation is GapAware",
    "method=gap_aware admission=softsync": "admission is SoftSync, which makes a version of several gradients, but compensation",
    "method=dana +optimizer.weight_decay=1e-4": "assumes steps of plain momentum SGD, but optimizer.weight_decay=0.0001",
    "method=asgd local_learning_rate_schedule={_target_: torch.optim.lr_scheduler.StepLR}": "would do nothing without a local optimizer",
    "method=dana momentum=0.9": "keeps a momentum for each worker, so the server's optimizer must be torch.optim.SGD without one",
    "method=dana optimizer=adam": "must be torch.optim.SGD without one, not torch.optim.Adam",
    "method=gap_aware optimizer.momentum=0.5": "measures gaps in steps of torch.optim.SGD with momentum=0, but",
    "method=gap_aware momentum=0.9 +optimizer.nesterov=true": "plain momentum SGD, but optimizer.nesterov=True: leave it out",
    "method=staleness_aware optimizer=adam": "torch.optim.Adam does not depend on a gradient's scale",
    "method=ssp optimizer=adam weighting=per_sample": "torch.optim.Adam does not depend on a gradient's scale",
    "method=softsync admission.n=9": "admission.n=9 is more than the cluster's 4 workers",
    "method=backup admission.spares=4": "admission.spares=4 leaves none of the cluster's 4 workers",
    "method=ssp admission.bound=-1": "admission.bound must be at least 0, not -1",
    "method=ringmaster admission.max_delay=0": "admission.max_delay must be at least 1, not 0",
    "method=dbs_sgd allocation.reallocate_every=never": "must be a number of updates or epoch, not 'never'",
    "method=dbs_sgd allocation.smoothing=1": "allocation.smoothing must be at least 0 and below 1, not 1",
    "method=od_sgd coordination.against=that": "coordination.against must be previous or used, not 'that'",
    "method=od_sgd coordination.warm_up=-1": "coordination.warm_up must be at least 0, not -1",
    "method=local_sgd coordination.period=0": "coordination.period must be at least 1, not 0",
    "method=local_sgd local_optimizer._target_=torch.optim.Nothing": "local_optimizer._target_=torch.optim.Nothing does not exist",
    "method=local_sgd +local_optimizer.speed=1": "local_optimizer.speed is not an option of torch.optim.SGD",
    "method=local_sgd local_learning_rate=fast": "local_learning_rate must be a number, not 'fast'",
    "method=local_sgd local_learning_rate_schedule={_target_: torch.optim.SGD}": "_schedule._target_=torch.optim.SGD is no LRSched",
    "discount._target_=mine.Rule": "if mine is a module of your own, add 'trust=[mine]'",
    "discount._target_=mine.Rule trust=[mine]": "Python finds no module 'mine': add its folder to PYTHONPATH, or install it",
    "admission._target_=hetsim.policies.admission.Admission": "is none of the classes that hetsim has for admission: take",
    "allocation._target_=hetsim.policies.allocation.Even": "(it has none): add '~allocation.reallocate_every' to leave it out",
    "learning_rate=0.5 optimizer=adam": "learning_rate would do nothing, because this optimizer does not read it: set optimizer's own keys",
    "method=diloco momentum=0.5 optimizer=adam": "momentum would do nothing, because this optimizer does not read it",
    "experiment=nothing": "experiment=nothing is not a choice: take ata_51, backup_100,",
    "batch_size=3": "batch_size=3 is less than one sample for each of 4 workers",
    "batch_size=0": "batch_size must be at least 1, not 0",
    "batch_size=12.5": "batch_size must be a whole number, not 12.5",
    "seed=-1": "seed must be at least 0, not -1",
    "dtype=float16": "dtype must be float32 or float64, not 'float16'",
    "trace=all": "trace must be full or commits or none, not 'all'",
    "pictures=maybe": "pictures must be true or false, not 'maybe'",
    "evaluate_every_epochs=0": "evaluate_every_epochs must be a finite number above zero",
    "learning_rate_schedule=[]": "learning_rate_schedule must have a _target_, such as",
    "learning_rate_schedule={}": "learning_rate_schedule must have a _target_, such as",
    "budget.epochs=1e308": "budget.epochs must be at most 1e+15, not 1e+308",
    "cluster=two_racks cluster.network.downlink_bytes_per_second=1e308": "cluster.network.downlink_bytes_per_second must be 0.001 to",
    "device=gpu": "device must be cpu, cuda, cuda:K or auto, not 'gpu'",
    "device=cuda:9": "device=cuda:9: PyTorch finds ",
    "autocast=true": "autocast must be bfloat16, not True",
    "stop_when_diverged=maybe": "stop_when_diverged must be true or false, not 'maybe'",
    "evaluate_every_seconds=-0.5": "evaluate_every_seconds must be a finite number above zero, not -0.5",
    "evaluate_every_epochs=null": "evaluate_every_epochs and evaluate_every_seconds are both null: give one, such as",
    "budget.epochs=null": "budget has neither epochs, updates nor seconds",
    "budget.epochs=-1": "budget.epochs must be a finite number above zero, not -1",
    "budget.updates=0": "budget.updates must be at least 1, not 0",
    "workload=[1]": "workload must name one choice, not [1]: see 'hetsim --help'",
    "method=[1,2]": "method must name one choice, not [1,2]: see 'hetsim --help'",
    "budget=5": "budget must be a mapping, not 5",
    "budget=true": "budget must be a mapping, not True",
    "budget=1e-3": "budget must be a mapping, not 0.001",
    "budget.seconds=nan": "budget.seconds must be a finite number above zero, not nan",
    "allocation=fixed": "allocation.parts is missing",
    "workload=arrays": "workload.path is missing",
    "workload=mnist": "train-images-idx3-ubyte, which is missing: point data_root at the folder that holds it",
    "workload.num_samples=0": "workload.num_samples must be at least 1, not 0",
    "optimizer._target_=torch.optim.Nothing": "optimizer._target_=torch.optim.Nothing does not exist",
    "optimizer._target_=torch.optim.LBFGS": "optimizer.momentum is not an option of torch.optim.LBFGS",
    "optimizer._target_=os.system": "optimizer._target_=os.system is not allowed",
    "optimizer._target_=torch.optim.sgd.torch.hub.os.getcwd": "optimizer._target_=torch.optim.sgd.torch.hub.os.getcwd does not exist",
    "optimizer._target_=torch.optim.lr_scheduler.StepLR": "is no Optimizer",
    "learning_rate=fast": "learning_rate must be a number, not 'fast'",
    "backend.emulate=pad": "backend.emulate is not a key of the config: add backend=dist, which has it",
    "backend.reduction=native": "backend.reduction is not a key of the config: add backend=dist, which has it",
    "optimizer.lr=-1": "optimizer: torch.optim.SGD refuses",
    "allocation._target_=os.system": "allocation._target_=os.system is not allowed",
    "allocation._target_=hetsim.sweeps.job.os.getcwd": "is none of the classes that hetsim has for allocation: take",
    "allocation._target_=hetsim.policies.weighting.PerSample": "is none of the classes that hetsim has for allocation",
    "allocation._target_=hetsim.policies.allocation.base.Even": "is not a key of hetsim.policies.allocation.base.Even",
    "+weighting.inner={_target_: subprocess.run}": "weighting.inner._target_ is not allowed, because weighting.inner holds plain",
    "learning_rate_schedule={step_size: 3}": "learning_rate_schedule must have a _target_",
    "learning_rate_schedule={_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}": "needs a validation loss during training",
    "learning_rate_schedule={_target_: torch.optim.lr_scheduler.StepLR, step: 3}": "learning_rate_schedule.step is not an option",
    "coordination=all_reduce": "admission is EveryGradient, but an all-reduce waits for all workers",
    "optimizer=adam weighting=per_sample": "does not depend on a gradient's scale",
    "trust=mypackage": "trust must be a list of module names",
    "backend=dist backend.emulate=maybe": "backend.emulate must be pad or quota or none, not 'maybe'",
    "backend=dist backend.emulate=quota": "backend.emulate=quota caps nodes that have a cpu_quota, and cluster=mixed4 has",
    f"backend=dist backend.emulate=quota threads=2 {ON_A_SHARE}": "threads=2 does not go with backend.emulate=quota",
    ON_A_SHARE.replace("0.5", "2"): "cluster.nodes.0.cpu_quota must be a share of one core, between 0.001 and 1, not 2",
    "backend=dist backend.reduction=fast": "backend.reduction must be ordered or native, not 'fast'",
    "backend=dist backend.port=70000": "backend.port must be at most 65535",
    "backend=dist backend.interface=nowhere": "backend.interface must be a network interface of this machine",
}


def words(typed: str) -> list[str]:
    """The overrides of one line; a space inside braces belongs to its override."""
    found, depth = [""], 0
    for letter in typed:
        depth += (letter in "{[") - (letter in "}]")
        if letter == " " and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


@pytest.mark.parametrize("typed", BAD)
@pytest.mark.sampled(30)
def test_bad_input_is_one_sentence(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong, where in the config, what to do; exit status 1; no traceback, and no folder remains. A warning may stand before it."""
    status = command(monkeypatch, *QUICK, *words(typed), f"hydra.run.dir={tmp_path / 'run'}")

    told = "".join(line for line in capsys.readouterr().err.splitlines(True) if not line.startswith("hetsim: warning: "))
    assert status == 1
    assert told.count("\n") == 1
    assert told.startswith("hetsim: error: ")
    assert BAD[typed] in told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["run", "sweep"])
def test_a_cluster_file_that_is_no_yaml_is_one_sentence_with_its_line(
    sweep: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an editor counts lines and columns."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("name: mine\nnodes: [{count: 1\nnetwork: {}\n")

    status = command(monkeypatch, *sweep, *QUICK, "cluster=mine", "--config-dir", str(tmp_path), f"hydra.run.dir={tmp_path / 'run'}")

    told = capsys.readouterr().err
    assert status == 1
    assert told.startswith(f"hetsim: error: {tmp_path / 'cluster' / 'mine.yaml'}, line 3, column 8 cannot be read as YAML (")
    assert told.endswith(": mend it\n")
    assert told.count("\n") == 1


def test_options_may_stand_anywhere() -> None:
    """Also between what is typed for the config, and after it."""
    typed = read_arguments(["seed=0,1", "-m", "method=asgd", "--config-dir", "my", "--info", "all", "+x=1", "-cn=other"])

    assert (typed.multirun, typed.config_dir, typed.info, typed.config_name) == (True, "my", "all", "other")
    assert typed.overrides == ["seed=0,1", "method=asgd", "+x=1"]


@pytest.mark.parametrize("broken", ["missing", "truncated", "not an archive", "wrong shape"])
def test_a_broken_archive_is_one_sentence(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is missing, truncated or of the wrong shape is named."""
    path = tmp_path / "data.npz"
    x, y = np.zeros((8, 3)), np.zeros(8, dtype=np.int64)
    if broken != "missing":
        np.savez(path, x_train=x, y_train=y[:7] if broken == "wrong shape" else y, x_test=x, y_test=y)
    if broken == "truncated":
        path.write_bytes(path.read_bytes()[:300])
    if broken == "not an archive":
        path.write_text("hello")

    status = command(monkeypatch, "workload=arrays", f"workload.path={path}", f"hydra.run.dir={tmp_path / 'run'}")

    told = capsys.readouterr().err
    assert status == 1
    assert told.startswith(f"hetsim: error: workload.path={path}")
    assert told.count("\n") == 1


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the folder."""
    status = command(monkeypatch, *QUICK, f"hydra.run.dir={place}")

    told = capsys.readouterr().err
    assert status == 1
    assert told.startswith(f"hetsim: error: {place}")
    assert "cannot be written or read" in told
    assert told.count("\n") == 1


def test_a_failed_run_loses_nothing_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of an earlier run in the same folder stay as they are."""
    assert command(monkeypatch, *QUICK, f"hydra.run.dir={tmp_path}") == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert command(monkeypatch, *QUICK, "batch_size=1", f"hydra.run.dir={tmp_path}") == 1

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"config.yaml", "summary.json", "curve.csv", "trace.parquet"}


def test_a_run_that_never_left_its_warm_up_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was run is synchronous SGD, not the method that was asked for."""
    arguments = ("workload=phantom", "pictures=false", "budget.epochs=null", "method=od_sgd")

    assert command(monkeypatch, *arguments, "budget.updates=20", f"hydra.run.dir={tmp_path / 'short'}") == 0
    assert "warning: all 20 updates were warm-up, so the delay never began" in capsys.readouterr().err
    assert command(monkeypatch, *arguments, "budget.updates=21", f"hydra.run.dir={tmp_path / 'long'}") == 0
    assert "warning" not in capsys.readouterr().err


def test_discarded_samples_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Applied and discarded samples add up to the budget, also those that are discarded after the last commit."""
    assert command(monkeypatch, "workload=phantom", "method=ringmaster", "budget.epochs=1", f"hydra.run.dir={tmp_path}") == 0

    told = re.search(r"(\d+) samples in .* \((\d+) more dropped\)", capsys.readouterr().out)
    assert told is not None
    assert int(told[1]) + int(told[2]) == 60_000


@pytest.mark.parametrize(
    ("word", "reason"), [("batch_size=1", "ValueError: batch_size=1 is less than one sample"), ("method=x", "MissingConfigException")]
)
def test_a_verbose_run_shows_the_traceback(
    word: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """hydra.verbose=true says where the error came from."""
    try:
        assert command(monkeypatch, word, "hydra.verbose=true", f"hydra.run.dir={tmp_path}") == 1
    finally:
        logging.getLogger().setLevel(logging.WARNING)  # Hydra has set DEBUG

    told = capsys.readouterr().err
    assert "Traceback (most recent call last)" in told
    assert reason in told


CHECKED_EARLY = """
import sys
from hetsim.cli.main import main
for typed in {lines!r}:
    sys.argv = ["hetsim", *typed, "hydra.run.dir={folder}"]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 1, typed
    assert "torch" not in sys.modules, typed
"""


def test_what_can_be_checked_is_checked_before_torch_is_imported(tmp_path: Path) -> None:
    """A typing error costs no seconds; every fifth line shows it."""
    late = re.compile(r"^optimizer|optimizer=adam|local_optimizer\.|learning_rate_schedule=")
    lines = [words(typed) for typed in [*BAD][::5] if not late.search(typed)] + [["optimizer._target_=os.system"]]

    ended = subprocess.run(
        [sys.executable, "-c", CHECKED_EARLY.format(lines=lines, folder=tmp_path / "run")], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("hetsim: error: ") == len(lines)


def test_a_sweep_goes_on_after_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every combination is run; a failure is reported at once and after the last run, and the exit status is 1."""
    arguments = ("-m", *QUICK, "method=ssgd,asgd", "batch_size=1,64", f"hydra.sweep.dir={tmp_path}")

    status = command(monkeypatch, *arguments)

    assert status == 1
    told = capsys.readouterr().err
    assert told.count("hetsim: error: batch_size=1 is less than") == 2
    assert re.search(r"^hetsim: 2 of 4 runs failed:\n  ssgd-mixed4-s0-sim-\w+: batch_size=1 is less.*\n  asgd-", told, flags=re.MULTILINE)
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/summary.json"))]
    assert [summary["method"] for summary in summaries] == ["asgd", "ssgd"]


MODES = {
    ("seed=1",): "run",
    ("hydra.mode=MULTIRUN",): "sweep/*",
    ("++hydra.mode=MULTIRUN", "seed=1,2"): "sweep/*",
    ("-m", "++hydra.mode=RUN"): "run",
}


@pytest.mark.parametrize("words", MODES, ids=" ".join)
def test_a_typed_mode_decides_between_a_run_and_a_sweep(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Hydra, also against -m."""
    folders = (f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}")

    assert command(monkeypatch, *QUICK, *words, *folders) == 0
    assert len(list(tmp_path.glob(f"{MODES[words]}/summary.json"))) == (2 if "seed=1,2" in words else 1)
    assert {path.name for path in tmp_path.iterdir()} == {MODES[words].split("/")[0]}


def test_hydras_own_help_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It composes Hydra's part alone."""
    assert command(monkeypatch, "--hydra-help") == 0
    assert "Hydra" in capsys.readouterr().out


def test_a_users_own_config_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config-dir adds choices to every group."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(
        "name: mine\nnodes: [{count: 2, seconds_per_sample: 1e-3, overhead_seconds: 0}]\n"
        "network: {latency_seconds: 0, bytes_per_second: 1e9}\nserver: {seconds_per_update: 0}\n"
    )

    status = command(monkeypatch, "--config-dir", str(tmp_path), "cluster=mine", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")

    assert status == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["cluster"] == "mine"


OWN = '''
from dataclasses import dataclass
from hetsim.policies.allocation import Allocation

@dataclass(frozen=True)
class AllButOne(Allocation):
    """The last worker takes one sample for each of the others."""

    def initial(self, num_workers, batch_size):
        return (1,) * (num_workers - 1) + (batch_size - num_workers + 1,)

    def shares(self, state):
        return state
'''


def test_a_users_own_policy_runs_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """trust=[module] lets a `_target_` name it; without, it is refused and not even imported."""
    (tmp_path / "my_own_policies.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    choice = ("method=ssgd", "allocation._target_=my_own_policies.AllButOne", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")

    refused = command(monkeypatch, *choice)
    imported = "my_own_policies" in sys.modules
    allowed = command(monkeypatch, *choice, "trust=[my_own_policies]")

    assert (refused, imported, allowed) == (1, False, 0)
    assert "my_own_policies.AllButOne is not allowed" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["batch_sizes"] == [1, 1, 1, 253]


def test_a_run_leaves_the_files_of_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summary, trace, curve, pictures and the resolved config; fewer if they are not wanted. No other run replaces a finished one."""
    assert command(monkeypatch, "budget.epochs=2", f"hydra.run.dir={tmp_path}") == 0
    names = {path.name for path in tmp_path.iterdir()}
    summary = json.loads((tmp_path / "summary.json").read_text())
    config = OmegaConf.load(tmp_path / "config.yaml")

    fewer = ("budget.epochs=2", "trace=none", "pictures=false")
    assert command(monkeypatch, *fewer, f"hydra.run.dir={tmp_path}") == 1
    assert {path.name for path in tmp_path.iterdir()} == names
    assert command(monkeypatch, *fewer, f"hydra.run.dir={tmp_path / 'fewer'}") == 0

    assert names == {"summary.json", "trace.parquet", "curve.csv", "timeline.png", "curve.png", "config.yaml"}
    assert {path.name for path in (tmp_path / "fewer").iterdir()} == {"summary.json", "curve.csv", "config.yaml"}
    assert set(summary) >= {
        *("method", "backend", "cluster", "workload", "seed", "num_workers", "num_updates", "num_samples", "num_samples_discarded"),
        *("seconds", "updates_per_second", "samples_per_second", "staleness_mean", "staleness_max", "idle_share", "batch_sizes"),
        *("final", "per_worker", "wall_seconds"),
    }
    assert set(summary) == {key for key in SUMMARY if "." not in key} - {"calibrated"}
    assert set(summary["final"]) == {"train_loss", "test_accuracy"}
    assert set(summary["per_worker"][0]) == {
        *("rank", "iterations", "samples", "compute_seconds", "update_seconds", "wait_seconds", "down_seconds", "staleness_mean")
    }
    assert config.optimizer.lr == config.learning_rate == 0.1
    assert summary["num_samples"] == 2 * 1437


def test_a_rank_that_does_not_lead_leaves_the_leaders_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun all ranks share one folder, and only one of them writes."""
    variables = {"RANK": "1", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Processes, "run", lambda *_: None)
    growing = tmp_path / ".trace.parquet.unfinished"
    growing.touch()

    assert command(monkeypatch, "backend=dist", f"hydra.run.dir={tmp_path}") == 0
    assert growing.exists()


def test_help_names_every_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And each choice that there is."""
    monkeypatch.setattr(sys, "argv", ["hetsim", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()

    told = capsys.readouterr().out
    assert not ended.value.code
    for group in (path for path in configs().iterdir() if path.is_dir()):
        entry = re.search(rf"^{group.name} .*\n( +.*\n)*", told, flags=re.MULTILINE)
        assert entry is not None
        for choice in group.glob("*.yaml"):
            assert re.search(rf"\b{choice.stem}\b", entry[0]), choice.stem


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two simulated runs, one of them said to be real."""
    folders = (tmp_path_factory.mktemp("sim"), tmp_path_factory.mktemp("dist"))
    with pytest.MonkeyPatch.context() as patch:
        for seed, folder in enumerate(folders):
            assert command(patch, "budget.epochs=2", f"seed={seed}", "pictures=false", f"hydra.run.dir={folder}") == 0
    summary = json.loads((folders[1] / "summary.json").read_text())
    (folders[1] / "summary.json").write_text(json.dumps({**summary, "backend": "dist", "updates_per_second": 100.0}))
    return folders


def comparing(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit status of `hetsim-compare`."""
    return exit_status(monkeypatch, "hetsim-compare", compare_main, *arguments)


def test_compare_prints_both_values_and_the_relative_error(
    two_runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """(simulated − measured) / |measured|, whichever is named first; the same in JSON, and in pictures."""
    simulated, measured = two_runs
    asked = (measured, simulated, "--json", tmp_path / "table.json", "--pictures", tmp_path / "pictures")

    status = comparing(monkeypatch, *asked)

    told = capsys.readouterr()
    rows = json.loads((tmp_path / "table.json").read_text())["numbers"]
    rate = json.loads((simulated / "summary.json").read_text())["updates_per_second"]
    assert status == 0
    assert ["simulated", "measured", "relative", "error"] in [line.split() for line in told.out.splitlines()]
    assert list(rows) == ["updates_per_second", "samples_per_second", "staleness_mean", "idle_share", "train_loss", "test_accuracy"]
    assert rows["updates_per_second"] == {"simulated": rate, "measured": 100.0, "relative_error": (rate - 100) / 100}
    assert f"{(rate - 100):+.2f} %" in told.out
    assert "differ in seed: 0 and 1" in told.err
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"timeline.png", "curve.png"}


def test_compare_refuses_what_is_no_run(
    two_runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names the folder."""
    (tmp_path / "summary.json").write_text("{}")

    assert comparing(monkeypatch, two_runs[0], tmp_path / "nowhere") == 1
    assert "nowhere is not the folder of a finished run" in capsys.readouterr().err
    assert comparing(monkeypatch, two_runs[0], tmp_path) == 1
    assert "lacks updates/s" in capsys.readouterr().err


def test_what_has_no_number_has_no_error() -> None:
    """Nothing, or zero, cannot be divided by."""
    assert relative_error(None, 1.0) is None
    assert relative_error(1.0, 0.0) is None
    assert relative_error(0.0, 0.0) == 0.0
    assert relative_error(1.0, -2.0) == 1.5
