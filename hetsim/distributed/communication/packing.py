"""A commit as plain data for another process: JSON, and the tensors in it. Nothing is unpickled, and no code of a peer is called.

A value object of hetsim, or of a module that this process has imported for the same run, is a name and its fields.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hetsim.coordination.plan import Split
from hetsim.coordination.pools import Cursors
from hetsim.distributed.communication.transport import Transport
from hetsim.errors import RunFailed
from hetsim.vector import Phantom

PIECE_BYTES = 2**24
"""Bytes of a tensor that are sent at a time."""
CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def packed(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What JSON can hold of this value; the tensors in it are appended to `tensors`."""
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().cpu().contiguous())
        return {"tensor": len(tensors) - 1, "type": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        return {"array": packed(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
    if isinstance(value, np.generic):
        return {"number": value.item(), "type": value.dtype.name}
    if isinstance(value, Cursors):
        return {"cursors": list(value.of)}
    if isinstance(value, Phantom):
        return {"phantom": value.nbytes}
    if isinstance(value, dict):
        return {"dict": [[packed(key, tensors), packed(each, tensors)] for key, each in value.items()]}
    if isinstance(value, Split):
        value = tuple(value)
    cls = type(value)
    if cls.__name__ in CONTAINERS and cls is CONTAINERS[cls.__name__]:
        return {cls.__name__: [packed(each, tensors) for each in value]}
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names = list(value._fields)
    else:
        raise RunFailed(f"{cls.__module__}.{cls.__qualname__} in the state of a run cannot be sent to another process: make it a dataclass")
    fields = {name: packed(getattr(value, name), tensors) for name in names}
    return {"class": [cls.__module__, cls.__qualname__], "fields": fields}


def unpacked(plain: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that `packed` made this of."""
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        return tensors[plain["tensor"]]
    if "array" in plain:
        return unpacked(plain["array"], tensors).numpy()
    if "number" in plain:
        return np.dtype(plain["type"]).type(plain["number"])
    if "cursors" in plain:
        return Cursors(plain["cursors"])
    if "phantom" in plain:
        return Phantom(plain["phantom"])
    if "dict" in plain:
        return {unpacked(key, tensors): unpacked(each, tensors) for key, each in plain["dict"]}
    if "class" in plain:
        return _object(_class(*plain["class"]), {name: unpacked(each, tensors) for name, each in plain["fields"].items()})
    (kind, values), *_ = plain.items()
    return CONTAINERS[kind](unpacked(each, tensors) for each in values)


def _class(module: str, name: str) -> Any:
    cls: Any = sys.modules.get(module)
    for part in name.split("."):
        cls = getattr(cls, part, None)
    if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))):
        return cls
    raise RunFailed(f"another process sent a state with {module}.{name}, which is not known here: the run is lost")


def _object(cls: Any, fields: dict[str, Any]) -> Any:
    """An object with these fields; its constructor is not called."""
    if issubclass(cls, tuple):
        return tuple.__new__(cls, fields.values())
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def send(value: Any, transport: Transport, to: int) -> None:
    """Send a value to a rank that calls `receive`. Only bytes go by gloo, as an exchange of bytes ends when a rank is lost."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(packed(value, tensors)).encode()
    about = [[str(each.dtype).removeprefix("torch."), list(each.shape)] for each in tensors]
    transport.send_bytes([text], to)
    transport.send_bytes([json.dumps(about).encode()], to)
    for each in tensors:
        content = memoryview(each.reshape(-1).view(torch.uint8).numpy().data) if each.numel() else b""
        transport.send_bytes((bytes(content[start : start + PIECE_BYTES]) for start in range(0, len(content), PIECE_BYTES)), to)


def receive(transport: Transport, source: int) -> Any:
    """A value that `source` sends by `send`; its tensors are in the CPU's memory."""
    plain, about = (json.loads(b"".join(transport.receive_bytes(source))) for _ in range(2))
    tensors = [torch.empty(shape, dtype=getattr(torch, kind)) for kind, shape in about]
    for each in tensors:
        content = bytearray().join(transport.receive_bytes(source))
        if each.numel():
            each.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(content, dtype=torch.uint8))
    return unpacked(plain, tensors)
