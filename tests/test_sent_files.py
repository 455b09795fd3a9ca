"""Files of runs that come back from a node without the sweep's folder: by known names, up to a size, below that folder alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetsim.errors import RunFailed
from hetsim.pool import sent_files
from hetsim.pool.sent_files import pack, unpack

RUN = {"config.yaml": b"seed: 0\n", "summary.json": b"{}", "curve.csv": b"version\n"}


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_arrives_as_it_was_made(tmp_path: Path) -> None:
    """What no run leaves stays behind, an earlier error goes, and nothing is left on the node."""
    written(tmp_path / "node" / "a" / "b", {**RUN, "evil.py": b"1", ".config.yaml.unfinished": b"x"})
    written(tmp_path / "sweep" / "a" / "b", {"error.txt": b"why\n", "curve.png": b"of an earlier run"})

    unpack(pack(tmp_path / "node"), tmp_path / "sweep")

    assert contents(tmp_path / "sweep") == {f"a/b/{name}": content for name, content in RUN.items()}
    assert list((tmp_path / "node").iterdir()) == []


def test_a_failed_run_brings_its_sentence_and_spares_what_is_there(tmp_path: Path) -> None:
    written(tmp_path / "node" / "run", {"error.txt": b"batch_size=1: raise it\n"})
    written(tmp_path / "sweep" / "run", RUN)

    unpack(pack(tmp_path / "node"), tmp_path / "sweep")

    assert contents(tmp_path / "sweep" / "run") == {**RUN, "error.txt": b"batch_size=1: raise it\n"}


@pytest.mark.parametrize(
    "sent",
    [
        [("../run", RUN)],
        [("/tmp/run", RUN)],
        [("a/../../run", RUN)],
        [(".outcomes", RUN)],
        [("a/.ssh", RUN)],
        [("", RUN)],
        [("a\n", RUN)],
        [("/".join("abcdefghi"), RUN)],
        [("run", {"multirun.yaml": b""})],
        [("run", {"../summary.json": b""})],
        [("run", {"summary.json": "text"})],
        [("run", RUN, 1)],
        ["run"],
        {"run": RUN},
        [(1, RUN)],
        [("link", RUN)],
        [("run", {"summary.json": bytes(101)})],
    ],
)
def test_what_no_run_leaves_is_not_written(sent: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_files, "MAX_BYTES", 100)
    written(tmp_path / "elsewhere", {})
    written(tmp_path / "sweep", {})
    (tmp_path / "sweep" / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RunFailed):
        unpack(sent, tmp_path / "sweep")

    assert contents(tmp_path) == {}


def test_a_run_that_is_too_large_is_refused_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_files, "MAX_BYTES", 10)
    written(tmp_path / "node" / "run", {"trace.parquet": bytes(11)})

    with pytest.raises(RunFailed, match="share the sweep's folder with the nodes, or type trace=none"):
        pack(tmp_path / "node")

    assert list((tmp_path / "node").iterdir()) == []
