"""Check that each argument of a command line can be read, and suggest a correction."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hetsim.checks import suggestion
from hetsim.config.guard.compositions import parsed
from hetsim.config.typed import as_typed
from hetsim.trust.shipped import choices, is_group

PLACE = re.compile(r"\[(\d+)\]")
LIVE, DOUBLE = re.compile(r'["$`!\\\\]'), '"{}"'
"""Characters that a shell interprets between double quotes, and the double quotes."""
PAIRS = {"(": ")", "[": "]", "{": "}"}


def check_readable(words: Iterable[str]) -> None:
    """Raise ValueError for an argument that is no key=value, or an unknown choice of a group of hetsim."""
    for word in words:
        try:
            override = parsed(word)
        except HydraException:
            raise ValueError(f"{word} cannot be read as key=value: {_instead(word)}") from None
        if not override.key_or_group:
            raise ValueError(f"{word} cannot be read as key=value: give the key in front of the =")
        if is_group(override.key_or_group) and override.package is None:
            _check_choice(word, override)


def _check_choice(word: str, override: Override) -> None:
    group, value = override.key_or_group, override.value()
    if override.is_delete():
        instead = f"type {group}=none" if "none" in choices(group) else f"choose another with {group}=…"
        raise ValueError(f"{word} would leave a run without its {group}: {instead}")
    if override.is_add() or override.is_force_add():
        if isinstance(value, str):
            raise ValueError(f"{word} adds nothing, because {group} is chosen already: type {word.lstrip('+')}")
    elif value is None and not override.is_sweep_override():
        instead = f"type {group}=none" if "none" in choices(group) else f"leave it out, or type one of {', '.join(choices(group))}"
        raise ValueError(f"{word} names no choice: {instead}")
    elif value == "":
        raise ValueError(f"{word} names no choice: type one of {', '.join(choices(group))}")
    elif not isinstance(value, str | list | dict) and not override.is_sweep_override():
        raise ValueError(f"{word} names no choice{suggestion(value, choices(group))}: type one of {', '.join(choices(group))}")


def _instead(word: str) -> str:
    key, equals, value = word.partition("=")
    if equals and PLACE.search(key):
        return "type " + PLACE.sub(r".\1", key) + f"={value}"
    if not equals:
        return f"type {word}=VALUE" if re.fullmatch(r"[+~]*[\w.@/]+", word) else "quote it for the shell together with the word before it"
    if not key.strip("+~"):
        return "give the key in front of the ="
    if _unclosed(value):
        return f"close its brackets, and quote the whole word for the shell, as in '{key}=…'"
    if value.rstrip().endswith(","):
        return "a value is missing after the last comma"
    its = f"{key}={as_typed(value)}"
    return f"quote its value, as in {shlex.quote(its) if LIVE.search(its) else DOUBLE.format(its)}"


def _unclosed(value: str) -> bool:
    """Whether brackets do not match."""
    expected: list[str] = []
    quote = ""
    for letter in value:
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
        elif letter in PAIRS:
            expected.append(PAIRS[letter])
        elif letter in PAIRS.values() and (not expected or expected.pop() != letter):
            return True
    return bool(expected)
