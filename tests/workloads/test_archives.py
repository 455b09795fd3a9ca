"""Archives whose claims are beyond belief, beyond memory, or contradict each other: refused before they are unpacked."""

from __future__ import annotations

import io
import lzma
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetsim import memory
from hetsim.workloads.data import archive
from hetsim.workloads.data.npz import NpzArrays

SMALL = {
    "x_train": np.arange(40, dtype=np.float32).reshape(8, 5),
    "y_train": np.arange(8) % 3,
    "x_test": np.arange(20, dtype=np.float32).reshape(4, 5),
    "y_test": np.arange(4) % 3,
}
MEGABYTE = 10**6


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """The file of one array with this header."""
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + header.encode() + data


def header(shape: str, dtype: str = "<f4", order: str = "False") -> str:
    """The header of an array."""
    return f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}"


def zipped(path: Path, claimed_bytes: int | None = None, **members: bytes) -> Path:
    """An archive of the small arrays with other bytes for some of them; x_train claims to hold so many."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in SMALL.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            file.writestr(f"{name}.npy", members.get(name, buffer.getvalue()))
        if claimed_bytes is not None:
            file.filelist[0].file_size = claimed_bytes
    return path


def refusal(path: Path) -> str:
    """The sentence with which the archive is refused, without its beginning that names the path."""
    with pytest.raises(ValueError, match=r"^workload\.path=") as error:
        NpzArrays(path=str(path), model="mlp").read()
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 600
    return sentence.removeprefix(f"workload.path={path}")


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most memory that Python and NumPy hold while this is called, beyond what they held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_archive_that_claims_what_no_real_data_hold_is_refused_unopened(tmp_path: Path) -> None:
    """Three gigabytes in a kilobyte: the directory of the zip says so."""
    big = npy(header("(750000, 1000)"), bytes(MEGABYTE))
    path = zipped(tmp_path / "bomb.npz", claimed_bytes=3_000_000_074, x_train=big)
    packed = path.stat().st_size / 1e6

    said: list[str] = []
    peak = peak_bytes(lambda: said.append(refusal(path)))

    assert said == [f": {packed:.3g} MB claim to hold 3.0 GB, as no real data do: if they are real, save them unpacked with numpy.savez"]
    assert peak < MEGABYTE


def test_an_archive_that_does_not_fit_in_memory_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything but the headers is read."""
    np.savez(tmp_path / "big.npz", **{**SMALL, "x_train": np.ones((8, 10**5, 5)), "x_test": np.ones((4, 10**5, 5))})
    monkeypatch.setattr(memory, "available_bytes", lambda: 47 * MEGABYTE)

    said: list[str] = []
    peak = peak_bytes(lambda: said.append(refusal(tmp_path / "big.npz")))

    assert said == [" would take 0.048 GB of memory, and 0.047 GB are available: give fewer samples, or smaller ones"]
    assert peak < MEGABYTE


STORED = {
    "bytes": ((20, 500, 500), np.uint8),
    "coloured bytes": ((20, 300, 300, 3), np.uint8),
    "features": ((50, 10**5), np.float32),
    "features in doubles": ((50, 10**5), np.float64),
    "coloured doubles": ((20, 200, 200, 3), np.float64),
    "short numbers": ((50, 10**5), np.int8),
    "long numbers": ((50, 10**5), np.int64),
}


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "dtype"), STORED.values(), ids=STORED)
@pytest.mark.parametrize("name", ["some.npz", "some.npz.xz"])
@pytest.mark.sampled(5)
def test_an_archive_takes_no_more_memory_than_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shape: tuple[int, ...], dtype: type[np.generic]
) -> None:
    """Copies that conversions make are counted, and little more than is needed is asked for."""
    buffer = io.BytesIO()
    labels = np.zeros(shape[0], dtype=np.uint8)
    np.savez(buffer, x_train=np.ones(shape, dtype), y_train=labels, x_test=np.ones((2, *shape[1:]), dtype), y_test=labels[:2])
    path = tmp_path / name
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=0) if path.suffix == ".xz" else buffer.getvalue())
    asked: list[int] = []
    monkeypatch.setattr("hetsim.workloads.data.npz.check_fits", lambda *given, **_: asked.append(given[1]))

    peak = peak_bytes(NpzArrays(path=str(path), model="mlp").read)

    slack = 2 * MEGABYTE if name == "some.npz" else 20 * MEGABYTE  # what is unpacked at once
    assert asked[0] > peak - slack
    assert asked[0] < 1.1 * peak


def test_an_xz_is_given_up_as_soon_as_it_holds_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gigabyte of zeros in 40 streams only the first few are unpacked."""
    path = tmp_path / "bomb.npz.xz"
    path.write_bytes(40 * lzma.compress(bytes(2**25), preset=1))
    monkeypatch.setattr(archive, "UNSUSPECTED_BYTES", 2**26)

    said: list[str] = []
    peak = peak_bytes(lambda: said.append(refusal(path)))

    assert said[0].endswith(" MB claim to hold 0.084 GB, as no real data do: if they are real, save them unpacked with numpy.savez")
    assert peak < 150 * MEGABYTE


def test_an_xz_that_does_not_fit_in_memory_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both figures, and before what does not fit is unpacked."""
    path = tmp_path / "big.npz.xz"
    path.write_bytes(lzma.compress(bytes(2**26), preset=1))
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**23)

    said: list[str] = []
    peak = peak_bytes(lambda: said.append(refusal(path)))

    assert said == [", unpacked in part, would take 0.017 GB of memory, and 0.0084 GB are available: give fewer samples, or smaller ones"]
    assert peak < MEGABYTE


def test_an_xz_that_asks_for_much_memory_to_be_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header may ask for gigabytes."""
    path = tmp_path / "some.npz.xz"
    path.write_bytes(lzma.compress(zipped(tmp_path / "some.npz").read_bytes()))
    monkeypatch.setattr(archive, "XZ_BYTES", 2**16)

    assert "(Memory usage limit exceeded)" in refusal(path)


def test_an_xz_of_nothing_but_zeros_is_given_up(tmp_path: Path) -> None:
    """They may be padding, and a file without blocks on the disk can have any number of them."""
    path = tmp_path / "zeros.npz.xz"
    with path.open("wb") as file:
        file.truncate(10**12)

    with pytest.raises(ValueError, match=r"\(it holds nothing but zeros for long\)"), archive.open_archive(str(path), "zeros", ["x"]):
        pass


def test_an_xz_may_have_several_streams(tmp_path: Path) -> None:
    """As `xz` and `cat` make them, with padding between."""
    packed = zipped(tmp_path / "some.npz").read_bytes()
    path = tmp_path / "some.npz.xz"
    path.write_bytes(lzma.compress(packed[:99]) + bytes(8) + lzma.compress(packed[99:]) + bytes(4))

    read = NpzArrays(path=str(path), model="mlp").read()

    assert read.x_train.tolist() == SMALL["x_train"].tolist()


def test_arrays_in_fortrans_order_are_read(tmp_path: Path) -> None:
    """Their numbers stand column by column in the file."""
    images = np.arange(8 * 4 * 3 * 2, dtype=np.float32).reshape(8, 4, 3, 2)
    np.savez(tmp_path / "f.npz", **{**SMALL, "x_train": np.asfortranarray(images), "x_test": np.asfortranarray(images[:4])})

    read = NpzArrays(path=str(tmp_path / "f.npz"), model="mlp").read()

    assert read.x_train.tolist() == np.moveaxis(images, 3, 1).tolist()


OBJECTS = "x_train holds Python objects, which are not read: save numbers"
CONTRADICTION = ", which contradict each other: save it again with numpy.savez"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "objects": (npy(header("(8, 5)", "|O")), OBJECTS),
    "objects in a record": (npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (8, 5), }"), OBJECTS),
    "a negative shape": (
        npy(header("(-8, -5)"), bytes(160)),
        f"x_train is said to be float32 of shape (-8, -5) in 160 bytes{CONTRADICTION}",
    ),
    "a shape beyond the file": (
        npy(header("(8, 5000000)"), bytes(160)),
        f"x_train is said to be float32 of shape (8, 5000000) in 160 bytes{CONTRADICTION}",
    ),
    "a shape beyond all numbers": (
        npy(header(f"(8, {10**99})"), bytes(160)),
        f"x_train is said to be float32 of shape (8, 100000000000000000...0000000000000000000) in 160 bytes{CONTRADICTION}",
    ),
    "more than the shape": (
        npy(header("(8, 5)"), bytes(164)),
        f"x_train is said to be float32 of shape (8, 5) in 164 bytes{CONTRADICTION}",
    ),
    "characters of no size": (
        npy(header("(99999999999999, 5)", "<U0")),
        "x_train must be numbers in 2, 3 or 4 dimensions, not <U0 in 2: convert it first",
    ),
    "no numbers": (
        npy(header("(99999999999999, 0)")),
        "x_train has samples of shape (0,), which hold nothing: give each at least one number",
    ),
    "no samples": (npy(header("(0, 5)")), "x_train has 0 samples and y_train 8 labels: give each sample its label, and at least one"),
}


@pytest.mark.parametrize(("member", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, member: bytes, sentence: str) -> None:
    """Before an array of its shape is made."""
    assert refusal(zipped(tmp_path / "bad.npz", x_train=member)) == f": {sentence}"


UNREADABLE = {
    "a nested header": npy(f"{{'shape': {'(' * 5000}"),
    "a header without an end": npy(header("(8, 5)"))[:40],
    "a header that is a program": npy("__import__('os').system('true')"),
    "a header of four gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(99),
    "a type without a name": npy("{'descr': (), 'fortran_order': False, 'shape': (8, 5)}"),
    "a type that is cut off": npy("{'descr': ('<f4',), 'fortran_order': False, 'shape': (8, 5)}"),
    "a version of records with names": npy(header("(8, 5)"), bytes(160), b"\x03\x00"),
}


@pytest.mark.parametrize("member", UNREADABLE.values(), ids=UNREADABLE)
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, member: bytes) -> None:
    """In words of bounded length."""
    assert refusal(zipped(tmp_path / "bad.npz", x_train=member)).startswith(
        " cannot be read as a NumPy archive of x_train, y_train, x_test, y_test ("
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Nobody can tell which one is meant."""
    path = zipped(tmp_path / "bad.npz")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("y_test.npy", b"")

    assert refusal(path) == " holds y_test 2 times: save x_train, y_train, x_test, y_test in it, once each, with numpy.savez"
