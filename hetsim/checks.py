"""Checks of input. Each raises ValueError with one sentence: the key, the value, and what to do."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any

MIN_SECONDS, MAX_SECONDS = 1e-15, 1e12
"""The bounds of a described time: a femtosecond, and 30,000 years. Sums and quotients of such times stay within a float."""
MAX_SHOWN = 200
MAX_SUGGESTED, MAX_OPTIONS = 100, 1000
"""The maximum length of a name for suggestions, and the maximum number of options to compare."""
"""Letters of a wrong value that a sentence shows."""
ACCELERATORS = ("cuda",)
"""The kinds of devices besides the CPU. `hetsim.workloads.device` has a class for each."""
DEVICE = re.compile(rf"auto|cpu|({'|'.join(ACCELERATORS)})(:(0|[1-9][0-9]{{0,3}}))?")
_hidden = ContextVar("_hidden", default=False)
MOST = 10**15
"""The default bound of whole numbers. Sums and products fit into 64 bits or a float."""


def number(key: str, value: Any, *, zero: bool = False) -> float:
    """A finite number above zero, or of at least zero with `zero`."""
    if value == "???":  # as OmegaConf writes what is to be filled in
        raise ValueError(f"{key} is missing: give it a value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key} must be a number, not {shown(value)}")
    if not finite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{key} must be a finite number {'of at least' if zero else 'above'} zero, not {shown(value)}")
    return float(value)


def finite(value: float) -> bool:
    """Whether the number is finite. Integers of over 63 bits are not, because neither a float nor torch can represent them."""
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)


@contextlib.contextmanager
def values_hidden() -> Iterator[None]:
    """Within this context, errors show no values. For a file that a config names, because somebody else may have chosen it."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def shown(value: Any) -> str:
    """A value for an error, in at most `MAX_SHOWN` letters."""
    if _hidden.get():
        return "what the file says"
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of over 4300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} …"


def fraction(key: str, value: Any) -> float:
    """A number of at least zero and below one."""
    if number(key, value, zero=True) >= 1:
        raise ValueError(f"{key} must be at least 0 and below 1, not {shown(value)}")
    return float(value)


def seconds(key: str, value: Any, *, zero: bool = False) -> float:
    """A time within MIN_SECONDS and MAX_SECONDS, or with `zero` also zero."""
    if number(key, value, zero=zero) and not MIN_SECONDS <= value <= MAX_SECONDS:
        raise ValueError(f"{key} must be between {MIN_SECONDS:g} and {MAX_SECONDS:g} seconds, not {shown(value)}")
    return float(value)


def whole(key: str, value: Any, *, least: int = 1, most: int = MOST) -> int:
    """A whole number of at least `least` and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{key} must be a whole number, not {shown(value)}")
    if value < least:
        raise ValueError(f"{key} must be at least {least}, not {shown(value)}")
    if value > most:
        raise ValueError(f"{key} must be at most {most}, not {shown(value)}")
    return value


MAX_NAME = 1000
"""The length of a name, in letters."""


def name(key: str, value: Any) -> str:
    """A non-empty text of at most `MAX_NAME` printable letters. Readers of finished runs refuse longer ones."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a name, not {shown(value)}: summaries and pictures show it")
    if not value.isprintable():
        raise ValueError(f"{key} must have printable letters only, not {shown(value)}: summaries and pictures show it")
    if len(value) > MAX_NAME:
        raise ValueError(f"{key} must have at most {MAX_NAME} letters, not {len(value)}: shorten it")
    return value


def without(key: str) -> str:
    """The argument that leaves a key out, for a shell."""
    return f"add {shlex.quote(f'~{key}')} to leave it out"


def one_line(text: str) -> str:
    """A text in one line of printable letters."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """A text for a terminal, with control characters escaped."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def entries_below(folder: Path) -> Iterator[Path]:
    """All files and folders below a folder, including links; none if it is no folder. Raises ValueError for an unreadable folder.

    pathlib's `rglob` skips a folder that it may not list, although files in it with known names may be readable.
    """

    def refuse(error: OSError) -> None:
        raise ValueError(f"{error.filename} cannot be looked into ({error.strerror}): change its permissions, or take another folder")

    for place, folders, files in os.walk(folder, onerror=refuse) if folder.is_dir() else ():
        yield from (Path(place, name) for name in (*folders, *files))


def flag(key: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, not {shown(value)}")
    return value


def choice(key: str, value: Any, options: Sequence[str]) -> str:
    """One of the options."""
    if value not in options:
        raise ValueError(f"{key} must be {' or '.join(options)}, not {shown(value)}{suggestion(value, options)}")
    return str(value)


def device(key: str, value: Any) -> str:
    """The name of a device, or auto."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        names = ", ".join(f"{kind}, {kind}:K" for kind in ACCELERATORS)
        raise ValueError(f"{key} must be cpu, {names} or auto, not {shown(value)}")
    return value


OTHER_NAMES = {
    "network": "bandwidth net nic ethernet card uplink",
    "bytes_per_second": "bandwidth rate speed",
    "inside": "nvlink pcie interconnect intra bandwidth",
    "up": "upload uplink",
    "down": "download downlink",
    "latency_seconds": "latency delay ping",
    "seconds_per_sample": "seconds time time_per_sample sample_time step_time compute",
    "max_samples": "max_batch max_batch_size max_bs memory vram",
    "micro_batch": "micro_batch_size microbatch",
    "count": "number num n replicas copies",
    "gpus": "gpu accelerators devices cards",
    "speed": "relative_speed slowness",
    "cost_per_hour": "price cost price_per_hour cost_per_gpu",
    "ddp": "allreduce all_reduce data_parallel dp torch_ddp distributed_data_parallel",
    "local_sgd": "fedavg federated_averaging post_local_sgd",
    "ssgd": "sgd sync synchronous bsp",
    "asgd": "async asynchronous downpour hogwild",
    "dbs": "proportional balanced load_balanced by_speed",
    "amp": "bf16 bfloat16 mixed mixed_precision bf16_mixed fp16_mixed autocast",
    "fp16": "half float16 16",
    "fp32": "float32 float full single tf32 32",
    "bfloat16": "bf16 amp mixed",
}
"""Keys and choices of hetsim, and what they are called elsewhere."""


def suggestion(value: Any, options: Collection[str]) -> str:
    """'; did you mean …?' with the option of this other name, or the closest one, ignoring case; an empty string if none is close."""
    if len(str(value)) > MAX_SUGGESTED:
        return ""
    word = str(value).lower().replace("-", "_")
    if meant := [option for option, words in OTHER_NAMES.items() if option in options and word in words.split()]:
        return f"; did you mean {meant[0]!r}?"
    by_letters = {option.lower(): option for option in [option for option in options if len(option) <= MAX_SUGGESTED][:MAX_OPTIONS]}
    close = get_close_matches(str(value).lower(), by_letters, n=1)
    return f"; did you mean {by_letters[close[0]]!r}?" if close else ""


def mapping(
    key: str, value: Any, *, required: Collection[str] = (), optional: Collection[str] | None = (), example: str = ""
) -> dict[str, Any]:
    """A mapping with all required keys, and only required and optional ones. `optional=None` allows all keys.

    The error for another value shows the example.
    """
    if not isinstance(value, Mapping):
        names = ", ".join(required or list(optional or ())[:4])
        such = f", such as {example}" if example else f" of keys such as {names}" if names else ""
        raise ValueError(f"{key} must be a mapping{such}, not {shown(value)}")
    allowed = [*required, *(value if optional is None else optional)]
    for name in value:
        if name not in allowed:
            raise ValueError(f"{key}.{name} is unknown{suggestion(name, allowed) or ': known are ' + ', '.join(allowed)}")
    if missing := [f"{key}.{name}" for name in required if value.get(name) is None]:
        several = len(missing) > 1
        raise ValueError(f"{', '.join(missing)} {'are' if several else 'is'} missing: give {'each' if several else 'it'} a value")
    return {str(name): entry for name, entry in value.items()}
