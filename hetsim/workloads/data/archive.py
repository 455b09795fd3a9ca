"""Arrays in a `.npz` or `.npz.xz`. The sizes that it claims are read, and can be refused, before it is unpacked."""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import os
import reprlib
import struct
import textwrap
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hetsim.memory import check_fits, gigabytes

MAX_RATIO = 200
"""The maximum ratio of an archive's unpacked to its packed size."""
UNSUSPECTED_BYTES = 10**9
"""The unpacked size that is allowed for any archive."""
HEADER_BYTES = 2**16
"""The part of an array's file that must contain its header."""
PART_BYTES = 2**24
"""The number of bytes of an `.xz` to unpack at once."""
XZ_BYTES = 2**28
"""The maximum memory for unpacking an `.xz`; `xz -9` needs a quarter of it."""
MAX_PADDING = 2**20
"""The maximum number of zeros between the streams of an `.xz`, or before them."""
REMEDY = "give fewer samples, or smaller ones"

UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, RuntimeError, SyntaxError),
    *(struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)
"""The errors that zipfile, lzma and NumPy raise for an invalid file."""


@dataclass(frozen=True)
class Claim:
    """An archive's claim about one of its arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    entry: zipfile.ZipInfo

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The unpacked size in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Archive:
    """An open archive with one array for each name. `source` is its name in errors."""

    source: str
    names: Collection[str]
    packed_bytes: int
    memory_bytes: int
    """The memory that the archive itself needs."""
    zip: zipfile.ZipFile

    def claims(self) -> dict[str, Claim]:
        """The claims by name. Raises ValueError if they contradict each other or are implausible."""
        entries = {name: self._entry(name) for name in self.names}
        check_ratio(self.source, self.packed_bytes, sum(entry.file_size for entry in entries.values()))
        return {name: self._claim(name, entry) for name, entry in entries.items()}

    def read(self, claim: Claim) -> NDArray[Any]:
        """The array, as stored."""
        with _refuse_unreadable(self.source, self.names), self.zip.open(claim.entry) as file:
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
            return array

    def _entry(self, name: str) -> zipfile.ZipInfo:
        entries = [entry for entry in self.zip.infolist() if entry.filename in (name, f"{name}.npy")]
        if len(entries) != 1:
            problem = f"holds {name} {len(entries)} times" if entries else f"has no {name}"
            raise ValueError(f"{self.source} {problem}: save {', '.join(self.names)} in it, once each, with numpy.savez")
        return entries[0]

    def _claim(self, name: str, entry: zipfile.ZipInfo) -> Claim:
        with _refuse_unreadable(self.source, self.names), self.zip.open(entry) as file:
            shape, dtype, start = _header(file.read(HEADER_BYTES))
        claim = Claim(shape, dtype, entry)
        if dtype.hasobject:
            raise ValueError(f"{self.source}: {name} holds Python objects, which are not read: save numbers")
        if min(shape, default=0) < 0 or start + claim.nbytes != entry.file_size:
            raise ValueError(
                f"{self.source}: {name} is said to be {dtype} of shape {reprlib.repr(shape)} in {entry.file_size - start} bytes, "
                "which contradict each other: save it again with numpy.savez"
            )
        return claim


@contextlib.contextmanager
def open_archive(path: str, source: str, names: Collection[str]) -> Iterator[Archive]:
    """The archive at this path. Raises ValueError if the file is no archive."""
    with contextlib.ExitStack() as stack:
        with _refuse_unreadable(source, names):
            file: IO[bytes] = stack.enter_context(open(path, "rb"))
            packed_bytes = os.fstat(file.fileno()).st_size
        contents = _unpack(file, source, names, packed_bytes) if path.endswith(".xz") else None
        with _refuse_unreadable(source, names):
            archive = stack.enter_context(zipfile.ZipFile(file if contents is None else contents))
        yield Archive(source, names, packed_bytes, 0 if contents is None else contents.getbuffer().nbytes, archive)


@contextlib.contextmanager
def _refuse_unreadable(source: str, names: Collection[str]) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        reason = textwrap.shorten(str(error), 120, placeholder=" …") or type(error).__name__
        raise ValueError(f"{source} cannot be read as a NumPy archive of {', '.join(names)} ({reason}): save it with numpy.savez") from None


def _header(beginning: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """An array's shape, its type, and the position of its entries in its file."""
    file = io.BytesIO(beginning)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the .npy format is not for plain numbers")
    shape, _, dtype = npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
    return shape, dtype, file.tell()


def _unpack(file: IO[bytes], source: str, names: Collection[str], packed_bytes: int) -> io.BytesIO:
    """The contents of an `.xz`. Unpacking stops as soon as the contents are too large."""
    unpacked = io.BytesIO()
    pieces = _pieces(file)
    while True:
        check_fits(f"{source}, unpacked in part,", unpacked.tell() + PART_BYTES, REMEDY, used=unpacked.tell())
        with _refuse_unreadable(source, names):
            piece = next(pieces, None)
        if piece is None:
            return unpacked
        unpacked.write(piece)
        check_ratio(source, packed_bytes, unpacked.tell())


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The contents of an `.xz`'s streams, one after another, at most PART_BYTES at a time."""
    stream: lzma.LZMADecompressor | None = None
    padding = 0
    while packed := file.read(2**16):
        while packed or (stream is not None and not stream.needs_input):
            if stream is None:
                padding += len(packed) - len(packed.lstrip(b"\0"))  # streams may be padded
                packed = packed.lstrip(b"\0")
                if padding > MAX_PADDING:
                    raise EOFError("it holds nothing but zeros for long")
                stream = lzma.LZMADecompressor(memlimit=XZ_BYTES) if packed else None
            if stream is not None:
                yield stream.decompress(packed, PART_BYTES)
                packed, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    if stream is not None:
        raise EOFError("it is cut off")


def check_ratio(source: str, packed_bytes: int, unpacked_bytes: int, *, remedy: str = "save them unpacked with numpy.savez") -> None:
    """Raise ValueError for a file that claims to contain far more data, unpacked, than plausible."""
    if unpacked_bytes > max(UNSUSPECTED_BYTES, MAX_RATIO * packed_bytes):
        raise ValueError(
            f"{source}: {packed_bytes / 1e6:.3g} MB claim to hold {gigabytes(unpacked_bytes)} GB, as no real data do: "
            f"if they are real, {remedy}"
        )
