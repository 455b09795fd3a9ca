"""Commands on folders whose files are damaged, or made to do harm: one sentence that names the file.

A run that is given is refused. One of several below a folder is skipped.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from pyarrow import parquet
from worlds import exit_status

import hetsim
from hetsim import memory
from hetsim.cli.calibrate import main as calibrate_main
from hetsim.cli.compare import main as compare_main
from hetsim.cli.report import main as report_main
from hetsim.cli.stragglers import main as stragglers_main
from hetsim.cli.table import main as table_main
from hetsim.files.identity import config_header, finished_summary
from hetsim.files.reading import REMEDY, open_file
from hetsim.results.reading.intervals import read_trace
from hetsim.runtime.recording.recorder import GRADIENT, MESSAGE, UPDATE
from hetsim.runtime.recording.trace import as_table

SUMMARY: dict[str, Any] = {
    "method": "ssgd",
    "backend": "sim",
    "cluster": "two",
    "workload": "digits",
    "seed": 0,
    "num_workers": 2,
    "num_updates": 1,
    "num_samples": 8,
    "num_samples_discarded": 0,
    "num_samples_in_flight": 0,
    "seconds": 2.0,
    "profile_seconds": 0.0,
    "updates_per_second": 0.5,
    "samples_per_second": 4.0,
    "staleness_mean": 0.0,
    "staleness_max": 0,
    "idle_share": 0.25,
    "batch_sizes": [4, 4],
    "final": {"train_loss": 0.5, "test_accuracy": 0.95},
    "per_worker": [{"rank": 0}, {"rank": 1}],
    "wall_seconds": 0.1,
    "emulation": None,
    "warnings": [],
}
CURVE = "seconds,version,samples,train_loss,test_accuracy\n0.0,0,0,2.5,0.1\n2.0,1,8,0.5,0.95\n"
CONFIG = config_header("0123456789ab", ["method=ssgd"]) + "method: ssgd\nseed: 0\ncluster: {name: two}\n"
ROWS = [(0.0, 1.0, 0, GRADIENT, 0, 4, 0, 0), (0.0, 2.0, 1, GRADIENT, 0, 4, 0, 0), (2.0, 2.0, 2, UPDATE, 0, 8, 0, 0)]
TRACE = as_table([number for row in ROWS for number in row])


def finished_run(folder: Path, **changes: Any) -> Path:
    """The folder of a run, with these changes of its summary."""
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({**SUMMARY, **changes}))
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "curve.csv").write_text(CURVE)
    parquet.write_table(TRACE, folder / "trace.parquet")
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """The folder of a sweep with two runs, `good` and `run`."""
    (tmp_path / "sweep").mkdir()
    for seed, name in enumerate(("good", "run")):
        finished_run(tmp_path / "sweep" / name, seed=seed)
    return tmp_path / "sweep"


@pytest.fixture
def told(sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """What a command that is given the sweep's runs says of the broken one on standard error.

    It ends with status 1 and prints nothing else, or skips that run.
    """

    def tell(command: str) -> str:
        status = asked(command, sweep, monkeypatch)
        printed = capsys.readouterr()
        prefix = f"{command.partition(',')[0]}: {'skipped' if command in SKIP else 'error'}: "
        lines = [line for line in printed.err.splitlines() if command not in SKIP or line.startswith(prefix)]
        assert len(lines) == 1
        assert len(lines[0]) < 700
        assert lines[0].startswith(prefix)
        assert (status, bool(printed.out)) == ((0, True) if command in SKIP else (1, False))
        return lines[0].removeprefix(prefix)

    return tell


def asked(command: str, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit status of one of the commands."""
    if command == "hetsim-table":
        return exit_status(monkeypatch, command, table_main, sweep, "--to", sweep.parent / "table")
    if command == "hetsim-compare, repeats":
        return exit_status(monkeypatch, command, compare_main, sweep / "good", sweep)
    pictures = ("--pictures", sweep.parent / "pictures")
    return exit_status(monkeypatch, command, compare_main, sweep / "good", sweep / "run", *pictures)


COMMANDS = ("hetsim-compare", "hetsim-compare, repeats", "hetsim-table")
SKIP = COMMANDS[1:]
each = pytest.mark.parametrize("command", [*(pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS[:2]), COMMANDS[2]])


@each
def test_runs_as_hetsim_writes_them_are_read(
    command: str, sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the refusals below would be of nothing."""
    assert asked(command, sweep, monkeypatch) == 0
    told = capsys.readouterr().err
    assert "error" not in told
    assert "skipped" not in told


OR_NULL = "a number of at most 1e+150, or null"
AMOUNT, AMOUNT_OR_NULL = "a number from 0 to 1e+150", "a number from 0 to 1e+150, or null"
ENTRIES: dict[str, tuple[str, str]] = {
    # what summary.json has, in place of the entry of that name: what the sentence says of it
    '"updates_per_second": "fast"': (f"updates_per_second must be {AMOUNT_OR_NULL}", "'fast'"),
    '"samples_per_second": [1]': (f"samples_per_second must be {AMOUNT_OR_NULL}", "[1]"),
    '"staleness_mean": true': (f"staleness_mean must be {AMOUNT_OR_NULL}", "True"),
    '"idle_share": NaN': (f"idle_share must be {OR_NULL}", "nan"),
    '"idle_share": 1e999': (f"idle_share must be {OR_NULL}", "inf"),
    '"seconds": 1e200': (f"seconds must be {AMOUNT_OR_NULL}", "1e+200"),
    f'"seconds": 1{"0" * 400}': (f"seconds must be {AMOUNT_OR_NULL}", "100000000000000000...0000000000000000000"),
    '"staleness_max": {}': (f"staleness_max must be {AMOUNT_OR_NULL}", "{}"),
    **{f'"{name}": -5': (f"{name} must be {AMOUNT_OR_NULL}", "-5") for name in ("seconds", "samples_per_second", "staleness_mean")},
    '"num_samples": -1': (f"num_samples must be {AMOUNT}", "-1"),
    '"num_updates": null': (f"num_updates must be {AMOUNT}", "None"),
    '"final": []': ("final must be a mapping", "[]"),
    '"final": null': ("final must be a mapping", "None"),
    '"final": {"train_loss": "low", "test_accuracy": 0}': (f"final.train_loss must be {OR_NULL}", "'low'"),
    '"final": {"train_loss": 0, "test_accuracy": [[]]}': (f"final.test_accuracy must be {OR_NULL}", "[[]]"),
    '"warnings": 3': ("warnings must be a list of texts", "3"),
    '"warnings": "none"': ("warnings must be a list of texts", "'none'"),
    '"warnings": [null]': ("warnings must be a list of texts", "[None]"),
    '"per_worker": {"0": 1}': ("per_worker must be a list of mappings, or quantiles by name", "{'0': 1}"),
    '"per_worker": {"samples": {"min": 1}}': ("per_worker must be a list of mappings, or quantiles by name", "{'samples': {'min': 1}}"),
    '"per_worker": [1]': ("per_worker must be a list of mappings, or quantiles by name", "[1]"),
    '"batch_sizes": ["a"]': ("batch_sizes must be a list of numbers, or quantiles", "['a']"),
    '"batch_sizes": {"min": 1, "max": "a"}': ("batch_sizes must be a list of numbers, or quantiles", "{'max': 'a', 'min': 1}"),
    '"emulation": "pad"': ("emulation must be a mapping, or null", "'pad'"),
    '"backend": ["sim"]': ("backend must be a text of at most 1000 printable letters", "['sim']"),
    '"method": null': ("method must be a text of at most 1000 printable letters", "None"),
    '"cluster": "\\ud800"': ("cluster must be a text of at most 1000 printable letters", r"'\ud800'"),
    '"workload": "\\u001b[2J"': ("workload must be a text of at most 1000 printable letters", r"'\x1b[2J'"),
    f'"method": "{"x" * 2000}"': ("method must be a text of at most 1000 printable letters", "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    '"seed": 0.5': ("seed must be a whole number", "0.5"),
    '"num_workers": 0': ("num_workers must be a whole number above 0", "0"),
}


@each
@pytest.mark.parametrize("written", ENTRIES)
@pytest.mark.sampled(20)
def test_an_entry_of_another_kind_is_one_sentence(command: str, written: str, sweep: Path, told: Callable[[str], str]) -> None:
    """With the file, the key, what it must be and what it is, in bounded length."""
    path = sweep / "run" / "summary.json"
    path.write_text(f"{path.read_text()[:-1]}, {written}}}")  # the last of two entries counts
    must, value = ENTRIES[written]

    assert told(command) == f"{path}: {must}, not {value}: {REMEDY}"


MANY = 200_000
CONTENTS: dict[str, tuple[str, bytes, str]] = {
    # the file, its contents, the sentence after the file's path
    "summary.json: nothing": ("summary.json", b"", " is no JSON (Expecting value: line 1 column 1 (char 0))"),
    "summary.json: cut off": ("summary.json", b'{"seed": ', " is no JSON (Expecting value: line 1 column 10 (char 9))"),
    "summary.json: nested lists": ("summary.json", b"[" * MANY, " is not JSON of a run, as it is nested too deeply"),
    "summary.json: nested mappings": ("summary.json", b'{"final":' * MANY, " is not JSON of a run, as it is nested too deeply"),
    "summary.json: a list": ("summary.json", b"[1, 2]", " must hold a mapping, not [1, 2]"),
    "summary.json: null": ("summary.json", b"null", " must hold a mapping, not None"),
    "summary.json: no text": ("summary.json", b"\xff\xfe{}", " is not text (invalid start byte at byte 0)"),
    "config.yaml: nothing": ("config.yaml", b"", " must hold a mapping, not None"),
    "config.yaml: a list": ("config.yaml", b"[method, ssgd]", " must hold a mapping, not ['method', 'ssgd']"),
    "config.yaml: a command": (
        "config.yaml",
        b"method: !!python/object/apply:os.system ['touch harm']",
        ", line 1, column 9 cannot be read as YAML (could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.system')",
    ),
    "config.yaml: no YAML": (
        "config.yaml",
        b"method: [ssgd\nseed: 0\n",
        ", line 2, column 5 cannot be read as YAML (did not find expected ',' or ']')",
    ),
    "config.yaml: no text": ("config.yaml", b"method: \xff", " is not text (invalid start byte at byte 8)"),
    "config.yaml: a tag that does not fit": ("config.yaml", b"seed: !!int ''", " cannot be read as YAML (string index out of range)"),
    "config.yaml: no date": ("config.yaml", b"seed: 2001-99-99", " cannot be read as YAML (month must be in 1..12)"),
    "config.yaml: laughs": (
        "config.yaml",
        b"\n".join([b"a: &a [" + b"ha," * 10 + b"]", *(b"%c: &%c [%s]" % (n + 1, n + 1, b"*%c," % n * 10) for n in range(97, 117))]),
        " has an alias, *a, in line 2, where the value itself belongs",
    ),
    "config.yaml: a circle": ("config.yaml", b"a: &a [*a]", " has an alias, *a, in line 1, where the value itself belongs"),
    "config.yaml: nested lists": ("config.yaml", b"a: " + b"[" * 900, " is nested more than 50 deep"),
    "config.yaml: nested items": ("config.yaml", b"- " * MANY, " is nested more than 50 deep"),
    "config.yaml: a number in sixties": (
        "config.yaml",
        b"a: 1" + b":59" * MANY,
        " has an unquoted or tagged text of 600001 letters in line 1",
    ),
    "config.yaml: a tagged number in sixties": (
        "config.yaml",
        b"a: !!int '1" + b":59" * MANY + b"'",
        " has an unquoted or tagged text of 600001 letters in line 1",
    ),
    "config.yaml: keys with equal hashes": (
        "config.yaml",
        b"a: {" + b", ".join(b"%d: 0" % ((2**61 - 1) * number) for number in range(10, 300)) + b"}",
        " has more than 100 numbers of twenty digits and more",
    ),
    "config.yaml: a number beyond all floats": (
        "config.yaml",
        b"a: [0x1" + b"0" * 1000 + b"]",
        " holds a whole number of 4001 bits, which no float can hold",
    ),
    "curve.csv: nothing": ("curve.csv", b"", " lacks seconds, train_loss, test_accuracy"),
    "curve.csv: a column less": ("curve.csv", b"seconds,train_loss\n0.0,1\n", " lacks test_accuracy"),
    "curve.csv: text": (
        "curve.csv",
        CURVE.replace("2.5", "low").encode(),
        ", line 2: train_loss must be a number, not 'low'",
    ),
    "curve.csv: cut off": ("curve.csv", CURVE[:-9].encode(), ", line 3 has no test_accuracy"),
    "curve.csv: no seconds": (
        "curve.csv",
        CURVE.replace("2.0", "").encode(),
        ", line 3: seconds must be a number of at most 1e+150, not ''",
    ),
    "curve.csv: infinite seconds": (
        "curve.csv",
        CURVE.replace("2.0", "inf").encode(),
        ", line 3: seconds must be a number of at most 1e+150, not 'inf'",
    ),
    "curve.csv: back in time": (
        "curve.csv",
        CURVE.replace("2.0", "-2.0").encode(),
        " goes back from 0.0 to -2.0 seconds, as no curve of a run does",
    ),
    "curve.csv: no text": ("curve.csv", b"\x00\x89PNG\xff", " is not text (invalid start byte at byte 1)"),
    "curve.csv: a long field": (
        "curve.csv",
        CURVE.encode() + b'"' + b"x" * MANY,
        " cannot be read as CSV (field larger than field limit (131072))",
    ),
}


@each
@pytest.mark.parametrize("case", CONTENTS)
@pytest.mark.sampled(20)
def test_a_broken_file_is_one_sentence(command: str, case: str, sweep: Path, told: Callable[[str], str]) -> None:
    """Nothing in it is executed, and it is given up before it takes much time or memory."""
    name, contents, sentence = CONTENTS[case]
    path = sweep / "run" / name
    path.write_bytes(contents)

    assert told(command) == f"{path}{sentence}: {REMEDY}"
    assert not Path("harm").exists()


@each
def test_lists_nested_beyond_all_bounds_are_one_sentence(command: str, sweep: Path, told: Callable[[str], str]) -> None:
    """PyYAML from 6.0.4 on gives up before hetsim sees how deep they are."""
    path = sweep / "run" / "config.yaml"
    path.write_bytes(b"a: " + b"[" * MANY)

    ours = f"{path} is nested more than 50 deep: {REMEDY}"
    of_pyyaml = f"{path}, line 1, column 1003 cannot be read as YAML (exceeded maximum nesting depth): {REMEDY}"
    assert told(command) in (ours, of_pyyaml)


@each
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "curve.csv"])
@pytest.mark.parametrize("made", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_one_sentence(
    command: str, name: str, made: Callable[[Path], None], sweep: Path, told: Callable[[str], str]
) -> None:
    """A pipe is not waited for."""
    path = sweep / "run" / name
    path.unlink()
    made(path)

    assert told(command) == f"{path} is not a file: {REMEDY}"


@each
@pytest.mark.parametrize("name", ["summary.json", "config.yaml", "curve.csv"])
def test_a_file_that_may_not_be_read_is_one_sentence(
    command: str, name: str, sweep: Path, told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody else had made it."""
    path = sweep / "run" / name

    def guarded(file: Path) -> BinaryIO:
        if file == path:
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(file)

    monkeypatch.setattr("hetsim.files.reading.open_file", guarded)

    assert told(command) == f"{path} cannot be read (Permission denied): {REMEDY}"


@each
def test_a_file_that_is_longer_than_any_of_a_run_is_one_sentence(command: str, sweep: Path, told: Callable[[str], str]) -> None:
    """It is not read."""
    path = sweep / "run" / "curve.csv"
    with path.open("wb") as file:
        file.truncate(10**12)
    assert stat.S_ISREG(path.stat().st_mode)

    assert told(command) == f"{path} is 1000000000000 bytes long, as no such file of a run is: {REMEDY}"


TYPED = {
    "no JSON": ("method=ssgd", "is no JSON (Expecting value: line 1 column 1 (char 0))"),
    "nested": ("[" * MANY, "is not JSON of a run, as it is nested too deeply"),
    "a text": ('"method=ssgd"', "must hold a list of texts, not 'method=ssgd'"),
    "numbers": ("[1, 2]", "must hold a list of texts, not [1, 2]"),
    "half a letter": (r'["method=\ud800"]', r"must hold a list of texts, not ['method=\ud800']"),
}


@pytest.mark.parametrize(("typed", "sentence"), TYPED.values(), ids=TYPED)
def test_what_was_typed_must_be_a_list_of_texts(typed: str, sentence: str, sweep: Path, told: Callable[[str], str]) -> None:
    """In the second line of config.yaml; only `hetsim-table` reads it."""
    path = sweep / "run" / "config.yaml"
    path.write_text(f"# identity: x\n# typed: {typed}\nmethod: ssgd\n")

    assert told("hetsim-table") == f"the line '# typed:' of {path} {sentence}: {REMEDY}"


def changed(name: str, column: Any) -> pa.Table:
    """The trace with another column of this name."""
    return TRACE.set_column(TRACE.column_names.index(name), name, [column])


def with_last_row(start: float, end: float) -> pa.Table:
    """A trace of more rows than a timeline shows, of which the last one is from start to end."""
    numbers = [*[number for row in ROWS * 7000 for number in row], start, end, 0, GRADIENT, 0, 4, 0, 0]
    return as_table(numbers)


LARGE = pa.table({name: TRACE[name].combine_chunks().take(pa.array([0] * 5000)) for name in TRACE.column_names})
"""Of five thousand equal rows."""


def with_kinds(dictionary: list[str], rows: list[int]) -> pa.Table:
    """A large trace with these of these kinds."""
    kinds = pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(dictionary))
    return LARGE.set_column(TRACE.column_names.index("kind"), "kind", kinds)


TRACES: dict[str, tuple[pa.Table, str]] = {
    "a column less": (TRACE.drop_columns(["rank"]), " lacks rank"),
    "times that are text": (
        changed("start", ["now", "0", "2"]),
        " cannot be read as a trace (Failed to parse string: 'now' as a scalar of type double)",
    ),
    "times that are lists": (changed("end", [[1.0], [2.0], [2.0]]), " cannot be read as a trace ("),
    "late rows that end before they begin": (with_last_row(1.0, 0.5), " has an interval from 1.0 to 0.5, which ends before it begins"),
    "a message that two clocks do not explain": (
        changed("kind", ["message"] * 3).set_column(1, "end", [[1.0, 2.0, -60.0]]),
        " has an interval from 2.0 to -60.0, which ends before it begins",
    ),
    "kinds that are numbers": (changed("kind", [0, 0, 1]), " has a row whose kind is 0, as none of a run is"),
    "a rank of too many bits": (changed("rank", [0, 2**40, 2]), " cannot be read as a trace (Integer value 1099511627776 not in range"),
    "no time": (changed("end", [1.0, None, 2.0]), " has an interval from 0.0 to None, which are no times of a run"),
    "an infinite time": (changed("end", [1.0, float("inf"), 2.0]), " has an interval from 0.0 to inf, which are no times of a run"),
    "a negative duration": (changed("end", [-1.0, 1.0, 2.0]), " has an interval from 0.0 to -1.0, which ends before it begins"),
    "a rank of another run": (changed("rank", [0, 9, 2]), " has rank 9, but its run has 2 workers"),
    "a kind that is none": (
        changed("kind", ["gradient", "x" * 10, "update"]),
        " cannot be read as a trace (its kind 'xxxxxxxxxx' is none of",
    ),
    "one long kind, again and again": (with_kinds(["x" * 10**6], [0] * 5000), " cannot be read as a trace (its kind 'xxx"),
    "many long kinds": (with_kinds([f"{place}{'x' * 2000}" for place in range(5000)], list(range(5000))), " would take 10"),
    "more columns": (TRACE.append_column("more", [[1, 2, 3]]), " has a column 'more', as no trace has"),
    "no version": (TRACE.drop_columns(["version"]), " lacks version"),
    "a staleness below zero": (changed("staleness", pa.array([0, -2, 0])), " has a row whose staleness is -2, as none of a run is"),
    "a version below zero": (changed("version", pa.array([0, -2, 0])), " has a row whose version is -2, as none of a run is"),
    "a version that is none": (changed("version", pa.array([0, None, 0], pa.int64())), " has a row whose version is None, as none of a"),
    "no size": (changed("nbytes", pa.array([0, None, 0], pa.int64())), " has a row whose nbytes is None, as none of a run is"),
    "no kind": (changed("kind", pa.array(["gradient", None, "update"])), " has a row whose kind is None, as none of a run is"),
    "no rank": (changed("rank", pa.array([0, None, 2], pa.int32())), " has rank None, but its run has 2 workers"),
}


READERS: dict[str, tuple[Callable[[], None], Callable[[Path], tuple[object, ...]]]] = {
    # each command that reads a trace: its main function, and what it is given
    "hetsim-compare": (compare_main, lambda run: (run, run)),
    "hetsim-compare --perfetto": (compare_main, lambda run: (run, run, "--perfetto", run / "compared.pftrace")),
    "hetsim-report --html": (report_main, lambda run: (run, "--html", run / "run.html")),
    "hetsim-report --perfetto": (report_main, lambda run: (run, "--perfetto", run / "run.pftrace")),
    "hetsim-stragglers": (stragglers_main, lambda run: (run,)),
    "hetsim-calibrate --from-trace": (calibrate_main, lambda run: (run / "c.yaml", "--from-trace", run)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("table", "sentence"), TRACES.values(), ids=TRACES)
def test_a_trace_of_another_kind_is_one_sentence(
    table: pa.Table, sentence: str, reader: str, sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep / "run" / "trace.parquet"
    parquet.write_table(table, path)
    before = sorted(path.parent.iterdir())
    main, given = READERS[reader]

    assert exit_status(monkeypatch, reader.partition(" ")[0], main, *given(path.parent)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"error: {path}{sentence}" in printed.err
    assert printed.err.endswith(f": {REMEDY}\n")
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize(("table", "sentence"), TRACES.values(), ids=TRACES)
def test_a_trace_of_another_kind_is_one_sentence_in_python(table: pa.Table, sentence: str, sweep: Path) -> None:
    path = sweep / "run" / "trace.parquet"
    parquet.write_table(table, path)
    run = hetsim.load(path.parent)

    for read in (run.trace, run.timeline):
        with pytest.raises(ValueError, match=f"^{re.escape(f'{path}{sentence}')}"):
            read()


def test_a_gradient_of_the_server_received_no_message(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run has one; a message went to none of its workers then."""
    server = 2
    rows = [*ROWS, (0.5, 0.75, server, MESSAGE, 0, 0, 0, 8), (1.0, 2.0, server, GRADIENT, 0, 4, 0, 0)]
    parquet.write_table(as_table([number for row in rows for number in row]), sweep / "run" / "trace.parquet")

    assert asked("hetsim-compare", sweep, monkeypatch) == 0


def test_a_trace_has_no_words_for_pandas(sweep: Path) -> None:
    """It would take them for types, indexes and time zones."""
    path = sweep / "run" / "trace.parquet"
    parquet.write_table(TRACE.replace_schema_metadata({b"pandas": b"[[["}), path)

    assert read_trace(path).schema.metadata is None


@pytest.mark.parametrize("kept", [0, 3, 100, -5])
def test_a_trace_that_is_cut_off_is_one_sentence(kept: int, sweep: Path, told: Callable[[str], str]) -> None:
    """Parquet keeps its description at the end."""
    path = sweep / "run" / "trace.parquet"
    path.write_bytes(path.read_bytes()[:kept])

    assert told("hetsim-compare").startswith(f"{path} is no Parquet file (")


def test_a_trace_that_does_not_fit_in_memory_is_one_sentence(
    sweep: Path, told: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred million equal rows take no room on disk."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 299)

    assert told("hetsim-compare") == (
        f"{sweep / 'good' / 'trace.parquet'}, of 3 rows, would take 3e-7 GB of memory, and 3.0e-7 GB are available: {REMEDY}"
    )


def test_a_run_of_an_earlier_version_is_compared_although_it_lacks_entries(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the numbers that are compared must be there; and no config and no trace."""
    kept = ("updates_per_second", "samples_per_second", "staleness_mean", "idle_share", "final")
    (sweep / "run" / "summary.json").write_text(json.dumps({key: SUMMARY[key] for key in kept}))
    for name in ("config.yaml", "curve.csv", "trace.parquet"):
        (sweep / "run" / name).unlink()

    assert exit_status(monkeypatch, "hetsim-compare", compare_main, sweep / "good", sweep / "run") == 0
    assert "updates/s" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["hetsim-compare", "hetsim-table"])
def test_what_a_summary_lacks_is_named_where_it_is_needed(command: str, sweep: Path, told: Callable[[str], str]) -> None:
    """A picture has a title, and a table tells backends apart."""
    (sweep / "run" / "summary.json").write_text(json.dumps({key: SUMMARY[key] for key in SUMMARY if key not in ("method", "backend")}))

    lacks = "method, backend" if command == "hetsim-table" else "method"
    assert told(command) == f"{sweep / 'run'} is not a run of this version of hetsim: it lacks {lacks}; move it elsewhere"


def test_numbers_that_cannot_be_divided_have_no_error(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither infinity nor a traceback in the table or in its JSON."""
    for name, rate in (("good", 1e150), ("run", 1e-300)):
        finished_run(sweep / f"{name}_rate", updates_per_second=rate)
    path = sweep / "compared.json"

    assert exit_status(monkeypatch, "hetsim-compare", compare_main, sweep / "good_rate", sweep / "run_rate", "--json", path) == 0
    assert json.loads(path.read_text())["numbers"]["updates_per_second"]["relative_error"] is None


@each
@pytest.mark.parametrize("name", ["a $ sign", "$x_{", r"\$\frac{$", "$$"])
@pytest.mark.sampled(3)
def test_a_name_with_dollars_is_no_formula(command: str, name: str, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In titles and in labels."""
    for run in ("good", "run"):
        (sweep / run / "summary.json").write_text(json.dumps({**SUMMARY, "cluster": name, "method": name}))
        (sweep / run / "config.yaml").write_text(f"method: '{name}'\n")

    assert asked(command, sweep, monkeypatch) == 0


@pytest.mark.parametrize("key", ["runs", "label", "seconds_mean"])
def test_a_key_that_is_called_like_a_column_of_the_table_stays_beside_it(key: str, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `config.` in front."""
    for name in ("good", "run"):
        (sweep / name / "config.yaml").write_text(f"{key}: {name}\n")

    assert asked("hetsim-table", sweep, monkeypatch) == 0
    assert parquet.read_table(sweep.parent / "table" / "table.parquet").column(f"config.{key}").to_pylist() == ["good", "run"]


def test_a_folder_whose_summary_is_broken_does_not_hold_the_run(tmp_path: Path) -> None:
    """A sweep runs it again."""
    folder = finished_run(tmp_path / "run")
    assert finished_summary(folder, "0123456789ab") == SUMMARY

    (folder / "summary.json").write_text("[" * MANY)
    assert finished_summary(folder, "0123456789ab") is None


def test_a_trace_with_more_rows_than_it_says_is_not_read(sweep: Path, told: Callable[[str], str]) -> None:
    """Its memory is reckoned by what it says."""
    trace = sweep / "run" / "trace.parquet"
    packed = trace.read_bytes()
    footer = int.from_bytes(packed[-8:-4], "little")
    begin = len(packed) - 8 - footer
    # the number of rows, as a zigzag varint, follows the schema; three rows are 6
    places = [at for at in range(begin, len(packed) - 8) if packed[at : at + 2] == b"\x16\x06"]
    for place in places:
        trace.write_bytes(packed[: place + 1] + b"\x00" + packed[place + 2 :])
        if parquet.ParquetFile(trace).metadata.num_rows == 0:
            break
    else:
        pytest.fail("the number of rows was not found")

    assert told("hetsim-compare") == f"{trace} does not hold as many rows as it says: {REMEDY}"


@pytest.mark.parametrize("command", ["hetsim-compare", "hetsim-table"])
def test_what_a_run_holds_does_not_steer_the_terminal(
    command: str, sweep: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither a value or a warning nor the name of a folder."""
    steering = "x\x1b]0;title\x07\x9by"
    (sweep / "run" / "summary.json").write_text(json.dumps({**SUMMARY, "warnings": [steering]}))
    (sweep / "run" / "config.yaml").write_text(CONFIG.replace("method: ssgd", f"method: {json.dumps(steering)}"))

    assert asked(command, sweep, monkeypatch) == 0
    first = capfd.readouterr()
    (sweep / "run").rename(sweep / steering)
    (sweep / steering / "curve.csv").write_text("")
    (sweep / "run").symlink_to(sweep / steering)
    assert asked(command, sweep, monkeypatch) == (command not in SKIP)

    second = capfd.readouterr()
    told = first.out + first.err + second.out + second.err
    assert [letter for letter in told if not letter.isprintable() and letter != "\n"] == []
    assert "x\\x1b]0;title" in first.out + first.err


@each
@pytest.mark.parametrize("file", ["summary.json", "config.yaml", "curve.csv"])
def test_a_file_that_is_a_link_is_not_followed(command: str, file: str, sweep: Path, told: Callable[[str], str]) -> None:
    """In a folder of somebody else's it may lead to a file of the user's, which a table would show."""
    (sweep / "mine").write_text((sweep / "run" / file).read_text())
    (sweep / "run" / file).unlink()
    (sweep / "run" / file).symlink_to(sweep / "mine")

    assert told(command).startswith(f"{sweep / 'run' / file} is a link, and is not followed: ")


ANY_BYTE = """
import sys
from pathlib import Path

from hetsim.results.reading.intervals import read_trace

trace = Path(sys.argv[1])
packed = trace.read_bytes()
begin = len(packed) - 8 - int.from_bytes(packed[-8:-4], "little")
for place in range(begin, len(packed) - 8, int(sys.argv[2])):
    for value in (0, 6, 0x7F, 0x80):
        trace.write_bytes(packed[:place] + bytes([value]) + packed[place + 1 :])
        try:
            read_trace(trace)
        except ValueError:
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 7])
def test_no_byte_of_a_traces_footer_ends_the_process(step: int, sweep: Path) -> None:
    """Some of Arrow's getters do not translate the errors of broken metadata, such as statistics of sizes that do not fit."""
    command = (sys.executable, "-c", ANY_BYTE, sweep / "run" / "trace.parquet", str(step))
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
