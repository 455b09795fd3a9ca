"""The answers that an advice keeps in its folder to resume from: JSON lines, by the hash of the question."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from hetsim.config.guard.folders import check_folder
from hetsim.files.reading import check_is_no_link
from hetsim.files.writing import part_from_hard_links
from hetsim.sweeps.space import meant
from hetsim.version import __version__

FILE = "answers.jsonl"
WORDS = ("run", "words", "sizes")
"""The parts of a question that are hetsim arguments, which may have several spellings."""


class Answers:
    """Earlier answers to the same questions about the same experiment. Every new answer is stored, too."""

    def __init__(self, folder: Path, described: str) -> None:
        check_folder("folder", folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / FILE
        check_is_no_link(self._file)
        part_from_hard_links(self._file)
        self._described = f"{__version__} {described}"
        self._known: dict[str, dict[str, Any]] = {}
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        for line in text.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last one of a command that was killed
                entry = json.loads(line)
                self._known[entry["question"]] = entry["answer"]
        self._before = "" if not text or text.endswith("\n") else "\n"
        self._lock = Lock()

    def get(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None if the question is new."""
        return self._known.get(self._key(question))

    def keep(self, question: dict[str, Any], answer: dict[str, Any]) -> None:
        """Write the answer to the file."""
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(f"{self._before}{json.dumps({'question': self._key(question), 'answer': answer})}\n")
            self._before = ""

    def _key(self, question: dict[str, Any]) -> str:
        its = {key: meant(value) if key in WORDS else value for key, value in question.items()}
        return hashlib.sha256(f"{self._described} {json.dumps(its, sort_keys=True)}".encode()).hexdigest()
