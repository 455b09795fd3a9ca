"""The config of a resumed run: the saved config, with those typed values that may differ."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetsim import checks
from hetsim.checkpoints.folder import has_checkpoints, newest
from hetsim.config.resolved import resolved
from hetsim.config.sources import check_plain
from hetsim.files.config_file import flattened, parsed, read_config
from hetsim.files.identity import finished_summary, identity_of
from hetsim.files.keys import PLAIN

Entries = dict[str, Any]
"""A config whose references are resolved."""
GROUPS = ("cluster", "backend")
"""Groups of which another choice may be typed: for other nodes, or in the other world."""
MAY_CHANGE = tuple(key for key, kind in PLAIN.items() if kind.may_change)
"""Keys that may be typed, which change numbers at most in the last bits."""
WITHIN = re.compile(r"(budget|checkpoint|cluster|backend)(\..+)?|workload\.(path|data_root|download|loader_workers)")
"""Keys inside other keys that may be typed."""


def resumed(entries: Entries, words: Sequence[str], folder: Path) -> Entries:
    """The config of the run to start: this one, unless it resumes a run. Raises ValueError if it cannot resume.

    The resumed folder may be a stranger's. Its config is read like any config that is not hetsim's own, without its `trust`.
    """
    if "resume=auto" in words:
        entries = {**entries, "resume": str(folder) if has_checkpoints(folder) else None}
    if entries.get("resume") is None:
        return entries
    keys = {word.partition("=")[0].lstrip("+~") for word in words}
    if "resume" not in keys:
        raise ValueError("resume is set by a config file, but only the command line may set it: type resume=FOLDER")
    path = resumed_file(entries["resume"])
    assert path is not None
    saved = _saved_entries(path)
    _check_agree({key for key in keys if not _may_differ(key)}, entries, saved)
    for key in filter(_may_differ, keys):
        top = key.split("@")[0].split(".")[0]
        _set(saved, top if top in GROUPS and top in keys else key, entries)
    saved["resume"] = entries["resume"]
    saved["trust"] = entries["trust"] if "trust" in keys else []
    for place in (saved, saved.get("workload")):
        if isinstance(place, dict) and "download" in place and "download" not in keys:
            place["download"] = False
    return saved


def finished_already(entries: Entries, words: Sequence[str], folder: Path) -> dict[str, Any] | None:
    """The summary of a run that was to resume, if its folder contains it, finished at its first start or after any resume. Else None."""
    if entries.get("resume") is None and "resume=auto" not in words:
        return None
    try:
        last = read_config(folder).get("resume")
    except ValueError:
        return None
    identities = [identity_of({**entries, "resume": resume}) for resume in (None, last)]
    return next(filter(None, (finished_summary(folder, identity) for identity in identities)), None)


def resumed_file(resume: Any) -> Path | None:
    """The checkpoint file to resume from; None for a new run."""
    if resume is None:
        return None
    if not isinstance(resume, str) or not resume:
        raise ValueError(f"resume must be the folder of a run, not {checks.shown(resume)}")
    return newest(Path(resume))


def _may_differ(key: str) -> bool:
    return key in MAY_CHANGE or key in GROUPS or key == "resume" or WITHIN.fullmatch(key) is not None


def _check_agree(keys: Collection[str], typed: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise ValueError if the value of one of these keys differs from the saved run's.

    A key without a value, such as experiment, may have set any other, so all are compared.
    """
    names = {key.split("@")[0] for key in keys}
    all_are = any(name not in typed for name in names if "." not in name)
    all_typed, all_saved = dict(flattened(typed)), dict(flattened(saved))
    for name in dict.fromkeys((*all_typed, *all_saved)) if keys else ():
        concerned = all_are or any(f"{name}.".startswith(f"{key}.") for key in names)
        value, saved_value = all_typed.get(name), all_saved.get(name)
        if concerned and not _may_differ(name) and value != saved_value:
            which = f"{checks.printable(name)}={checks.shown(value)} is not {checks.shown(saved_value)}"
            raise ValueError(
                f"{which}, as of the run in resume={typed['resume']}, which keeps its keys: leave it out; "
                f"you may change budget, checkpoint, {', '.join((*GROUPS, *MAY_CHANGE))}"
            )


def _saved_entries(path: Path) -> Entries:
    """The config of the run in a checkpoint."""
    from hetsim.checkpoints.file import read

    entries = resolved(parsed(path, read(path)[0]["config"]))
    check_plain(entries, path, remedy="begin the run again, and type the value")
    if "hydra" in entries or "grid" in entries:
        raise ValueError(f"{path} has a config with keys of Hydra's, which no run has: take another checkpoint")
    return entries


def _set(entries: Entries, key: str, typed: Mapping[str, Any]) -> None:
    """Replace the saved run's value of a key by the typed one."""
    *above, last = key.split(".")
    place: Any = entries
    value: Any = typed
    for name in above:
        place, value = place.setdefault(name, {}), value.get(name)
        if not isinstance(place, dict) or not isinstance(value, Mapping):
            raise ValueError(f"{key} does not fit the run's config: type the whole group")
    place[last] = value.get(last)
    if key in ("data_root", "download") and isinstance(entries.get("workload"), dict) and key in entries["workload"]:
        entries["workload"][key] = place[last]
