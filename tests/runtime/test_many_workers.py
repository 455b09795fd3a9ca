"""Laws of the files of a run of very many workers, here of more than three."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

import hetsim
from hetsim.results.writing.workers import PARTS, quantiles

WORDS = ("workload=digits", "cluster=mixed4", "budget.epochs=null", "budget.updates=4", "pictures=false", "trace=full")


@pytest.mark.slow
@pytest.mark.parametrize("choices", [("method=hetgrad",), ("method=asgd", "data=owned", "partition=even")], ids=["shared", "owned"])
def test_what_each_of_very_many_workers_did_is_in_a_file_and_the_summary_has_quantiles(
    choices: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The numbers are the same, nothing else in the summary changes, and what reads runs reads this one."""
    few = hetsim.run(*WORDS, *choices, folder=tmp_path / "few").summary
    monkeypatch.setattr("hetsim.results.writing.summary.MAX_LISTED", 3)
    run = hetsim.run(*WORDS, *choices, folder=tmp_path / "many")
    many, rows = run.summary, parquet.read_table(run.folder / "per_worker.parquet").to_pylist()

    moved = {"per_worker", "batch_sizes", "weight_shares", "pools"}
    assert {key for key in many if many[key] != few[key]} - {"wall_seconds"} == moved - ({"pools"} if few["pools"] is None else set())
    assert [{name: row[name] for name in few["per_worker"][0]} for row in rows] == few["per_worker"]
    assert [row["batch_size"] for row in rows] == few["batch_sizes"]
    assert [row["weight_share"] for row in rows] == few["weight_shares"]
    assert [row["pool_epochs"] for row in rows if "pool_epochs" in row] == [pool["epochs"] for pool in few["pools"] or ()]
    assert many["per_worker"]["samples"] == quantiles(row["samples"] for row in rows)
    assert many["batch_sizes"]["max"] == max(few["batch_sizes"])
    assert not (tmp_path / "few" / "per_worker.parquet").exists()
    loaded = hetsim.load(run.folder)
    assert loaded.summary == json.loads((run.folder / "summary.json").read_text()) == many
    assert f"batch sizes {min(few['batch_sizes'])} to {max(few['batch_sizes'])}" in repr(loaded)
    assert len(list(hetsim.table(tmp_path))) == 1
    assert hetsim.compare(tmp_path / "few", run).rows


def test_quantiles_are_values_that_occur():
    assert quantiles([3, None, 1, 2]) == {"min": 1, "p5": 1, "p25": 1, "p50": 2, "p75": 3, "p95": 3, "max": 3}
    assert quantiles([None]) == dict.fromkeys(PARTS)
