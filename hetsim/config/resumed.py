"""The config of a resumed run: the saved config, with those typed values that may differ."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hetsim import checks
from hetsim.checkpoints.folder import has_checkpoints, newest
from hetsim.config.guard.references import check_keys, check_references
from hetsim.config.guard.resolvers import restrict
from hetsim.config.written_config import entries_of, identity
from hetsim.files.config_file import flattened, parsed, read_config
from hetsim.files.identity import finished_summary

GROUPS = ("cluster", "backend")
"""Groups of which another choice may be typed: for other nodes, or in the other world."""
PLAIN = ("trace", "pictures", "threads", "device", "data_root", "download", "trust", "save_weights", "nonfinite", "logger")
"""Keys that may be typed, which change numbers at most in the last bits."""
WITHIN = re.compile(r"(budget|checkpoint|cluster|backend)(\..+)?|workload\.(path|data_root|download|loader_workers)")
"""Keys inside other keys that may be typed."""


def automatic(config: DictConfig, typed: Sequence[str], folder: Path) -> DictConfig:
    """The config with a typed `resume=auto` replaced by the unfinished run in this folder, or by none."""
    if "resume=auto" not in typed:
        return config
    found = OmegaConf.merge(config, {"resume": str(folder) if has_checkpoints(folder) else None})
    assert isinstance(found, DictConfig)
    return found


def finished_already(config: DictConfig, typed: Sequence[str], folder: Path) -> dict[str, Any] | None:
    """The summary of a run that was to resume, if the folder contains it, finished at its first start or after any resume. Else None."""
    if config.get("resume") is None and "resume=auto" not in typed:
        return None
    try:
        resumed = read_config(folder).get("resume")
    except ValueError:
        return None
    entries = entries_of(config)
    return next(filter(None, (finished_summary(folder, identity({**entries, "resume": each})) for each in (None, resumed))), None)


def resumed_file(resume: Any) -> Path | None:
    """The checkpoint file to resume from; None for a new run."""
    if resume is None:
        return None
    if not isinstance(resume, str) or not resume:
        raise ValueError(f"resume must be the folder of a run, not {checks.shown(resume)}")
    return newest(Path(resume))


def with_resumed(config: DictConfig, typed: Sequence[str]) -> DictConfig:
    """The config to run: this one, unless it resumes a run. Raises ValueError if it cannot resume.

    The resumed folder may be a stranger's. Its config is read like any untrusted config file, without its `trust`.
    """
    words = {key: override for override in typed for key in (override.partition("=")[0].lstrip("+~"),)}
    if config.get("resume") is None:
        return config
    if "resume" not in words:
        raise ValueError("resume is set by a config file, but only the command line may set it: type resume=FOLDER")
    path = resumed_file(config.resume)
    assert path is not None
    entries = _entries(path)
    own = {key for key in words if not _may_differ(key)}
    if own:
        from hetsim.config.resolved import resolved

        _check_agree(own, resolved(entries_of(config)), resolved(entries), str(config.resume))
    for key in (key for key in words if key not in own):
        top = key.split("@")[0].split(".")[0]
        _set(entries, top if top in GROUPS and top in words else key, config)
    entries["resume"] = str(config.resume)
    entries["trust"] = OmegaConf.to_container(config, resolve=False)["trust"] if "trust" in words else []  # type: ignore[index,call-overload]
    for place in (entries, entries.get("workload")):
        if isinstance(place, dict) and "download" in place and "download" not in words:
            place["download"] = False
    return restrict(OmegaConf.create(entries))


def _may_differ(key: str) -> bool:
    return key in PLAIN or key in GROUPS or key == "resume" or WITHIN.fullmatch(key) is not None


def _check_agree(keys: Collection[str], typed: Mapping[str, Any], saved: Mapping[str, Any], resume: str) -> None:
    """Raise ValueError if the value of one of these keys differs from the saved run's.

    A key without a value, such as experiment, may have set any other, so all are compared.
    """
    parts = {key.split("@")[0] for key in keys}
    all_are = any(part not in typed for part in parts if "." not in part)
    all_typed, all_saved = dict(flattened(typed)), dict(flattened(saved))
    for name in dict.fromkeys((*all_typed, *all_saved)):
        its = all_are or any(f"{name}.".startswith(f"{part}.") for part in parts)
        one, other = all_typed.get(name), all_saved.get(name)
        if its and not _may_differ(name) and one != other:
            raise ValueError(
                f"{checks.printable(name)}={checks.shown(one)} is not {checks.shown(other)}, as of the run in resume={resume}, "
                f"which keeps its keys: leave it out; you may change budget, checkpoint, {', '.join((*GROUPS, *PLAIN))}"
            )


def _entries(path: Path) -> dict[str, Any]:
    """The config of the run in a checkpoint, with its references."""
    from hetsim.checkpoints.file import read

    loaded: Mapping[str, Any] = parsed(path, read(path)[0]["config"])
    entries = {str(key): value for key, value in loaded.items()}
    check_references("", entries, path, "begin the run again, and type the value")
    check_keys(entries, path)
    if "hydra" in entries or "grid" in entries:
        raise ValueError(f"{path} has a config with keys of Hydra's, which no run has: take another checkpoint")
    return entries


def _set(entries: dict[str, Any], key: str, config: DictConfig) -> None:
    """Replace the saved run's value of a key by the typed one."""
    value = OmegaConf.select(config, key)
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    *above, last = key.split(".")
    place: Any = entries
    for name in above:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ValueError(f"{key} does not fit the run's config: type the whole group")
    place[last] = value
    if key in ("data_root", "download") and isinstance(entries.get("workload"), dict) and key in entries["workload"]:
        entries["workload"][key] = value
