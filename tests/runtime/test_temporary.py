"""A killed process's temporary folders are removed by the next start, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hetsim.files.temporary import OWNER, owned, remove_abandoned, temporary_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def abandoned(folder: Path) -> Path:
    """A folder as a killed process leaves it."""
    folder.mkdir()
    (folder / OWNER).touch()
    (folder / "more").mkdir()
    (folder / "more" / "file").write_text("x")
    return folder


@pytest.mark.parametrize("name", ["pymp-x", "hetsim-launch-x", "hetsim-calibrate-x", "hetsim-ddp-check-x"])
def test_what_a_killed_process_left_is_removed(name: str, place: Path) -> None:
    folder = abandoned(place / name)

    with temporary_folder("hetsim-launch-") as mine:
        assert not folder.exists()
        assert mine.is_dir()
    assert not any(place.iterdir())


def _by_a_link(place: Path) -> None:
    (place / "pymp-x").symlink_to(abandoned(place.parent / "elsewhere"))


def _with_a_link(place: Path) -> None:
    (place / "pymp-x").mkdir()
    (place.parent / "file").touch()
    (place / "pymp-x" / OWNER).symlink_to(place.parent / "file")


def _with_a_pipe(place: Path) -> None:
    (place / "pymp-x").mkdir()
    os.mkfifo(place / "pymp-x" / OWNER)


KEPT: dict[str, Callable[[Path], object]] = {
    "of nobody that is known": lambda place: (place / "pymp-x").mkdir(),
    "by another name": lambda place: abandoned(place / "other-x"),
    "a link": _by_a_link,
    "an owner that is a link": _with_a_link,
    "an owner that is a pipe": _with_a_pipe,
    "a file": lambda place: (place / "pymp-x").touch(),
}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_what_is_not_known_to_be_abandoned_stays(make: Callable[[Path], object], place: Path) -> None:
    make(place)
    before = sorted(place.parent.rglob("*"))

    remove_abandoned()

    assert sorted(place.parent.rglob("*")) == before


def test_the_folder_of_a_living_process_stays(place: Path) -> None:
    folder = abandoned(place / "pymp-x")
    (folder / OWNER).unlink()

    with owned(folder):
        remove_abandoned()
        assert folder.exists()
    remove_abandoned()
    assert not folder.exists()


def test_the_folder_of_another_user_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = abandoned(place / "pymp-x")
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)

    remove_abandoned()

    assert folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("length", [75, 76])
def test_a_long_path_is_one_sentence_where_sockets_would_not_fit(length: int) -> None:
    """Of 108 bytes of a path, the last one is a zero, and multiprocessing adds 32 to that of the folder for temporary files."""
    code = (
        "from multiprocessing.connection import Listener\n"
        "from hetsim.files.temporary import own_multiprocessings_folder\n"
        "own_multiprocessings_folder()\n"
        "Listener()"
    )
    with tempfile.TemporaryDirectory() as short:
        folder = Path(short) / ("t" * (length - len(short) - 1))
        folder.mkdir()
        ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True)

    assert (ran.returncode == 0) == (length == 75), ran.stderr
    assert length == 75 or "is too long: processes meet at sockets there, whose paths would have 108 bytes and may have 107" in ran.stderr
