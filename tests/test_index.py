"""The index of a sweep's folder: the table reads it instead of thousands of files, and never believes it where they differ."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from hetsim.files import run_folders
from hetsim.files.config_file import read_config
from hetsim.files.identity import config_header
from hetsim.files.lock import sole_writer
from hetsim.files.schema import for_tables
from hetsim.results.reading import finished_runs as module
from hetsim.results.reading import index
from hetsim.results.reading.finished_runs import FinishedRun, finished_runs
from hetsim.results.reading.index_columns import schema

SUMMARY: dict[str, Any] = {
    "method": "ssgd", "backend": "sim", "cluster": "mixed4", "workload": "phantom", "num_workers": 4, "seconds": 1.5, "staleness_max": 0,
    "updates_per_second": 2.0, "samples_per_second": 4.0, "staleness_mean": 0.0, "idle_share": None,
    "final": {"train_loss": None, "test_accuracy": 0.5},
}  # fmt: skip
CURVE = "seconds,version,samples,train_loss,test_accuracy\n0.0,0,0,,0.1\n1.5,3,12,inf,0.5\n"


def make(folder: Path, seed: int, *, rate: str = "0.1", more: str = "") -> None:
    """A finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    header = config_header("0" * 12, ["method=ssgd", f"seed={seed}"])
    (folder / "config.yaml").write_text(f"{header}method: ssgd\nseed: {seed}\nlearning_rate: {rate}\nnodes:\n- 1\n- a: 'x'\n{more}")
    (folder / "curve.csv").write_text(CURVE)
    (folder / "summary.json").write_text(json.dumps({**SUMMARY, "seed": seed}))


def plainly(folder: Path) -> list[tuple[Any, ...]]:
    """The runs of a folder as their files say, without an index."""
    return [contents(module._Reader(folder).of_files(place.name)) for place in run_folders.search(folder).places]


def contents(run: FinishedRun) -> tuple[Any, ...]:
    """All that a run says."""
    return run.folder, run.summary, repr(run.config), run.typed, run.points


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve finished runs, of which an index is kept at once."""
    monkeypatch.setattr(module, "LEAST", 3)
    monkeypatch.setattr(run_folders, "SETTLED_SECONDS", -60)
    for seed in range(12):
        make(tmp_path / f"run-{seed}", seed, rate=f"{seed % 2}.5")
    return tmp_path


def read(folder: Path) -> int:
    """How many runs were read from their files, not from the index; all of them say what their files say."""
    of_files = module._Reader.of_files
    names: list[str] = []

    def counted(reader: Any, name: str) -> FinishedRun:
        names.append(name)
        return of_files(reader, name)

    expected = plainly(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Reader, "of_files", counted)
        assert [contents(run) for run in finished_runs(folder)] == expected
    return len(names)


def test_the_second_reading_is_of_the_index(sweep: Path) -> None:
    """Curves included; runs of one config share it."""
    assert [read(sweep), read(sweep)] == [12, 0]

    found = finished_runs(sweep)
    assert (sweep / index.NAME).is_file()
    assert found[0].stored is not None
    assert len({id(run.config) for run in found}) == 2


def test_curves_of_an_index_answer_as_those_of_files(sweep: Path) -> None:
    """Bit by bit, whether or not every run has every number; a goal may be reached at once, between two evaluations, or never."""
    chance = random.Random(0)
    for whole in (True, False):
        for seed in range(12):
            numbers = [
                (0.5 * place, chance.choice((0.1, chance.random(), 0.9)), chance.random()) for place in range(1, chance.randint(2, 9))
            ]
            rows = [f"{seconds},0,0,{loss},{accuracy}" for seconds, accuracy, loss in numbers]
            odd = ["7,0,0,,", "8,0,0,nan,0.3", "9,0,0,inf,"] if seed % 2 and not whole else []
            text = "\n".join([CURVE.split("\n")[0], *([] if seed == 4 and not whole else [*rows[:2], *odd, *rows[2:]])])
            (sweep / f"run-{seed}" / "curve.csv").write_text(text + "\n")
        finished_runs(sweep)
        known = {run.name: run for run in finished_runs(sweep)}
        for name, run in known.items():
            plain = module._Reader(sweep).of_files(name)
            assert run.stored is not None
            assert plain.stored is None
            assert run.highest_accuracy == plain.highest_accuracy
            for goal in (-1.0, 0.1, 0.3, 0.5, 0.9, *(value for point in plain.points for value in point[1:] if value is not None)):
                assert run.time_to(accuracy=goal) == plain.time_to(accuracy=goal)
                assert run.time_to(loss=goal) == plain.time_to(loss=goal)


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda sweep: shutil.rmtree(sweep / "run-3"),
    "added": lambda sweep: make(sweep / "deep" / "er" / "run", 99),
    "within another": lambda sweep: make(sweep / "run-3" / "again", 98),
    "done again": lambda sweep: (shutil.rmtree(sweep / "run-3"), make(sweep / "run-3", 97)),
    "moved": lambda sweep: (sweep / "run-3").rename(sweep / "a"),
    "edited in place, to the same size": lambda sweep: (sweep / "run-3" / "summary.json").write_text(json.dumps({**SUMMARY, "seed": 7})),
    "config edited": lambda sweep: (sweep / "run-3" / "config.yaml").write_text("method: asgd\nseed: 3\n"),
    "curve edited": lambda sweep: (sweep / "run-3" / "curve.csv").write_text(CURVE.replace("0.5", "0.6")),
    "curve lost": lambda sweep: (sweep / "run-3" / "summary.json").touch(),
    "killed on its way": lambda sweep: (sweep / "run-3" / "summary.json").unlink(),
    "swapped": lambda sweep: (
        (sweep / "run-3").rename(sweep / "x"), (sweep / "run-4").rename(sweep / "run-3"), (sweep / "x").rename(sweep / "run-4")
    ),
    "copied with its times": lambda sweep: (
        shutil.copytree(sweep / "run-5", sweep / "y"), shutil.rmtree(sweep / "run-3"), (sweep / "y").rename(sweep / "run-3")
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_files_are_right(change: str, sweep: Path) -> None:
    """Whatever was done to the runs since the index was written."""
    finished_runs(sweep)
    CHANGES[change](sweep)

    read(sweep)


def test_a_file_with_the_time_and_size_of_another_is_another(sweep: Path) -> None:
    """No program can set when a file was last changed."""
    finished_runs(sweep)
    file = sweep / "run-3" / "summary.json"
    before = file.stat()
    file.write_text(json.dumps({**SUMMARY, "seed": 8}))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert file.stat().st_size == before.st_size
    assert read(sweep) == 1


def test_what_may_change_within_the_same_moment_is_not_kept(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems count time in steps."""
    monkeypatch.setattr(run_folders, "SETTLED_SECONDS", 2)

    assert [read(sweep), read(sweep)] == [12, 12]
    assert not (sweep / index.NAME).exists()
    (place, *_) = run_folders.search(sweep).places
    assert run_folders.is_settled(place, begun=datetime.now(UTC) + timedelta(seconds=3))


def test_what_json_would_change_is_not_kept(sweep: Path) -> None:
    """A date, a key that is not text, a number that is none."""
    make(sweep / "odd-1", 1, more="when: 2001-01-01\n")
    make(sweep / "odd-2", 1, more="map:\n  1: x\n")
    make(sweep / "odd-3", 1, more="value: .nan\n")

    assert [read(sweep), read(sweep)] == [15, 2]


def bomb(sweep: Path) -> None:
    """Few bytes that say they are many rows."""
    table = pa.table({name: pa.nulls(10, kind) for name, kind in zip(schema().names, schema().types, strict=True)})
    parquet.write_table(table, sweep / index.NAME)


def crafted(sweep: Path, **columns: Any) -> None:
    """An index of the right form whose rows say something else."""
    there = run_folders.search(sweep).places
    summary = for_tables({**SUMMARY, "seed": 1})
    names, final = ",".join(summary["final"]), list(summary.pop("final").values())
    rows: dict[str, list[Any]] = {
        "folder": [place.name for place in there], "stamp": [place.stamp for place in there],
        **{name: [value] * len(there) for name, value in summary.items()},
        "config": ["{}"] * len(there), "typed": ["{}"] * len(there), "final_names": [names] * len(there), "final": [final] * len(there),
        **{name: [[0.0]] * len(there) for name in ("curve_seconds", "train_loss", "test_accuracy")},
    }  # fmt: skip
    rows |= {name: [value] * len(there) for name, value in columns.items()}
    parquet.write_table(pa.table({name: rows[name] for name in schema().names}, schema=schema()), sweep / index.NAME)


BROKEN: dict[str, Callable[[Path], object]] = {
    "no Parquet": lambda sweep: (sweep / index.NAME).write_bytes(b"x" * 100),
    "empty": lambda sweep: (sweep / index.NAME).write_bytes(b""),
    "cut": lambda sweep: (sweep / index.NAME).write_bytes((sweep / index.NAME).read_bytes()[:-300]),
    "of other columns": lambda sweep: parquet.write_table(pa.table({"folder": ["run-3"]}), sweep / index.NAME),
    "nothing": bomb,
    "a link": lambda sweep: ((sweep / index.NAME).rename(sweep / "other"), (sweep / index.NAME).symlink_to(sweep / "other")),
    "a folder": lambda sweep: ((sweep / index.NAME).unlink(), (sweep / index.NAME).mkdir()),
    "a pipe": lambda sweep: ((sweep / index.NAME).unlink(), os.mkfifo(sweep / index.NAME)),
    "no seed": lambda sweep: crafted(sweep, seed=None),
    "no metrics": lambda sweep: crafted(sweep, final_names="", final=[]),
    "a metric too many": lambda sweep: crafted(sweep, final=[0.5, 0.5, 0.5]),
    "a metric that is no name": lambda sweep: crafted(sweep, final_names="train_loss,a b"),
    "a name of control characters": lambda sweep: crafted(sweep, cluster="\x1b]0;x\a"),
    "no number": lambda sweep: crafted(sweep, samples_per_second=float("nan")),
    "a number too large": lambda sweep: crafted(sweep, samples_per_second=1e200),
    "no JSON": lambda sweep: crafted(sweep, config="{"),
    "nested JSON": lambda sweep: crafted(sweep, config="[" * 100_000),
    "a list for a config": lambda sweep: crafted(sweep, config="[1]"),
    "a list for words": lambda sweep: crafted(sweep, typed="[1]"),
    "numbers for words": lambda sweep: crafted(sweep, typed='{"seed": 1}'),
    "a number that no float can hold": lambda sweep: crafted(sweep, config=json.dumps({"method": 2**2000})),
    "half a curve": lambda sweep: crafted(sweep, train_loss=[]),
    "no curve": lambda sweep: crafted(sweep, curve_seconds=None),
    "no time": lambda sweep: crafted(sweep, curve_seconds=[float("nan")]),
    "a time that is missing": lambda sweep: crafted(sweep, curve_seconds=[None]),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_an_index_that_is_none_is_not_read(what: str, sweep: Path) -> None:
    """It may be a stranger's: the files are read then, and it is written anew where a file can be."""
    finished_runs(sweep)
    BROKEN[what](sweep)

    assert read(sweep) == 12
    assert not (sweep / "other").is_symlink()
    assert (sweep / index.NAME).is_dir() or (read(sweep) == 0 and not (sweep / index.NAME).is_symlink())


def test_one_process_writes_at_a_time(sweep: Path) -> None:
    """The other reads the files, and leaves the index as it is."""
    with sole_writer(sweep) as ours:
        assert ours
        assert read(sweep) == 12
    assert not (sweep / index.NAME).exists()


def test_a_folder_that_cannot_be_written_is_read(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a disk that is full."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_table", full)
    assert read(sweep) == 12
    assert not list(sweep.glob(".index*"))


def test_few_runs_have_no_index(tmp_path: Path) -> None:
    """They are read in no time."""
    make(tmp_path / "run", 0)
    assert len(finished_runs(tmp_path)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "text",
    [
        "method: a\nseed: 3\n", "seed: 3\nnodes:\n- a: 1\n  b: 'x y'\n- {}\n", "a: \"x\nseed: 3\n\"\nseed: 4\n", "seed: 03\n",
        "seed: 3\nseed: 4\n", "seed: 3\nseed: x\n", "a: {b: 1,\nseed: 3\n}\n", "a: |\n  x\nseed: 3\n", "seed: -1\n", "seed: 3 # x\n",
        "seed: 9999999999999999999\n", "'seed': 3\n", "a: x\n  y\nseed: 3\n", "# seed: 1\nseed: 2\n", "a: 1\n? b\nseed: 3\n",
        "a: 2001-01-01\nseed: 1\n", "a: 'x\nseed: 3\n'\n", "a:\n- b\n- 'c''d'\nseed: 5\n", "a: it's\nseed: 1\n",
    ],
)  # fmt: skip
def test_configs_that_share_all_but_the_seed_are_read_once(text: str, tmp_path: Path) -> None:
    """And are as if each had been read by itself."""
    import yaml

    (tmp_path / "config.yaml").write_text("seed: 1234\n")
    read_config(tmp_path)
    for seed in ("3", "8"):
        (tmp_path / "config.yaml").write_text(text.replace("seed: 3", f"seed: {seed}"))
        try:
            expected = yaml.safe_load((tmp_path / "config.yaml").read_text())
        except yaml.YAMLError:
            with pytest.raises(ValueError, match=f"{tmp_path}/config.yaml.* cannot be read as YAML"):
                read_config(tmp_path)
        else:
            assert read_config(tmp_path) == expected
