"""The files of an answer: JSON, pictures, and an HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hetsim.answers.answer import Answer, Picture
from hetsim.answers.html import document
from hetsim.answers.text import as_json
from hetsim.checks import printable
from hetsim.files.outputs import check_output, check_outputs_in
from hetsim.files.writing import write_text, written_whole
from hetsim.results.writing.figures import save

PICTURES = ("timeline.png", "curve.png")
"""The pictures of a comparison."""


@dataclass(frozen=True, kw_only=True)
class AnswerFiles:
    """The files to write; None for those that nobody has asked for."""

    writer: str
    """The command that writes them."""
    json: Path | None = None
    picture: Path | None = None
    """The first picture, as PNG."""
    pictures: Path | None = None
    """The folder of all pictures."""
    html: Path | None = None

    def check(self) -> None:
        """Raise ValueError if one of the files cannot be written, or would replace another file."""
        if self.html is not None:
            check_place(self.html, "--html", "html", self.writer)
        if self.json is not None:
            check_output("--json", self.json, "json", self.writer)
        if self.picture is not None:
            check_place(self.picture, "--picture", "png", self.writer)
        if self.pictures is not None:
            check_outputs_in("--pictures", self.pictures, PICTURES, self.writer)

    def write(self, answer: Answer) -> list[str]:
        """Write the files, each completely or not at all. Returns a line for the pictures and one for the report."""
        return list(self._write_files(answer))

    def _write_files(self, answer: Answer) -> Iterator[str]:
        if self.json is not None:
            write_text(self.json, as_json(answer, self.writer) + "\n")
        if self.picture is not None:
            _write_picture(answer.pictures[0], self.picture, self.writer)
        if self.pictures is not None:
            write_pictures(answer, self.pictures, self.writer)
            yield f"pictures in {printable(os.path.relpath(self.pictures))}"
        if self.html is not None:
            write_text(self.html, document(answer, self.writer))
            yield f"report in {printable(os.path.relpath(self.html))}"


def check_place(file: Path, option: str, kind: str, writer: str) -> None:
    """Raise ValueError if the file of this option has another ending, cannot be written, or would replace another file."""
    if file.suffix.lower() != f".{kind}":
        raise ValueError(f"{option} {printable(str(file))} must end in .{kind}")
    check_output(option, file, kind, writer)


def write_pictures(answer: Answer, folder: Path, writer: str) -> None:
    """Draw all pictures with data into a folder."""
    check_outputs_in("", folder, [f"{picture.name}.png" for picture in answer.pictures], writer)
    folder.mkdir(parents=True, exist_ok=True)
    for picture in answer.pictures:
        _write_picture(picture, folder / f"{picture.name}.png", writer)


def _write_picture(picture: Picture, path: Path, writer: str) -> None:
    if (figure := picture.draw()) is not None:
        with written_whole(path) as file:
            save(figure, file, writer)
