"""The configs of the tests' small worlds are those that Hydra composes, although Hydra composes few of them."""

from __future__ import annotations

import pytest
import yaml
from omegaconf import OmegaConf
from worlds import by_hydra, composed, is_entry

from hetsim.trust.shipped import configs

GROUPS = sorted({path.parent.name for path in configs().glob("*/*.yaml")} - {"method", "experiment"})


@pytest.mark.parametrize(
    "choices",
    [
        ("method=ssgd", "allocation=dbs", "workload=quadratic", "weighting=per_sample"),
        ("workload=phantom", "method=diloco", "local_optimizer=sgd", "optimizer=adam", "cluster=two_racks", "partition=even", "data=owned"),
        ("method=asgd", "coordination=parameter_server", "admission=ssp", "discount=hinge", "compensation=dc", "compression=two_bit"),
        ("method=halos", "workload=quadratic", "optimizer=sgd"),
        ("experiment=halos_16", "workload=quadratic"),
        ("backend=dist", "regional_optimizer=sgd"),
        ("workload=phantom", "workload.num_parameters=7", "method=ssp", "seed=3"),
    ],
    ids=" ".join,
)
def test_a_composed_config_is_hydra_s(choices: tuple[str, ...]) -> None:
    """Key by key, references unresolved, and as strict about keys that it does not have."""
    ours, theirs = composed(*choices), by_hydra(*choices)

    assert OmegaConf.to_container(ours, resolve=False) == OmegaConf.to_container(theirs, resolve=False)
    assert OmegaConf.is_struct(ours)


def test_no_method_sets_a_key_in_a_group_s_entry() -> None:
    """But for HALoS, which Hydra composes as a whole. And no choice of a group reaches beyond its entry."""
    methods = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (configs() / "method").glob("*.yaml")}
    files = [path for group in GROUPS for path in (configs() / group).glob("*.yaml")]

    assert {name for name, keys in methods.items() if {*keys} & {*GROUPS}} == {"halos"}
    assert not [path for path in files if "@package" in (text := path.read_text(encoding="utf-8")) or "\ndefaults:" in f"\n{text}"]
    assert all(is_entry(f"{path.parent.name}={path.stem}") for path in files)
    assert not is_entry("method=ssgd")
