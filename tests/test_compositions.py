"""The configs of runs are those that Hydra composes, although Hydra composes few of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from hetsim.config import compositions as module
from hetsim.config.compose import entries_of
from hetsim.config.compositions import Compositions, resolved_once, without_hydra
from hetsim.config.resolved import resolved
from hetsim.files.identity import identity_of
from hetsim.trust.shipped import configs

pytestmark = pytest.mark.slow

GROUPS = (
    *("method=ssgd", "method=asgd,dana", "method='diloco'", "cluster=uniform4,mixed4", "cluster=glob(two_*)", "workload=phantom,digits"),
    *("allocation=even,dbs", "optimizer=sgd,adam", "local_optimizer=sgd", "backend=dist,sim", "experiment=null,od_sgd_cifar10"),
    *("+allocation@extra=even", "local_optimizer=none", "compression=two_bit,none", "cluster@server_cluster=mixed4", "optimizer={lr:0.5}"),
)
VALUES = (
    *("seed=range(0,3)", "seed=7", "batch_size=choice(64,128)", "learning_rate=0.1,1e-3,nan", "momentum=0,0.9", "budget.updates=4,null"),
    *("budget.epochs=null", "data_root='a b','c,d',\"e'f\"", "data_root=a\\,b", "trace=none,full"),
    *("local_learning_rate=${learning_rate},0.3", "optimizer.lr=${local_learning_rate}", "cluster.server.seconds_per_update=1e-4,0.01"),
    *("cluster.nodes=[{count:2,seconds_per_sample:0.1,overhead_seconds:0}],[]", "+optimizer.weight_decay=0.1,0.2", "++budget.updates=3,5"),
    *("++new.key=1,2", "+new={a:1},{b:2}", "~momentum", "cluster.name=${method},x", "learning_rate_schedule={gamma:0.5},null"),
    *("data_root=${dtype},y", "workload.name=x${seed}${.model}", "seed=${threads}", "trust=[mine]"),
    *("threads=int('1')", "batch_size=sort(3,1,2)", "budget={updates:2},{epochs:3}", "cluster.server=null", "method.x=1", "trust=[]"),
    *("nothing=1,2", "dtype=", "pictures=true,False", "data_root=${oc.env:HOME},${hydra:job.num}"),
)
HYDRA = (
    *("hydra.sweep.dir=elsewhere", "hydra.sweep.subdir=${method}", "hydra.job.chdir=true", "hydra/launcher=joblib", "hydra.verbose=true"),
    *("hydra.run.dir=elsewhere", "hydra.run.dir=${method}", "hydra.mode=RUN", "+hydra.run.x=1"),
)


def drawn(chance: random.Random) -> list[list[str]]:
    """The words of the runs of a sweep."""
    words = [*chance.sample(GROUPS, chance.randrange(4)), *chance.sample(VALUES, chance.choice((1, 2, 3, 3, 4)))]
    words.append("hydra.searchpath=[]" if chance.random() < 0.1 else "pictures=false")
    chance.shuffle(words)
    parser = OverridesParser.create(config_loader=Compositions().loader)
    (runs,) = BasicSweeper.split_arguments(parser.parse_overrides([word for word in words if not word.startswith("hydra")]), None)
    added = [word for word in (*words, *chance.sample(HYDRA, chance.randrange(3))) if word.startswith("hydra")]
    return [chance.sample(all_words := [*run, *added], len(all_words)) for run in runs]


def contents(config: DictConfig) -> tuple[Any, ...]:
    """All that there is to a config before it is resolved, with the types of its values and what may be changed in it."""
    flags = [(node._get_flag("struct"), node._get_flag("readonly")) for node in (config, config.hydra, config.budget)]
    return OmegaConf.to_yaml(config), repr(OmegaConf.to_container(config, resolve=False)), flags


def outcome(compose: Callable[[], Any]) -> Any:
    """What this returns, or the text of the error that it raises, and of its cause."""
    try:
        return compose()
    except Exception as error:
        return f"{error!r} {error.__cause__!r}"


@pytest.mark.filterwarnings("ignore:.* does nothing")
@pytest.mark.parametrize("number", [4, pytest.param(300, marks=pytest.mark.long)])
def test_a_run_has_the_config_that_hydra_composes(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Order of the words, additions and deletions, quotes, references, choices of groups: what Hydra composes or refuses.

    The entries of runs that differ in values, and so the identities by which finished runs are known, are those of these configs.
    """
    monkeypatch.chdir(tmp_path)
    chance = random.Random(1)
    quick, hydras = Compositions(), Compositions()
    num_composed = 0
    for _ in range(number):
        runs = drawn(chance)
        for words in chance.sample(runs, min(3, len(runs))):
            os.chdir(chance.choice((tmp_path, tmp_path.parent)))
            expected = outcome(lambda words=words: hydras.by_hydra(words, RunMode.RUN))
            config = outcome(lambda words=words: quick.config(words))
            if isinstance(expected, str):
                assert config == expected, words
                continue
            assert contents(config) == contents(expected), words
            entries = outcome(lambda words=words: quick.entries(words))
            if isinstance(entries, str):
                assert "would do nothing" in entries or entries == outcome(lambda config=expected: resolved_once(without_hydra(config)))
            else:
                assert OmegaConf.to_yaml(entries) == OmegaConf.to_yaml(without_hydra(expected), resolve=True), words
                assert identity_of(resolved(entries)) == identity_of(entries_of(expected)), words
            num_composed += 1
    assert num_composed > number


def test_hydra_composes_each_choice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And OmegaConf resolves one config of those that differ in values."""
    composed: list[list[str]] = []
    resolved: list[DictConfig] = []
    quick = Compositions()
    by_hydra, once = quick.by_hydra, module.resolved_once
    monkeypatch.setattr(quick, "by_hydra", lambda words, mode: (composed.append([*words]), by_hydra(words, mode))[1])
    monkeypatch.setattr(module, "resolved_once", lambda config: (resolved.append(config), once(config))[1])
    for method in ("ssgd", "asgd"):
        for seed in range(5):
            entries = quick.entries(["workload=phantom", f"method={method}", f"seed={seed}", "learning_rate=0.5"])
            assert (entries["method"], entries["seed"], entries["optimizer"]["lr"]) == (method, seed, 0.5)

    assert composed == [["method=ssgd", "workload=phantom"], ["method=asgd", "workload=phantom"]]
    assert len(resolved) == 2


def test_a_run_keeps_its_entries_when_others_are_composed() -> None:
    quick = Compositions()
    words = "workload=phantom cluster.network.latency_seconds={} batch_size={} learning_rate={}"
    first, second = (quick.entries(words.format(value, value, value).split()) for value in (8, 16))

    for entries, value in ((first, 8), (second, 16)):
        assert entries["cluster"]["network"]["latency_seconds"] == entries["batch_size"] == entries["optimizer"]["lr"] == value


def test_a_config_that_is_written_while_a_program_runs_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of hetsim's own, and one of somebody else's."""
    shutil.copytree(configs(), tmp_path / "conf")
    monkeypatch.setattr(module, "configs", lambda: tmp_path / "conf")
    files = {folder: tmp_path / folder / "cluster" / f"mine_in_{folder}.yaml" for folder in ("conf", "others")}
    files["others"].parent.mkdir(parents=True)
    for file in files.values():
        file.write_text("name: 0\n")
    quick = Compositions((str(tmp_path / "others"),))
    for file in files.values():
        for name in (0, 0.25, 0.5):
            file.write_text(f"name: {name}\n")
            os.utime(file, ns=(0, int(1e9 * name)))  # a file system may count whole seconds
            assert quick.entries([f"cluster={file.stem}"])["cluster"]["name"] == name
