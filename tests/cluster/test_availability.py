"""Nodes that are there when a file says so."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from cluster_runs import timed, world
from worlds import node

from hetsim.cluster.model import Cluster
from hetsim.cluster.parse.cluster import parse_cluster


def counts(folder: Path, *data: Any, gap: Any = 10) -> str:
    """The name of a file with these numbers of nodes."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": [*data]}))
    return str(path)


def pairs(folder: Path, *rows: str, head: str = "node,start,stop") -> str:
    """The name of a file with these rows."""
    path = folder / "trace.csv"
    path.write_text("\n".join([head, *rows]))
    return str(path)


def described(file: str, nodes: int = 3, **faults: Any) -> Cluster:
    return parse_cluster(world(node(1.0, count=nodes), faults={"file": file, **faults}))


def absent(cluster: Cluster) -> dict[int, tuple[tuple[float, float], ...]]:
    return {rank: outages.scheduled for rank, outages in cluster.faults.nodes.items()}


def test_so_many_nodes_are_there_every_so_many_seconds(tmp_path: Path) -> None:
    """Those of the lowest ranks, and at the end the last number holds. Numbers that stay are no event."""
    assert absent(described(counts(tmp_path, 0, 0, 3, 2, 2, 3, 1))) == {
        0: ((0, 20),),
        1: ((0, 20), (60, inf)),
        2: ((0, 20), (30, 50), (60, inf)),
    }
    assert absent(described(counts(tmp_path, 3, 3))) == {}
    assert absent(described(counts(tmp_path, 3, 1, 3, gap=0.5))) == {1: ((0.5, 1),), 2: ((0.5, 1),)}


def test_each_node_is_there_from_its_starts_to_its_stops(tmp_path: Path) -> None:
    """From the earliest start on. What touches or overlaps is one time; without a stop it lasts to the end."""
    file = pairs(
        tmp_path,
        *("0,1700000000,1700000010", "0,1700000010,1700000020", "0,1700000015,1700000030", "0,1700000050,1700000060"),
        *("1,1700000040,", "1,1700000020,1700000020", ""),
    )

    assert absent(described(file)) == {0: ((30, 50), (60, inf)), 1: ((0, 40),)}


def test_a_schedule_goes_with_a_file(tmp_path: Path) -> None:
    """As long as no node is to go twice at a time."""
    file = counts(tmp_path, 3, 2, 3, 3)

    assert absent(described(file, schedule=[{"nodes": [2], "crash": 25, "repair": 26}])) == {2: ((10, 20), (25, 26))}
    with pytest.raises(ValueError, match=r"node 2 is to go at 15 s, but is not there until 20 s"):
        described(file, schedule=[{"nodes": [2], "crash": 15}])


def test_a_server_works_with_the_nodes_that_are_there(tmp_path: Path) -> None:
    """One from 0 to 10 s, two from then on: two updates a second with two nodes of a second a sample."""
    workers = world(node(1.0, count=2), faults={"file": counts(tmp_path, 1, 2)})

    run = timed("asgd", workers=workers, updates=30, batch_size=2)

    assert run.seconds[:10] == [*map(float, range(1, 11))]
    assert run.seconds[-1] == 20.0


HEAD = "node,start,stop\n"
BROKEN: dict[str, tuple[Any, str | None, str]] = {
    "no such file": ("a.json", None, "No such file"),
    "a folder": (".", None, "it is not a regular file"),
    "a number": (3, None, "must be the name of a file, .json or .csv, not 3"),
    "no JSON": ("a.json", "{", "it cannot be parsed"),
    "deep": ("a.json", "[" * 100_000, "it cannot be parsed"),
    "a list": ("a.json", "[1]", "its data is not a list of numbers of nodes"),
    "no counts": ("a.json", '{"metadata": {"gap_seconds": 1}, "data": []}', "its data is not a list"),
    "half a node": ("a.json", '{"metadata": {"gap_seconds": 1}, "data": [1.5]}', "its data is not a list"),
    "less than none": ("a.json", '{"metadata": {"gap_seconds": 1}, "data": [-1]}', "its data is not a list"),
    "too many": ("a.json", '{"metadata": {"gap_seconds": 1}, "data": [4]}', "it counts more nodes than the 3 of this cluster"),
    "no gap": ("a.json", '{"metadata": {"gap_seconds": 0}, "data": [1]}', "its metadata.gap_seconds is not a number of seconds"),
    "no metadata": ("a.json", '{"data": [1]}', "its metadata.gap_seconds is not a number of seconds"),
    "another head": ("a.csv", "rank,start,stop\n0,1,2", "its first line is not node,start,stop"),
    "no rows": ("a.csv", HEAD, "it has no rows"),
    "another node": ("a.csv", f"{HEAD}3,0,1", "the node of its line 2 is none of the 3 of this cluster, counted from 0"),
    "words": ("a.csv", f"{HEAD}0,0,secret", "its line 2 is not a node and two moments in seconds"),
    "two columns": ("a.csv", f"{HEAD}0,0", "its line 2 is not a node and two moments in seconds"),
    "backwards": ("a.csv", f"{HEAD}0,2,1", "its line 2 stops before it starts"),
    "no moment": ("a.csv", f"{HEAD}0,nan,1", "its line 2 stops before it starts"),
    "no text": ("a.csv", "\udcff", "it cannot be parsed"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_file_that_cannot_be_read_is_one_sentence(problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It quotes nothing of the file."""
    name, text, said = BROKEN[problem]
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(ValueError, match=r"^cluster\.faults\.file[^\n]*$") as refused:
        described(name)

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)
