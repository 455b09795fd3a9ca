"""Files that a command writes where its user says. Such a file replaces an earlier output of the same command, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hetsim.files.reading import check_is_no_link

MARKS = {
    "csv": r'factor\n|trial,state,|[^\n]*"diverged_runs","target_accuracy"',
    "html": r'<!doctype html>\n<html lang="en">\n<head>\n<meta name="generator" content="{}">',
    "json": r'{{\n  "generator": "{}"',
    "jsonl": r'{{"question": "',
    "md": r"(\*\*[^\n]*\n\n)?\|( [^\n]* \|)? runs \|[^\n]*\n\|---\|",
    "parquet": r"PAR1.*generator.{{1,4}}{}",
    "pftrace": r"\n.\xea\x02.\x22.{}",
    "png": r"\x89PNG.{{37}}Software\x00{}",
    "yaml": r"# \w+ by {} ",
}
"""By kind of output: how files begin that the command {} has written. Tables and lines of JSON have no place for its name."""
HEAD, TAIL = 4096, 2**20
"""The bytes at both ends of a file that are compared. The end of a Parquet file describes it."""


def check_output(option: str, path: Path, kind: str, writer: str, *, reads: Iterable[Path] = ()) -> None:
    """Raise ValueError if a file cannot be written, or would replace one that the command reads or has not written.

    Args:
        option: the name of the option, for the sentence.
        path: the file to write.
        kind: a key of `MARKS`.
        writer: the name of the command.
        reads: files that the command reads.
    """
    name = f"{option} {path}".strip()
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{name} is in no folder that exists: make it")
    check_is_no_link(path)
    if not path.exists():
        return
    if not path.is_file():
        raise ValueError(f"{name} is there already, and is not a file: give another name")
    if any(source.exists() and source.samefile(path) for source in reads):
        raise ValueError(f"{name} would replace a file that the command reads: give another name")
    if path.stat().st_size and not is_output(path, kind, writer):
        raise ValueError(f"{name} would replace a file that is no earlier output of {writer}: give another name, or move that file away")


def is_output(path: Path, kind: str, writer: str) -> bool:
    """Whether this command has written this file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        content = file.read(HEAD)
        file.seek(max(HEAD, path.stat().st_size - TAIL))
        content += file.read()
    return re.match(MARKS[kind].format(writer).encode("latin-1"), content, re.DOTALL) is not None


def check_outputs_in(option: str, folder: Path, names: Iterable[str], writer: str) -> None:
    """Raise ValueError as `check_output` does, for files of these names in a folder, which need not exist."""
    check_is_no_link(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{option} {folder} is no folder: give another name")
    for path in (folder / name for name in names) if folder.exists() else ():
        check_output(option, path, path.suffix[1:], writer)
