"""Words of other tools, and misspelt ones, get their hint wherever a key or a choice is unknown."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from hetsim import checks
from hetsim.advice.question import asked
from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.cluster.parse.machines import OF_MACHINE, OF_NODE
from hetsim.config.errors import sentence
from hetsim.config.methods import shipped

NODE = {"count": 2, "seconds_per_sample": 1e-3, "overhead_seconds": 0}
NODES = {"name": "x", "nodes": [NODE], "network": {"bytes_per_second": 1e9, "latency_seconds": 0}, "server": {"seconds_per_update": 0}}
MACHINE = {"seconds_per_sample": 1e-3, "network": 1e9}
GPUS = ("2*t4", "model=resnet50", "network=1e9")

CLUSTERS = {
    "bandwidth": ({**NODES, "nodes": [{**NODE, "bandwidth": 1e9}]}, "cluster.nodes.0.bandwidth is unknown; did you mean 'network'?"),
    "max_batch": ({**NODES, "nodes": [{**NODE, "max_batch": 8}]}, "cluster.nodes.0.max_batch is unknown; did you mean 'max_samples'?"),
    "nework": ({**NODES, "nework": {}}, "cluster.nework is unknown; did you mean 'network'?"),
    "of the network": ({**NODES, "network": {"bandwidth": 1e9}}, "cluster.network.bandwidth is unknown; did you mean 'bytes_per_second'?"),
    "of a server": ({**NODES, "server": {"bandwidth": 1e9}}, "cluster.server.bandwidth is unknown; did you mean 'network'?"),
    "machine": ({"name": "x", "machine": [MACHINE]}, "cluster.machine is unknown; did you mean 'machines'?"),
    "of a machine": ({"name": "x", "machines": [{**MACHINE, "latency": 1}]}, "latency is unknown; did you mean 'latency_seconds'?"),
    "price": ({"name": "x", "machines": [{**MACHINE, "price": 1}]}, "price is unknown; did you mean 'cost_per_hour'?"),
    "gpu": ({"name": "x", "machines": [{"network": 1e9, "gpu": {"count": 2}}]}, "gpu is unknown; did you mean 'gpus'?"),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_key_of_a_cluster_has_its_hint(name: str) -> None:
    """An unknown key is said before a missing one."""
    config: Any = CLUSTERS[name][0]

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_cluster(config)

    assert CLUSTERS[name][1] in str(caught.value)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("method=fedavg",), "did you mean 'local_sgd'?"),
        (("method=allreduce",), "did you mean 'ddp'?"),
        (("method=sync",), "did you mean 'ssgd'?"),
        (("precision=bf16",), "did you mean 'amp'?"),
        (("timng",), "'timng' is not an argument of hetsim; did you mean 'timing'?"),
        (("allreduce",), "'allreduce' is not an argument of hetsim; did you mean 'ddp'?"),
    ],
)
def test_a_word_of_an_advice_has_its_hint(words: tuple[str, ...], hint: str) -> None:
    """Also a word without a key."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        asked([*words, *GPUS], None).check()

    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("2*t4", "model=resnet50", "bandwidth=1e9"), "bandwidth=… is unknown; did you mean 'network'?"),
        (("2*t4", "modle=resnet50", "network=1e9"), "modle=… is unknown; did you mean 'model'?"),
        (("2*t4 model=resnet50", "network=1e9"), "has GPUs and an argument in one word: quote the GPUs alone"),
    ],
)
def test_a_misspelt_argument_is_not_called_missing(words: tuple[str, ...], sentence: str) -> None:
    """Of a question with named GPUs."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        asked(words, None)

    assert sentence in str(caught.value)


def test_no_other_name_is_a_name() -> None:
    """Otherwise the hint would lead away from what was meant. Each name has keys or choices that it stands for."""
    names = {*OF_NODE, *OF_MACHINE, *(method.name for method in shipped())}
    other_names = {word for words in checks.OTHER_NAMES.values() for word in words.split()}

    assert {word for word in other_names if word in names} <= {"speed"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "raise ValueError(\"could not convert string to float: 'oops'\")",
            "(could not convert string to float: 'oops'): unset LIB_INTERVAL",
        ),
        ("raise ValueError('LIB_INTERVAL must be a number')", "(LIB_INTERVAL must be a number): unset LIB_INTERVAL"),
        ("raise ValueError('out of order')", "(out of order): install it again"),
    ],
)
def test_a_library_that_cannot_be_imported_is_named(line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable of the environment that it does not like, such as TQDM_MININTERVAL."""
    (tmp_path / "some_library.py").write_text(f"{line}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LIB_INTERVAL", "oops")

    with pytest.raises(ValueError, match=r"LIB_INTERVAL|oops|out of order") as raised:
        importlib.import_module("some_library")

    assert sentence(raised.value) == f"some_library cannot be imported {said}"
