"""The identity of a run: a hash of its resolved config. It names the folder, and shows whether a folder contains the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim.files.folder import FILES, UNFINISHED
from hetsim.files.keys import AS_TYPED, CHANGE_NO_FILE, without
from hetsim.files.reading import REMEDY, from_json, is_text, read_text, shown
from hetsim.files.summary_and_curve import read_summary
from hetsim.trust.shipped import choice

IDENTITY, TYPED = "# identity: ", "# typed: "
"""The beginnings of the first lines of a run's config.yaml."""

MAX_NESTED = 8
"""The depth from which a mapping is replaced by its hash, because quoting at each level would double its length."""


def identity_of(entries: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits. They are equal for equal resolved configs, and differ if any value differs that may change a file.

    Numbers count by value: 1 and 1.0 are equal.
    """
    return hashlib.sha256(repr(_order(without(entries, CHANGE_NO_FILE))).encode()).hexdigest()[:12]


def _order(entry: Any, key: str = "", depth: int = 0) -> Any:
    if isinstance(entry, Mapping):
        within = key if key in AS_TYPED else ""
        ordered = tuple(sorted((repr(name), repr(_order(value, within or str(name), depth + 1))) for name, value in entry.items()))
        return ordered if depth < MAX_NESTED else hashlib.sha256(repr(ordered).encode()).hexdigest()
    if isinstance(entry, list | tuple):
        return [_order(part, key, depth + 1) for part in entry]
    return entry if key in AS_TYPED else number(entry)


def number(value: Any) -> Any:
    """A whole number without a decimal point. Other values are unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def folder_name(entries: Mapping[str, Any], identity: str) -> str:
    """The name of a run's folder within a sweep's folder: method, cluster, seed, backend and identity.

    It is a legal file name of at most 130 letters.
    """
    cluster, backend = entries.get("cluster"), entries.get("backend")
    place = cluster.get("name") if isinstance(cluster, Mapping) else cluster
    seed = legal(number(entries.get("seed")), max_letters=20)
    world = legal(choice("backend", backend) if isinstance(backend, Mapping) else None, max_letters=8)
    return f"{legal(entries.get('method'))}-{legal(place)}-s{seed}-{world}-{identity}"


def legal(part: Any, *, max_letters: int = 40) -> str:
    """A value as a part of a file name, without path separators."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", str(part))[:max_letters].strip("-._") or "x"


def config_header(identity: str, typed: Sequence[str]) -> str:
    """The comment lines at the top of a run's config.yaml: identity and typed overrides."""
    return f"{IDENTITY}{identity}\n{TYPED}{json.dumps(list(typed))}\n"


def typed_overrides(run: Path) -> dict[str, str]:
    """The typed overrides of a finished run, by key. Empty if its config.yaml has no such line."""
    for line in _head(run):
        if line.startswith(TYPED):
            source = f"the line {TYPED.strip()!r} of {run / 'config.yaml'}"
            typed = from_json(source, line.removeprefix(TYPED))
            if not isinstance(typed, list) or not all(map(is_text, typed)):
                raise ValueError(f"{source} must hold a list of texts, not {shown(typed)}: {REMEDY}")
            return {key.lstrip("+~"): unescaped(value) for key, _, value in (override.partition("=") for override in typed)}
    return {}


def unescaped(value: str) -> str:
    """A value without the backslashes that Hydra puts before spaces and brackets in a sweep's arguments."""
    return value if value[:1] in ("'", '"') else re.sub(r"\\([\\()\[\]{}:=, \t])", r"\1", value)


def _head(run: Path) -> list[str]:
    path = run / "config.yaml"
    return read_text(path).split("\n", 2)[:2] if path.exists() else []


def finished_summary(run: Path, identity: str) -> dict[str, Any] | None:
    """The summary of the run with this identity; None if the folder does not contain it. A run writes summary.json last."""
    with contextlib.suppress(ValueError):
        return read_summary(run) if _head(run)[:1] == [IDENTITY + identity] else None
    return None


def check_holds_no_other(run: Path, identity: str) -> None:
    """Raise ValueError if the folder contains a finished run with another identity, or files of no run, which would be replaced."""
    names = [name for name in FILES if (run / name).exists()]
    if not names or _head(run)[:1] == [IDENTITY + identity]:
        return
    if "summary.json" in names:
        raise ValueError(
            f"{run} holds another finished run: choose another folder by hydra.run.dir or hydra.sweep.subdir, or remove that run"
        )
    if not any(run.glob(UNFINISHED)) and not "".join(_head(run)).startswith(IDENTITY):  # else a run was killed at its end
        raise ValueError(
            f"{run / names[0]} is of no run and would be replaced: choose another folder by hydra.run.dir or hydra.sweep.subdir, or move it"
        )


def identity_in(config: str) -> str | None:
    """The identity in the first line of a run's config; None if the line contains none."""
    first = config.partition("\n")[0]
    return first.removeprefix(IDENTITY) if first.startswith(IDENTITY) else None
