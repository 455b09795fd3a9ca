"""The checkpoint file: a safetensors file. Its tensor `json` contains all other data as JSON, with versions and a digest.

A safetensors file contains tensors and texts, and no code, so reading it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from hetsim import checks
from hetsim.errors import RunFailed
from hetsim.files.writing import written_whole
from hetsim.plain import Tensors, Unreadable, field_names, from_plain, hints, reachable, to_plain
from hetsim.runtime.experiment import Experiment
from hetsim.runtime.rank import Checkpoint
from hetsim.runtime.recording.curve import Point
from hetsim.version import __version__

FORMAT = 2
"""The version of the format. Other versions are refused, because a run that continues differently is worse than none."""
JSON = "json"
KEYS = ("config", "checkpoint")


def classes_of(experiment: Experiment) -> dict[str, type]:
    """The classes of a run's state by name: those that its types name, and those in the modules of the user's own policies."""
    coordination = experiment.coordination
    kinds: list[Any] = [Checkpoint, Point, *coordination.keeps]
    for policy in (coordination, *(getattr(coordination, field.name) for field in fields(coordination))):
        kinds.append(hints(getattr(type(policy), "initial", None)).get("return"))
        module = type(policy).__module__
        if module.split(".")[0] not in ("hetsim", "builtins"):
            kinds += [kind for kind in vars(sys.modules[module]).values() if isinstance(kind, type) and field_names(kind) is not None]
    return reachable(*kinds)


def pack_state(value: Any) -> bytes:
    """A value as bytes, for another process of the same run. Raises RunFailed for a class that no checkpoint may contain."""
    tensors: Tensors = {}
    try:
        text = json.dumps(to_plain(value, tensors), allow_nan=False).encode()
    except TypeError as error:
        raise RunFailed(str(error)) from None
    return _serialise(np.frombuffer(text, np.uint8), dict(tensors.values()))


def unpack_state(content: bytes, classes: Mapping[str, type]) -> Any:
    """The inverse of `pack_state`. Objects have only these classes. Raises RunFailed for invalid content."""
    from safetensors import SafetensorError, deserialize

    tensors: dict[str, Any] = {}
    try:
        if all(name == JSON for name, _ in deserialize(content)):  # type: ignore[no-untyped-call]
            from safetensors.numpy import load as load_arrays

            text = load_arrays(content)[JSON].tobytes()
        else:
            from safetensors.torch import load

            tensors = load(content)
            text = tensors[JSON].numpy().tobytes()
        return from_plain(Any, json.loads(text), tensors=tensors, classes=classes)
    except (SafetensorError, Unreadable, ValueError, LookupError, RecursionError) as error:
        raise RunFailed(f"a rank sent a state that cannot be read ({error}): run the same version of hetsim on all hosts") from None


def write(path: Path, *, config: str, checkpoint: Any) -> None:
    """Write a checkpoint and its run's config atomically: the complete file gets its name, or there is no file."""
    tensors: Tensors = {}
    text = json.dumps({"config": config, "checkpoint": to_plain(checkpoint, tensors)}, allow_nan=False).encode()
    content = _serialise(np.frombuffer(text, np.uint8), dict(tensors.values()))
    with written_whole(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _serialise(text: Any, tensors: Mapping[str, Any]) -> bytes:
    if not tensors:  # a phantom's run does not import torch
        from safetensors.numpy import save as save_arrays

        return bytes(save_arrays({JSON: text}, metadata=_metadata(text, {})))
    import torch
    from safetensors.torch import save

    separate = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # parts of one vector are saved apart
    return bytes(save({JSON: torch.from_numpy(text.copy()), **separate}, metadata=_metadata(text, separate)))


def _metadata(text: Any, tensors: Mapping[str, Any]) -> dict[str, str]:
    return {"format": str(FORMAT), "hetsim": __version__, "sha256": digest(text, tensors)}


def digest(text: Any, tensors: Mapping[str, Any]) -> str:
    """The digest of the JSON, and of every tensor with its name, type and shape."""
    sha256 = hashlib.sha256(text.data)
    for name in sorted(tensors):
        tensor = tensors[name]
        sha256.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.reshape(-1).view(sys.modules["torch"].uint8).numpy().data if tensor.numel() else b"")
    return sha256.hexdigest()


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries of the JSON, and the tensors. Raises ValueError unless the file is a complete checkpoint of this version."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise ValueError(f"{path} is a link, and is not followed: put the file itself there")
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("it is not a file")
        return _read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error}): {REMEDY}") from None
    except Unreadable as error:
        raise ValueError(f"{path} is not a complete checkpoint ({checks.printable(str(error))}): {REMEDY}") from None


REMEDY = "remove it to resume from the one before, if there is one"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            about, names = file.metadata() or {}, set(file.keys()) - {JSON}
            _check_versions(path, about)
            text = file.get_tensor(JSON)
        tensors: dict[str, Any] = {}
        if names:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in names}
        if text.dtype != np.uint8 or text.ndim != 1:
            raise Unreadable("its JSON is none")
        if digest(text, tensors) != about.get("sha256"):
            raise Unreadable("its contents are not those that were written")
        entries = json.loads(text.tobytes())
    except (SafetensorError, UnicodeDecodeError, RecursionError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise Unreadable(" ".join(str(error).split())[:150]) from None
    if not isinstance(entries, dict) or set(entries) != set(KEYS) or not isinstance(entries["config"], str):
        raise Unreadable("its JSON is not that of a checkpoint")
    return entries, tensors


def _check_versions(path: Path, about: Mapping[str, str]) -> None:
    """Raise ValueError for the file of another program, or of another version of the format."""
    if "format" not in about or "hetsim" not in about:
        raise Unreadable("it is not hetsim's")
    if about["format"] != str(FORMAT):
        raise ValueError(
            f"{path} has format {checks.shown(about['format'])}, of hetsim {checks.shown(about['hetsim'])}, and hetsim {__version__} reads "
            f"format {FORMAT} alone: resume it with that version"
        )
