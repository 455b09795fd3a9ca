"""What a run is: the identity of its resolved config, its folder's name, and whether it is there already."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FREE = ("objective", "download")  # keys that change neither what a run computes nor what it leaves


IDENTITY, TYPED = "# identity: ", "# typed: "


def identity_of(entries: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that are the same for the same resolved config, and differ where any value of it does."""
    told = {key: value for key, value in entries.items() if key not in FREE}
    return hashlib.sha256(repr(_ordered(told)).encode()).hexdigest()[:12]


def _ordered(entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return tuple(sorted((repr(key), repr(_ordered(value))) for key, value in entry.items()))
    return [_ordered(part) for part in entry] if isinstance(entry, list | tuple) else entry


def folder_name(entries: Mapping[str, Any]) -> str:
    """What the folder of a run is called: a legal file name of at most 120 letters, its method, cluster, seed and identity."""
    cluster = entries.get("cluster")
    place = cluster.get("name") if isinstance(cluster, Mapping) else cluster
    return f"{_legal(entries.get('method'))}-{_legal(place)}-s{_legal(entries.get('seed'), max_letters=20)}-{identity_of(entries)}"


def _legal(part: Any, *, max_letters: int = 40) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", str(part))[:max_letters].strip("-._") or "x"


def config_header(identity: str, typed: Sequence[str]) -> str:
    """The comment at the top of a run's config.yaml: its identity, and what was typed to get it."""
    return f"{IDENTITY}{identity}\n{TYPED}{json.dumps(list(typed))}\n"


def typed_overrides(run: Path) -> dict[str, str]:
    """What was typed for a finished run, value by key; empty where its config.yaml does not say."""
    for line in _head(run):
        if line.startswith(TYPED):
            overrides = [override.partition("=") for override in json.loads(line.removeprefix(TYPED))]
            return {key.lstrip("+~"): value for key, _, value in overrides}
    return {}


def _head(run: Path) -> list[str]:
    try:
        with (run / "config.yaml").open(encoding="utf-8") as file:
            return [file.readline().rstrip("\n"), file.readline().rstrip("\n")]
    except (OSError, ValueError):
        return []


def finished_summary(run: Path, identity: str) -> dict[str, Any] | None:
    """The summary of the run of this identity, if this folder holds it: summary.json is the last file that a run writes."""
    if _head(run)[:1] != [IDENTITY + identity]:
        return None
    with contextlib.suppress(OSError, ValueError):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return summary if isinstance(summary, dict) else None
    return None
