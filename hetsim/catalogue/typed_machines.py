"""Machines in one line, such as `2*a100-40gb + 4*t4`. The grammar is in docs/start/advise.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

from hetsim import checks
from hetsim.catalogue.tables import Gpu

MAX_LETTERS, MAX_DEPTH, MAX_GPUS = 2000, 10, 1_000_000
SEPARATOR = re.compile(r"\s*(?:[+,/;]|\band\b)\s*")
COUNT = re.compile(r"([0-9]+)\s*[*xX×]\s*(?=[\w(])(?![0-9]*\.[0-9])|([0-9]{1,3})\s+(?=[\w(])|([0-9]+)\s*(?=\()")
"""A number, with `*` or x behind it, or a blank, or a parenthesis. `3090*0.8` begins with a name."""
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:\s+(?!and\b)[A-Za-z0-9][\w.-]*)*", re.ASCII)
SPEED = re.compile(r"\s*\*\s*([0-9]*\.[0-9]+|[0-9]+\.)")
NUMBER_BEHIND = re.compile(r"\s*[*×:]\s*([0-9]{1,3})(?![\w.])")
NAME_AND_NUMBER = re.compile(r"(.+?)\s*[xX]\s*([0-9]{1,3})")
"""Numbers behind a name, as in `a100:2`, `a100*2` and `a100 x2`."""
NUMBER, BLANK, OPEN, CLOSE = re.compile(r"[0-9]{1,3}"), re.compile(r"\s*"), re.compile(r"\("), re.compile(r"\s*\)\s*")


@dataclass(frozen=True)
class Kind:
    """So many GPUs of one name. Of speed 0.8, they take 1.25 times the seconds of the catalogue."""

    count: int
    name: str
    speed: float = 1.0

    def __str__(self) -> str:
        count, speed = f"{self.count}*" if self.count > 1 else "", "" if self.speed == 1 else f"*{self.speed!r}"
        return f"{count}{self.name}{speed}"


@dataclass(frozen=True)
class TypedMachine:
    """`count` machines, each with these GPUs."""

    count: int
    kinds: tuple[Kind, ...]

    def gpus(self, values: dict[str, Any], prices: Mapping[str, float]) -> dict[str, Any] | list[dict[str, Any]]:
        """The key `gpus` of one of these machines in `cluster.machines`, with these values for each of its kinds, and its price."""
        of_kinds = [
            ({} if kind.speed == 1 else {"speed": kind.speed}) | ({"cost_per_hour": prices[kind.name]} if kind.name in prices else {})
            for kind in self.kinds
        ]
        names = [kind.name for kind in self.kinds]
        if len(self.kinds) == 1 or (not any(of_kinds) and len({*names}) == len(names)):
            return {**{kind.name: kind.count for kind in self.kinds}, **of_kinds[0], **values}
        return [{kind.name: kind.count, **of_kind, **values} for kind, of_kind in zip(self.kinds, of_kinds, strict=True)]

    def __str__(self) -> str:
        text = " + ".join(map(str, self.kinds))
        return f"{self.count}x({text})" if self.count > 1 else f"({text})" if len(self.kinds) > 1 else text


class _Machines(NamedTuple):
    """Machines, and whether parentheses or a second number group their GPUs."""

    machines: list[TypedMachine]
    grouped: bool


def typed_machines(text: str, look_up: Callable[[str], Gpu]) -> list[TypedMachine]:
    """The machines that a text describes, with the catalogue's names. Raises ValueError with the place that cannot be read."""
    if len(text) > MAX_LETTERS:
        raise ValueError(f"{checks.shown(text)} has over {MAX_LETTERS} letters: list machines in a file (docs/guide/describe-a-cluster.md)")
    reader = _Reader(text, look_up)
    machines = reader.machines(0).machines
    if rest := text[reader.at :].strip():
        reader.refuse("no ( is open there" if rest[0] == ")" else reader.needed)
    if sum(machine.count * kind.count for machine in machines for kind in machine.kinds) > MAX_GPUS:
        raise ValueError(f"{checks.shown(text)} has over {MAX_GPUS} GPUs: write fewer")
    return machines


class _Reader:
    """Reads a text from left to right. `at` is the number of letters that have been read."""

    def __init__(self, text: str, look_up: Callable[[str], Gpu]) -> None:
        self.text, self.look_up, self.at = text, look_up, 0

    def refuse(self, why: str) -> NoReturn:
        """Raise ValueError with the rest of the text."""
        rest = self.text[self.at :].strip()
        raise ValueError(f"{checks.shown(self.text)} cannot be read at {checks.shown(rest[:20]) if rest else 'its end'}: {why}")

    @property
    def needed(self) -> str:
        """What a rest needs to be the next machine."""
        speed = self.text.startswith("*", self.at)
        return "the speed of a GPU is a number with a point, such as a100*0.8" if speed else "write + between two machines"

    def accept(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read what the pattern matches, if it matches here."""
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def machines(self, depth: int) -> _Machines:
        """Read machines and the separators between them."""
        read = self.machine(depth)
        while self.accept(SEPARATOR):
            more = self.machine(depth)
            read = _Machines(read.machines + more.machines, read.grouped or more.grouped)
        return read

    def machine(self, depth: int) -> _Machines:
        """Read the GPUs of a machine, or machines in parentheses."""
        self.accept(BLANK)
        copies = self.count()
        if self.accept(OPEN):
            if depth == MAX_DEPTH:
                self.refuse(f"over {MAX_DEPTH} parentheses are open: write the machines one by one")
            within = self.machines(depth + 1)
            if not self.accept(CLOSE):
                self.refuse("a ) is missing" if self.at == len(self.text) else self.needed)
            if within.grouped:
                return _Machines([replace(machine, count=machine.count * (copies or 1)) for machine in within.machines], True)
            return _Machines([TypedMachine(copies or 1, _merged(kind for machine in within.machines for kind in machine.kinds))], True)
        count = None if copies is None else self.count()
        if copies is not None and self._is_known(str(copies)) and (number := NUMBER.match(self.text, self.at)):
            self.refuse(f"write {number[0]}*{copies}")
        name = self.name()
        speed = self.accept(SPEED)
        if speed is None and (number := NUMBER_BEHIND.match(self.text, self.at)):
            self.refuse(f"write {number[1]}*{name}, and {name}*0.8 for a GPU of 0.8 times the speed")
        kind = Kind(count or copies or 1, name, checks.number("the speed of a GPU", float(speed[1])) if speed else 1.0)
        return _Machines([TypedMachine((copies or 1) if count else 1, (kind,))], count is not None)

    def count(self) -> int | None:
        """Read a number of GPUs or machines, if there is one."""
        before, match = self.at, self.accept(COUNT)
        if match is None:
            return None
        number = int(next(filter(None, match.groups()))[:10])
        if not 1 <= number <= MAX_GPUS:
            self.at = before
            self.refuse(f"a number of GPUs or machines is from 1 to {MAX_GPUS}")
        return number

    def name(self) -> str:
        """Read a GPU's name. Returns its name in the catalogue."""
        before, match = self.at, self.accept(NAME)
        if match is None or NUMBER.fullmatch(match[0]):
            self.at = before
            self.refuse("the name of a GPU is missing: 4*t4 is a machine with four T4, and 8x(4*t4) are eight of them")
        if not self._is_known(match[0]):
            self._refuse_two(before, match[0])
        return self.look_up(match[0]).name

    def _refuse_two(self, start: int, name: str) -> None:
        """Raise ValueError if this unknown name is a name and a number, or two names."""
        if (number := NAME_AND_NUMBER.fullmatch(name)) and self._is_known(number[1]):
            self.at = start
            self.refuse(f"write {number[2]}*{number[1]}")
        for blank in re.finditer(r"\s+", name):
            rest = COUNT.sub("", name[blank.end() :], 1)
            if self._is_known(name[: blank.start()]) and (self._is_known(rest) or NUMBER.fullmatch(rest)):
                self.at = start + blank.end()
                self.refuse(self.needed)

    def _is_known(self, name: str) -> bool:
        try:
            return bool(self.look_up(name))
        except ValueError:
            return False


def _merged(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """The kinds, those of one name and speed as one."""
    counts: dict[tuple[str, float], int] = {}
    for kind in kinds:
        counts[kind.name, kind.speed] = counts.get((kind.name, kind.speed), 0) + kind.count
    return tuple(Kind(count, *key) for key, count in counts.items())
