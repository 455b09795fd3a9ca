"""The configs of runs are those that Hydra composes, although Hydra composes few of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins import basic_sweeper
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from hetsim.config.guard.compositions import Compositions, Template, compositions, of_own_files, own_config, quickly_composed
from hetsim.config.written_config import entries_of, identity, without_hydra
from hetsim.sweeps import job
from hetsim.sweeps.varied import Varied
from hetsim.trust.shipped import configs

pytestmark = pytest.mark.slow

assert job  # registers the resolvers

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
    *("nothing=1,2", "dtype=", "pictures=true,False"),
)
HYDRA = (
    *("hydra.sweep.dir=elsewhere", "hydra.sweep.subdir=${method}", "hydra.job.chdir=true", "hydra/launcher=joblib", "hydra.verbose=true"),
)


@pytest.fixture(scope="module", autouse=True)
def at_work() -> Iterator[None]:
    """Hydra as the command leaves it."""
    setup_globals()
    JobRuntime.instance().set("name", "hetsim")
    before = HydraConfig.instance().cfg
    yield
    HydraConfig.instance().cfg = before


def drawn(chance: random.Random) -> tuple[list[str], list[list[str]]]:
    """Hydra's own words of a sweep, and the words of each of its runs; none if Hydra cannot list them."""
    words = [
        *chance.sample(GROUPS, chance.randrange(4)), *chance.sample(VALUES, chance.choice((1, 2, 3, 3, 4))),
        "hydra.searchpath=[]" if chance.random() < 0.1 else "pictures=false",
    ]  # fmt: skip
    chance.shuffle(words)
    hydra = [word for word in (*words, *chance.sample(HYDRA, chance.randrange(2))) if word.startswith("hydra")]
    parser = OverridesParser.create(config_loader=ConfigLoaderImpl(create_config_search_path(str(configs()))))
    (runs,) = BasicSweeper.split_arguments(parser.parse_overrides([word for word in words if word not in hydra]), None)
    return hydra, runs


def whole(config: DictConfig) -> tuple[Any, ...]:
    """All that there is to a config before it is resolved, with the types of its values and what may be changed in it."""
    flags = [(node._get_flag("struct"), node._get_flag("readonly")) for node in (config, config.hydra, config.budget)]
    return OmegaConf.to_yaml(config), repr(OmegaConf.to_container(config, resolve=False)), flags


@pytest.mark.parametrize("number", [10, pytest.param(200, marks=pytest.mark.long)])
def test_random_sweeps_give_equal_configs_either_way(number: int) -> None:
    """Order of the overrides, additions and deletions, quotes, references, choices of groups: what Hydra composes or refuses.

    The identities by which finished runs are known are those of these configs.
    """
    chance = random.Random(1)
    num_composed, num_quick, num_known = 0, 0, 0
    for _ in range(number):
        hydra, runs = drawn(chance)
        loader, master = sweep(tuple(hydra))
        first, *others = chance.sample(runs, min(3, len(runs)))
        expected, quick = composed(loader, [*hydra, *first]), quickly_composed(loader, master, first)
        assert quick is None or (expected is not None and whole(quick) == whole(expected)), first
        num_composed, num_quick = num_composed + (expected is not None), num_quick + (quick is not None)
        own = None if quick is None else own_config(loader, master, first, quick)
        if expected is not None and own is not None:
            assert OmegaConf.to_yaml(own) == OmegaConf.to_yaml(without_hydra(expected))
            num_known += num_identities(
                compositions(loader, master), [(typed, quickly_composed(loader, master, typed)) for typed in others]
            )

    assert num_quick > 0.95 * num_composed > number / 3
    assert num_known > number / 5


@cache
def sweep(hydra: tuple[str, ...]) -> tuple[ConfigLoaderImpl, DictConfig]:
    """Hydra's loader, and the config of a sweep in which this was typed for Hydra itself."""
    loader = ConfigLoaderImpl(create_config_search_path(str(configs())))
    return loader, loader.load_configuration("config", [*hydra], RunMode.MULTIRUN)


def composed(loader: ConfigLoaderImpl, words: list[str]) -> DictConfig | None:
    """What Hydra makes of these words; None if it makes nothing of them."""
    try:
        return hydras(loader, "config", words, RunMode.RUN)
    except Exception:
        return None


def hydras(loader: ConfigLoaderImpl, *arguments: Any) -> DictConfig:
    """Hydra's `load_configuration`, without hetsim's share in it."""
    try:
        return loader._load_configuration_impl(*arguments)
    except OmegaConfBaseException as error:
        raise ConfigCompositionException from error


def test_no_value_of_a_run_changes_hydras_part() -> None:
    """Where others' files are composed, which may have made a reference to that part a key. Then Hydra composes it, and it is refused."""
    loader, master = sweep(())
    known = Compositions(loader, "config", [])
    words = known.words(["learning_rate_schedule.params=${hydra.job}", "++learning_rate_schedule.params.env_set.MARK=x"])
    assert words is not None
    with open_dict(master.copy()) as config:
        config.learning_rate_schedule = OmegaConf.structured(basic_sweeper.BasicSweeperConf)

    assert Template.of(config, others=False).config(words).hydra.job.env_set.MARK == "x"
    with pytest.raises(ValueError, match="change what Hydra does"):
        Template.of(config, others=True).config(words)


def test_a_run_gets_the_config_that_was_checked() -> None:
    """Where others' files are composed: a config of its own, made without Hydra's part, must be the same; else Hydra's is taken."""
    loader = ConfigLoaderImpl(create_config_search_path(str(configs())))
    master = loader.load_configuration("config", [], RunMode.MULTIRUN)
    typed = ("data_root=${dtype}",)
    whole_config = composed(loader, [*typed])
    assert whole_config is not None

    assert own_config(loader, master, typed, whole_config) is not None
    with open_dict(whole_config):
        whole_config.trust = ["mine"]
    (known,) = compositions(loader, master).templates.items()
    compositions(loader, master).templates[known[0]] = replace(known[1], others=True)
    assert own_config(loader, master, typed, whole_config) is None


WHERE = (
    "hydra.run.dir=elsewhere",
    "hydra.run.dir=${method}",
    "hydra.sweep.dir=a b",
    "hydra.mode=RUN",
    "hydra.verbose=true",
    "+hydra.run.x=1",
)


@pytest.mark.parametrize("number", [12, pytest.param(200, marks=pytest.mark.long)])
def test_random_single_runs_have_equal_configs_either_way(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same for a program that runs one after the other, in whatever folder it then is."""
    monkeypatch.chdir(tmp_path)
    chance = random.Random(2)
    loader, _ = sweep(())
    num_composed, num_quick = 0, 0
    for _ in range(number):
        _, runs = drawn(chance)
        os.chdir(chance.choice((tmp_path, tmp_path.parent)))
        words = [*chance.choice(runs), *chance.sample(WHERE, chance.randrange(3))]
        chance.shuffle(words)
        expected = whole_or_error(partial(hydras, loader, "config", words, RunMode.RUN))
        quick = whole_or_error(partial(of_own_files, loader, words, partial(hydras, loader)))
        assert quick in (None, expected), words
        num_composed, num_quick = num_composed + isinstance(expected, tuple), num_quick + isinstance(quick, tuple)

    assert num_quick > 0.4 * num_composed > number / 5


def whole_or_error(compose: Callable[[], DictConfig | None]) -> tuple[Any, ...] | str | None:
    """A config as above, or the words of the error that its composition raises, and of what caused it."""
    try:
        config = compose()
    except Exception as error:
        return f"{error!r} {error.__cause__!r}"
    return None if config is None else whole(config)


def test_a_config_of_hetsims_that_is_written_while_a_program_runs_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(configs(), tmp_path / "conf")
    for module in ("compositions", "search_path"):
        monkeypatch.setattr(f"hetsim.config.guard.{module}.configs", lambda: tmp_path / "conf")
    loader = ConfigLoaderImpl(create_config_search_path(str(tmp_path / "conf")))
    compose = partial(hydras, loader)

    def momentum() -> Any:
        config = of_own_files(loader, ["method=mine"], compose)
        return config and config.momentum

    mine = tmp_path / "conf" / "method" / "mine.yaml"
    assert momentum() is None
    for written in (0.25, 0.5):
        mine.write_text(f"# @package _global_\nmomentum: {written}\n")
        os.utime(mine, ns=(0, int(1e9 * written)))  # a file system may count whole seconds
        assert momentum() == written


def num_identities(known: Compositions, runs: Sequence[tuple[Sequence[str], DictConfig | None]]) -> int:
    """Of how many of these runs the identity is known without a config for each; it is that of the config then."""
    varied: dict[Any, Varied] = {}
    found = 0
    for typed, expected in runs:
        words = known.words(typed)
        if words is None or expected is None:
            continue
        key = words.chosen, tuple(override.get_key_element() for override in words.values)
        try:
            if key not in varied:
                varied[key] = Varied(known.template(words), words)
            entries = varied[key].of(words)
        except OmegaConfBaseException:
            continue
        assert entries is None or identity(entries) == identity(entries_of(expected)), typed
        found += entries is not None
    return found
