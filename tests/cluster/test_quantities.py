"""Quantities with units: exact, of the kind that their key holds, and the same run as in SI units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_runs import world
from worlds import node

from hetsim.cluster.parse.cluster import parse_cluster
from hetsim.cluster.quantities import BYTES, COUNT, KINDS, RATE, SECONDS, SECONDS_PER_BYTE, convert_to_si, kind_of
from hetsim.config.compose import composed
from hetsim.config.resolved import resolved
from hetsim.files.identity import identity_of

READ = {
    "cluster.network.bytes_per_second": {
        "10 Gbit/s": 1.25e9,
        "10Gbit/s": 1.25e9,
        "10 Gbps": 1.25e9,
        "10 gbit/s": 1.25e9,
        "10 GBit/s": 1.25e9,
        "100 mbps": 12.5e6,
        "8 KBIT/s": 1000.0,
        "1.25 GB/s": 1.25e9,
        "1 GiB/s": 2.0**30,
        "100 Mbit/s": 12.5e6,
        "8 kbit/s": 1000.0,
        "8 Kibit/s": 1024.0,
        "300 B/s": 300.0,
    },
    "cluster.network.latency_seconds": {
        "200 ms": 0.2,
        "50us": 50e-6,
        "50 µs": 50e-6,
        "0.3ms": 0.3e-3,
        "20 ns": 20e-9,
        "5 min": 300.0,
        "1.5 h": 5400.0,
        "2 d": 172800.0,
        "1e-3 s": 0.001,
    },
    "cluster.server.seconds_per_byte": {"0.1 ns/B": 1e-10, "1 ms/MB": 1e-9},
    "workload.num_parameters": {
        "25.6 M": 25_600_000,
        "25.6M": 25_600_000,
        "7B": 7_000_000_000,
        "60 k": 60_000,
        "60K": 60_000,
        "1_000 k": 1_000_000,
    },
    "coordination.bucket_bytes": {"25 MB": 25_000_000, "64 GiB": 64 * 2**30, "8 bit": 1},
}


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in READ.items() for text in texts])
def test_a_quantity_is_the_number_in_si_units(key: str, text: str) -> None:
    """To the last bit: as if the number had been typed."""
    group, _, rest = key.partition(".")
    value = READ[key][text]

    assert convert_to_si({group: {rest: text}}) == {group: {rest: value}}
    assert type(convert_to_si({key: text})[key]) is type(value)


REFUSED = {
    "cluster.network.bytes_per_second": "bytes per second, such as 1.25 GB/s or 10 Gbit/s",
    "cluster.server.seconds_per_byte": "seconds per byte, such as 0.1 ns/B",
    "budget.seconds": "seconds, such as 200 ms or 5 min",
    "coordination.bucket_bytes": "bytes, such as 25 MB or 64 GiB",
    "batch_size": "a number, such as 60000, 25.6 M or 7 B",
}
BAD = (
    "10 Gb/s",
    "10 Gb",
    "10 parsec",
    "fast",
    "10",
    "1e999999999 s",
    "1 s" + " " * 1000,
    "${ms",
    "10 KB",
    "-",
    "ms",
    "1.2.3 ms",
)


@pytest.mark.parametrize(("key", "expected"), REFUSED.items())
@pytest.mark.parametrize("text", BAD)
def test_a_text_that_is_no_quantity_is_refused_with_the_unit_that_is_expected(key: str, expected: str, text: str) -> None:
    """A lower-case b is nobody's byte for sure, and nobody's bit."""
    with pytest.raises(ValueError, match="must be") as refused:
        convert_to_si({key: text.replace("${", "")})

    assert str(refused.value).startswith(f"{key} must be {expected}, not ")
    assert len(str(refused.value)) < 400


HINTS = {
    # a key and what is typed: how the sentence ends
    ("bytes_per_second", "1 Gb/s"): ": b may be bits or bytes, so write 1 Gbit/s or 1 GB/s",
    ("bytes_per_second", "10 gb"): ": b may be bits or bytes, so write 10 Gbit/s or 10 GB/s",
    ("bytes_per_second", "10 GbE"): ": write 10 Gbit/s",
    ("bytes_per_second", "1Gbit"): ": write 1 Gbit/s",
    ("bytes_per_second", "10 GBps"): ": write 10 GB/s",
    ("bytes_per_second", "10 KB/s"): ": write 10 kB/s",
    ("bucket_bytes", "25 mb"): ": b may be bits or bytes, so write 25 Mbit or 25 MB",
    ("seconds_per_sample", "400 images/s"): ": 400 samples/s are 2.5 ms",
    ("seconds_per_sample", "400/s"): ": 400 samples/s are 2.5 ms",
    ("seconds_per_sample", "400 img/sec"): ": 400 samples/s are 2.5 ms",
    ("seconds_per_sample", "0/s"): ", not '0/s'",
    ("seconds_per_sample", "10 GB/s"): ", not '10 GB/s'",
    ("latency_seconds", "400/s"): ", not '400/s'",
}


@pytest.mark.parametrize(("key", "text"), HINTS)
def test_a_text_that_resembles_a_quantity_is_refused_with_what_to_type(key: str, text: str) -> None:
    with pytest.raises(ValueError, match="must be") as refused:
        convert_to_si({key: text})

    assert str(refused.value).endswith(HINTS[key, text])
    assert len(str(refused.value).split()) <= 30


@pytest.mark.parametrize("own", KINDS.values())
@pytest.mark.parametrize("other", KINDS.values())
def test_a_quantity_of_another_kind_is_refused(own: Any, other: Any) -> None:
    """10 ms are no rate. Only B is a unit of two kinds, bytes and billions."""
    for unit in {*other.units} - {*own.units}:
        with pytest.raises(ValueError, match=f"key must be {own.expected}, not '8 {unit}'"):
            own.read("key", f"8 {unit}")
    assert {*own.units} & {*other.units} <= ({*own.units} if own is other else {"B"} | ({"MB", "GB"} & {*BYTES.units}))


def test_half_a_parameter_is_none() -> None:
    with pytest.raises(ValueError, match=r"workload.num_parameters must be a whole number, and 1\.00005 k is 1000\.05"):
        convert_to_si({"workload": {"num_parameters": "1.00005 k"}})


def test_keys_hold_what_their_names_say() -> None:
    """At any depth, and in an own class too."""
    kinds = {
        RATE: ("cluster.nodes.0.uplink_bytes_per_second", "cluster.network.racks.a.downlink_bytes_per_second"),
        SECONDS: (
            "budget.seconds",
            "cluster.nodes.2.seconds_per_sample",
            "backend.lost_after_seconds",
            "cluster.faults.schedule.1.repair",
        ),
        SECONDS_PER_BYTE: ("cluster.network.cpu.send_seconds_per_byte",),
        BYTES: ("coordination.bucket_bytes",),
        COUNT: ("batch_size", "cluster.nodes.0.max_samples", "budget.updates", "workload.num_samples", "checkpoint.every_updates"),
        None: (
            "method",
            "cluster.name",
            "cluster.nodes.0.rack",
            "backend.emulate",
            "workload.path",
            "cluster.nodes.0.slowdown",
            "budget",
        ),
    }

    assert {key: kind_of(key) for keys in kinds.values() for key in keys} == {key: kind for kind, keys in kinds.items() for key in keys}


def test_units_are_read_in_distributions_and_tables_and_nowhere_in_what_is_not_hetsims() -> None:
    """A distribution's loc and scale are of the kind of its key; shapes and factors have no unit."""
    table = {"table": [["1", 1]], "all_reduce_table": [["1 MB", "2 ms"], [2_000_000, 0.003]]}
    drawn = {"jitter_seconds": {"distribution": "expon", "scale": "5 us"}, "noise": {"distribution": "gamma", "a": 4, "scale": "5 us"}}
    opaque = {
        "workload": {"options": {"num_layers": "all"}},
        "optimizer": {"seconds": "x"},
        "batch_size": "${seed}",
        "budget": {"seconds": "???"},
    }

    assert convert_to_si({"all_reduce_table": table["all_reduce_table"]}) == {"all_reduce_table": [[1_000_000, 0.002], [2_000_000, 0.003]]}
    assert convert_to_si(drawn) == {**drawn, "jitter_seconds": {"distribution": "expon", "scale": 5e-6}}
    assert convert_to_si(opaque) == opaque
    with pytest.raises(ValueError, match=r"table\.0\.0 must be a number, such as"):
        convert_to_si(table)


def test_a_cluster_with_units_is_the_cluster_in_si_units() -> None:
    """Built from a mapping, without a command."""
    with_units = world(
        node("1 ms", "2 ms", uplink_bytes_per_second="1 Gbit/s", max_samples="2 k"),  # type: ignore[arg-type]
        network={"latency_seconds": "20 us", "bytes_per_second": "10 Gbit/s", "jitter_seconds": {"distribution": "expon", "scale": "5 us"}},
        server={"seconds_per_update": "1 ms", "seconds_per_byte": "0.1 ns/B"},
        faults={"detection_seconds": "500 ms", "schedule": [{"nodes": [0], "crash": "1 min", "repair": "1 h"}]},
    )
    plain = world(
        node(1e-3, 2e-3, uplink_bytes_per_second=125e6, max_samples=2000),
        network={"latency_seconds": 20e-6, "bytes_per_second": 1.25e9, "jitter_seconds": {"distribution": "expon", "scale": 5e-6}},
        server={"seconds_per_update": 1e-3, "seconds_per_byte": 1e-10},
        faults={"detection_seconds": 0.5, "schedule": [{"nodes": [0], "crash": 60, "repair": 3600}]},
    )

    assert parse_cluster(with_units) == parse_cluster(plain)


SPELLED = ("10 Gbit/s", "10Gbit/s", "'10 Gbit/s'", "1.25 GB/s", "1.25e9", "1250.0e6")


def test_however_a_quantity_is_typed_it_is_the_same_run() -> None:
    """With and without quotes, with and without a space: one identity, and one written config."""
    made = [composed([f"cluster.network.bytes_per_second={text}"], folder=".") for text in SPELLED]

    assert len({config.identity for config in made}) == 1
    assert [config.entries["cluster"]["network"]["bytes_per_second"] for config in made] == [1.25e9] * len(SPELLED)


def test_an_identity_of_what_cannot_be_read_is_none_of_another_run() -> None:
    """A sweep names its folders before a run refuses its config."""
    entries = {"batch_size": "ten", "cluster": {"name": "a", "network": {"bytes_per_second": "10 Gbit/s"}}}

    assert resolved(entries)["batch_size"] == "ten"
    assert identity_of(entries) != identity_of({**entries, "batch_size": "eleven"})


def test_every_run_of_a_sweep_may_have_its_unit(tmp_path: Path) -> None:
    """The table shows what was typed."""
    import hetsim

    table = hetsim.sweep(
        {
            "method": "ssgd",
            "workload": "phantom",
            "budget.updates": 2,
            "budget.seconds": "1 h",
            "pictures": False,
            "cluster.network.bytes_per_second": ["10 Gbit/s", "100Mbit/s", 1e9],
        },
        folder=tmp_path,
    )

    shown = str(table)
    assert all(text in shown for text in ("10 Gbit/s", "100Mbit/s", "1000000000"))
    assert "'" not in shown.split("\n\n")[0]
