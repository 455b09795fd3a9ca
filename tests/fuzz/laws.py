"""What must hold of every run of `hetsim`, whatever was typed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drawn_config import RUN, SWEEP, Config

ERROR = "hetsim: error: "
NO_RUN = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "--shell-completion", "-sc")
"""Words with which `hetsim` prints something instead of running."""
PYTHONS_OWN = r"<lambda>|<locals>|<class |object at 0x|\w+Error\b|hetsim's own code|unexpected keyword"
"""What tells a user nothing, unless a sentence quotes why a class of torch refuses its options."""


@dataclass(frozen=True)
class Finding:
    """A law that a config breaks; `cause` is the same for findings that probably have one cause."""

    number: int
    kind: str
    cause: str


@dataclass
class Ran:
    """How a config's run ended: exit status (None: it hung and was killed), seconds, what it printed, what it left."""

    config: Config
    status: int | None
    seconds: float
    stdout: str
    stderr: str
    stuck: str
    files: dict[str, Path] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What was refused, and why."""
        return [line.removeprefix(ERROR) for line in self.stderr.splitlines() if line.startswith(ERROR)]


def findings(ran: Ran) -> list[Finding]:
    """The laws that this run broke."""
    found = [*_ending(ran), *_printed(ran), *_files(ran)]
    found += [("process left", _plain(command)) for command in ran.left if ran.status is not None]
    return [Finding(ran.config.number, kind, cause) for kind, cause in dict.fromkeys(found)]


def _ending(ran: Ran) -> list[tuple[str, str]]:
    if ran.status is None:
        return [("hang", _own_line(ran.stuck) or "no Python line")]
    if ran.status < 0:
        return [("crash", f"signal {-ran.status}")]
    if ran.status not in (0, 1):
        return [("status", f"{ran.status}: {ran.stderr.strip().splitlines()[-1:]}")]
    if ran.status == 1 and "Traceback" not in ran.stderr and not ran.sentences:
        return [("no sentence", ran.stderr[-200:])]
    return []


def _printed(ran: Ran) -> list[tuple[str, str]]:
    if "Traceback" in ran.stderr + ran.stdout:
        text = ran.stderr if "Traceback" in ran.stderr else ran.stdout
        raised = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Warning|Interrupt|Exit|Failed|Lost)\b", line)]
        return [("traceback", f"{(raised or ['?'])[-1][:150]} | {_own_line(text, last=True)}")]
    sentence_lines = (ERROR, "hetsim: warning: ")
    in_summary, found, stray = False, [], []
    for line in ran.stderr.split("\n"):
        in_summary = bool(re.match(r"hetsim: \d+ of \d+ runs failed:", line)) or (in_summary and line.startswith("  "))
        if line.strip() and not in_summary and not line.startswith(sentence_lines):
            stray.append(("stray line", _plain(line)[:150]))
        if len(line) > 2000 + 4 * len(" ".join(ran.config.words)):
            found.append(("long sentence", f"{len(line) // 1000} thousand letters: {line[:100]}"))
        if line.startswith(ERROR) and " refuses " not in line and (inner := re.search(PYTHONS_OWN, line)):
            found.append(("Python's own words", f"{inner[0]} in {_plain(line)[:110]}"))
    if not ran.config.is_sweep and len(ran.sentences) > 1:
        found.append(("several sentences", ran.sentences[0][:80]))
    if ran.status == 0 and ran.sentences:
        found.append(("sentence of a run that succeeded", ran.sentences[0][:80]))
    return found + stray[:1]


def _plain(line: str) -> str:
    return re.sub(r"\d+", "N", line)


def _own_line(text: str, *, last: bool = False) -> str:
    """Where in hetsim, by a traceback: the innermost line."""
    lines = re.findall(r'File "[^"]*/(hetsim/[^"]+)", line (\d+)', text)
    return ":".join(lines[-1 if last else 0]) if lines else ""


def _files(ran: Ran) -> list[tuple[str, str]]:
    """A refused run leaves nothing, one that succeeded a whole summary; neither leaves anything elsewhere."""
    found = []
    given = set(ran.config.files)
    mine = {name: path for name, path in ran.files.items() if name not in given and not any(file.startswith(f"{name}/") for file in given)}
    if "code-ran" in mine:
        found.append(("code ran", ""))
    homes = (RUN, SWEEP)
    outside = [name for name in mine if name.split("/")[0] not in homes and name != "code-ran"]
    usual = (f"hydra.run.dir={RUN}", f"hydra.sweep.dir={SWEEP}")
    redirected = any(word.lstrip("+").startswith(("hydra.", "hydra=")) and word not in usual for word in ran.config.words)
    if outside and not redirected:
        found.append(("file elsewhere", _plain(outside[0])))
    found += [("unfinished file", name) for name in mine if name.endswith(".unfinished") and ran.status is not None]
    summaries = [path for name, path in mine.items() if name.split("/")[-1] == "summary.json"]
    if ran.status == 1 and not ran.config.is_sweep and (remaining := [name for name in mine if name.split("/")[0] in homes]):
        found.append(("refused and left", " ".join(sorted(remaining))))
    if ran.status == 1 and ran.config.is_sweep:
        found += [("refused and left", f"sweep: {names}") for names in _remains_of_sweep(mine)]
    if ran.status == 0 and not summaries and not redirected and not any(word.split("=")[0] in NO_RUN for word in ran.config.words):
        found.append(("no summary", ran.stdout[-100:]))
    found += [("summary", fault) for path in summaries if (fault := _faulty(path))]
    return found


def _remains_of_sweep(mine: dict[str, Path]) -> list[str]:
    """What a run of a sweep left that has no summary, besides its error.txt; an empty folder of the sweep."""
    folders: dict[str, set[str]] = {}
    for name in mine:
        if name.startswith(f"{SWEEP}/"):
            _, run, *rest = name.split("/")
            folders.setdefault(run, set()).update(rest[:1])
    left = [files for files in folders.values() if "summary.json" not in files and files not in ({"error.txt"}, set())]
    empty = [{"an empty folder"}] if SWEEP in mine and not folders else []
    bare = [{"an empty folder of a run"} for run, files in folders.items() if not files and mine[f"{SWEEP}/{run}"].is_dir()]
    return [" ".join(sorted(files)) for files in (*left, *empty, *bare)]


def _faulty(path: Path) -> str:
    def refused(constant: str) -> Any:
        raise ValueError(f"holds {constant}")

    try:
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refused)
    except ValueError as error:
        return str(error)[:100]
    return ""
