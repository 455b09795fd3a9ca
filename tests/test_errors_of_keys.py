"""What is said of a wrong key looks at the config: it names the key itself, as one types it, and what it says to type is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_command import words
from worlds import exit_status

import hetsim
from hetsim.cli.main import main
from hetsim.config.build import build_experiment
from hetsim.config.compose import composed
from hetsim.config.schema import MEANT
from hetsim.sweeps.space import parsed

pytestmark = pytest.mark.slow

QUICK = ("workload=phantom", "budget.epochs=null", "budget.updates=2", "pictures=false", "method=asgd")
NODE = "{count: 2, seconds_per_sample: 1 ms, overhead_seconds: 0}"
TYPED: dict[str, tuple[str, str]] = {
    # what is typed: what is said, what is typed instead
    "cluster.server={seconds_per_update: 1 ms, shards: 2}": (
        "cluster.server.shards is not a key of the config as it stands: add ++ in front, as ++cluster.server=…",
        "++cluster.server={seconds_per_update: 1 ms, shards: 2}",
    ),
    "cluster.server.shards=2": ("add a + in front, as +cluster.server.shards=…", "+cluster.server.shards=2"),
    "cluster.server.seconds_per_byte=0": ("add a + in front, as +cluster.server.seconds_per_byte=…", "+cluster.server.seconds_per_byte=0"),
    "cluster.server.shard=2": ("cluster.server.shard is unknown; did you mean 'shards'?", "+cluster.server.shards=2"),
    "cluster.nodes.0.nois=null": ("cluster.nodes.0.nois is not a key of the config; did you mean 'noise'?", "cluster.nodes.0.noise=null"),
    "cluster.nodes.0.seconds_per_sample=-1": (
        "cluster.nodes.0.seconds_per_sample must be a finite number above zero, not -1",
        "cluster.nodes.0.seconds_per_sample=1",
    ),
    f"cluster.nodes=[{NODE}, {{count: 1}}]": (
        "cluster.nodes.1.seconds_per_sample, cluster.nodes.1.overhead_seconds are missing",
        f"cluster.nodes=[{NODE}, {{count: 1, overhead_seconds: 0}}] +cluster.nodes.1.seconds_per_sample=1",
    ),
    "cluster.nodes.0.noise.x=1": ("cluster.nodes.0.noise must be null or a mapping such as {distribution", "cluster.nodes.0.noise=null"),
    "cluster.nodes[0].count=1": ("cluster.nodes[0].count=1 cannot be read as key=value: type cluster.nodes.0.count=1", ""),
    "cluster.nodes.7.count=1": ("cluster.nodes.7.count=1 is beyond the rows that the config has there: count them from 0", ""),
    "cluster.nodes.first=1": ("first is not a row of a list: count from 0, as in cluster.nodes.0.count=2", "cluster.nodes.0.count=2"),
    "~cluster.nodes.0": ("a row of a list cannot be left out so: type the whole list", ""),
    "cluster.network=1Gbit/s cluster.network.latency_seconds=0": (
        "because cluster.network is a single value there: type 'cluster.network={bytes_per_second: …, latency_seconds: …}'",
        "cluster.network={bytes_per_second: 1 Gbit/s, latency_seconds: 0}",
    ),
    "coordination.local_steps=100": (
        "coordination.local_steps is not a key of coordination=parameter_server (it has none); did you mean coordination=local_steps?",
        "",
    ),
    "coordination={period: 3}": ("take coordination=async_local_steps, decoupled_steps, ", ""),
    "method=local_sgd coordination.perod=3": ("coordination.perod is not a key of the config; did you mean 'period'?", ""),
    "workload.batch_size=64": ("name); did you mean batch_size=…?", "batch_size=64"),
    "optimizer.nonsense=1": ("optimizer.nonsense is not a key of torch.optim.SGD (lr, momentum, ", ""),
    "optimizer.weight_decay=1e-4": ("add a + in front, as +optimizer.weight_decay=…", "+optimizer.weight_decay=1e-4"),
    "budget={epochs: 3, steps: 4}": (
        "budget.steps is not a key of the config: budget has epochs, updates, seconds; did",
        "budget={updates: 4}",
    ),
    "seed.x=1": ("seed.x is not a key of the config, because seed has a value and no keys within it: type seed=…", "seed=1"),
    "lr=0.1": ("lr is not a key of the config: type learning_rate=…", "learning_rate=0.1"),
    "+lr=0.1": ("lr is not a key of the config: type learning_rate=…", "learning_rate=0.1"),
    "nodes=4": ("nodes is not a key of the config: type 'cluster.nodes=[{count: 4, ", f"cluster.nodes=[{NODE}]"),
    "+seed=1": ("+seed is in the config already: leave out the +", "seed=1"),
    "~budget.epochs": ("~budget.epochs would leave out nothing, because budget.epochs is null or no key", ""),
    "~lerning_rate": ("type nothing instead; did you mean 'learning_rate'?", ""),
    "~seed=3": ("~seed=3 would leave out nothing, because seed is 0: type ~seed", "seed=0"),
    "~cluster": ("~cluster would leave a run without its cluster: choose another with cluster=…", "cluster=mixed8"),
    "+cluster=mixed8": ("+cluster=mixed8 adds nothing, because cluster is chosen already: type cluster=mixed8", "cluster=mixed8"),
    "++method=ssgd": ("++method=ssgd adds nothing, because method is chosen already: type method=ssgd", "method=ssgd"),
    "+experiment=diloco_500": ("+experiment=diloco_500 adds nothing, because experiment is chosen already: type experiment=diloco_500", ""),
    "method=": ("method= names no choice: type one of abs_sgd, acco, asgd, ", "method=asgd"),
    "experiment=null": ("experiment=null names no choice: leave it out, or type one of ata_51, backup_100, ", ""),
    "local_optimizer=null": ("local_optimizer=null names no choice: type local_optimizer=none", "local_optimizer=none"),
    "foo@bar=1": ("foo@bar is not a key of the config, because foo is not a group of choices: see 'hetsim --help'", ""),
    "cluster.nodes=[{count:2}": ("close its brackets, and quote the whole word for the shell, as in 'cluster.nodes=…'", ""),
    "seed=0,": ("seed=0, cannot be read as key=value: a value is missing after the last comma", "seed=0"),
    "=3": ("=3 cannot be read as key=value: give the key in front of the =", "seed=3"),
    "seed": ("seed cannot be read as key=value: type seed=VALUE", "seed=3"),
    "cluster.name=a(b)": ("quote its value, as in \"cluster.name='a(b)'\"", "cluster.name='a(b)'"),
    "cluster.name=a=b": ("quote its value, as in \"cluster.name='a=b'\"", "cluster.name='a=b'"),
}
FOREIGN = re.compile(
    r"full_key|object_type|viable alternative|mismatched input|extraneous|struct|DictConfig|override|<EOF>|\n|[a-z]\[\d+\]\.(?!count=1)"
)
"""What OmegaConf and Hydra say, and rows of lists as they cannot be typed."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("typed", TYPED)
def test_a_wrong_key_is_named_and_mended(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the same words by the command and in Python."""
    said, instead = TYPED[typed]
    monkeypatch.chdir(tmp_path)

    assert exit_status(monkeypatch, "hetsim", main, *QUICK, *words(typed), "hydra.run.dir=run") == 1
    with pytest.raises(ValueError, match=r".") as caught:
        hetsim.run(*QUICK, *words(typed), folder="run")

    assert capsys.readouterr().err == f"hetsim: error: {caught.value}\n"
    assert said in str(caught.value)
    assert not FOREIGN.search(str(caught.value))
    if instead:
        build_experiment(composed([*QUICK, *words(instead)], folder=".").entries)


@pytest.mark.parametrize("typed", [typed for typed, (said, _) in TYPED.items() if "cannot be read" in said or "close its" in said])
def test_a_search_says_the_same_of_what_cannot_be_read(typed: str) -> None:
    """It reads words by itself."""
    with pytest.raises(ValueError, match=r".") as caught:
        parsed([*QUICK, "batch_size=1,2", typed])

    assert TYPED[typed][0] in str(caught.value)


def test_no_synonym_is_a_key() -> None:
    """Otherwise what one says would be refused."""
    composed_keys = set(composed([], folder=".").entries)

    assert not composed_keys & MEANT.keys()


NAMES = {
    (): "mixed4",
    ("cluster=two_gpus",): "two_gpus",
    ("cluster.network.bytes_per_second=1 Gbit/s", "cluster.network.latency_seconds=1 ms"): "mixed4",
    (f"cluster.nodes=[{NODE}]",): "mixed4 with other nodes",
    ("cluster.network=10 Gbit/s", "cluster.server.seconds_per_update=0"): "mixed4 with another network and another server",
    ("+cluster.faults={schedule: [{nodes: [0], crash: 1}]}", f"cluster.nodes=[{NODE}]"): "mixed4 with other nodes and faults",
    ("cluster.name=ours", f"cluster.nodes=[{NODE}]"): "ours",
    ("cluster=machines", "cluster.machines.0.network=10 Gbit/s"): "machines",
}


@pytest.mark.parametrize("typed", NAMES)
def test_a_cluster_that_was_typed_over_a_shipped_one_is_not_called_so(typed: tuple[str, ...]) -> None:
    """Results of another cluster are not those of the one with this name."""
    assert build_experiment(composed([*QUICK, *typed], folder=".").entries)[0].cluster.name == NAMES[typed]
