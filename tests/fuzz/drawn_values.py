"""Values for the keys of a config: such as they expect, and hostile ones; as Hydra reads them on a command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import known_keys

SIZES = (1, 2, 3, 4, 5, 8, 16, 33, 100)
NUMBERS = (0.0, 1e-6, 1e-3, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0, 1.5, 2.0, 10.0)

HOSTILE = (
    *("0", "-1", "1", "2", "-0", "-0.0", "1.5", "0.1", "1e300", "-1e300", "1e308", "1e-320", "5e-324", "inf", "-inf", "nan"),
    *("9" * 12, "9" * 19, "9" * 30, "9" * 400, "9" * 5000, "-" + "9" * 30, "2147483648", "9223372036854775807", "9223372036854775808"),
    *("true", "false", "null", "yes", "None", "'1'", "'true'", "'null'", "'1e-3'", "1_000", "0x10", "007", "1e5", "1e23"),
    *("''", "' '", "word", "'two words'", "a.b", "a/b", "../up", "'é€😀'", "'\u202egnitsaoc'", "'a\tb'", "'a\nb'", "'\x1b[31mred'"),
    *("'\udcff'", "x" * 300, "y" * 5000, "'#'", "'%s'", "'{}'", "'$'", "'\\\\'", "???", "'???'", "'_target_'", "__init__"),
    *("[]", "{}", "[1]", "[[1]]", "[null]", "[1, a]", "[{}]", "{a: 1}", "{1: 2}", "{a: {b: []}}", "{null: 1}", "{true: 1}", "{'': 1}"),
    *("[nan]", "[-1]", "[0, 0, 0, 0]", "[1, 1, 1, 1]", "[1e308, 1e308, 1e308, 1e308]", "[[[[[[[[[[1]]]]]]]]]]", "{_target_: os.getcwd}"),
    *("${nothing}", "${seed}", "${oc.env:HOME}", "${oc.env:NOT_THERE}", "${oc.env:NOT_THERE,1}", "${${seed}}", "${nothing:1}"),
    *("${oc.decode:'[1'}", "${oc.select:nothing}", "${oc.create:{a: 1}}", "${oc.dict.keys:budget}", "${oc.dict.values:budget}"),
    *("${now:%Y}", "${hydra:runtime.cwd}", "${hydra:nothing}", "${hydra:}", "${hetsim.folder:}", "${budget}", "${cluster}", "${.}"),
    *("${..}", "${...nothing}", "${.seed}", "${cluster.nodes[0].count}", "${cluster.nodes[9]}", "'${learning_rate}0'", "${", "'${'", "}"),
    *("1,2", "range(1,3)", "choice(1,2)", "interval(0,1)", "glob(*)", "sort(3,1)", "shuffle(1,2)", "int(1.5)", "float(nan)", "str(1)"),
    *("int(a)", "bool(a)", "json_str({a: 1})", "float('1e400')", "tag(a,b)", "extend_list(1,2)", "[", "]", "(", ")", "'", '"', "\\", "="),
    *("a=b", "@", "a b", ":", "{a", "{a: }", "{a: 1, a: 2}", "[1,", "!!python/name:os.getcwd", "&a [*a]", "~", "+1", "-", "--"),
)
"""Texts of values that hardly any key expects."""


def text(value: Any) -> str:
    """A value as one writes it behind `key=`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {text(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(text(entry) for entry in value) + "]"
    if isinstance(value, Raw) or (value.isidentifier() and value not in ("null", "true", "false", "nan", "inf")):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


class Raw(str):
    """A text that is written as it is, although it may be no value at all."""

    __slots__ = ()


def hostile(rng: Random, key: str = "") -> str:
    """The text of a hostile value; now and then the key itself, in a circle."""
    if key and rng.random() < 0.03:
        return f"${{{key}}}"
    return rng.choice(HOSTILE)


def like(rng: Random, example: Any, key: str) -> Any:
    """A value of the kind of an example, which the key probably allows."""
    if isinstance(example, bool):
        return rng.random() < 0.5
    if isinstance(example, int):
        return rng.choice(SIZES)
    if isinstance(example, float):
        return rng.choice(NUMBERS)
    if isinstance(example, str) and not example.startswith("${"):
        words = known_keys.described(key.split(".")[-1])
        return rng.choice([example, *words]) if words else example
    return rng.choice([example, *NUMBERS, *SIZES, None])


def annotated(rng: Random, annotation: str, key: str) -> Any:
    """A value of a type that a class's argument is annotated with, such as `int | None`."""
    kinds = [kind for kind in ("bool", "int", "float", "str", "Mapping", "Sequence", "None") if kind in annotation]
    kind = rng.choice(kinds or ["float"])
    if kind == "str":
        return rng.choice(known_keys.described(key.split(".")[-1]) or ("word",))
    if kind == "Sequence":
        return [rng.choice(SIZES) for _ in range(rng.randrange(6))]
    values = {"bool": (True, False), "int": (0, *SIZES), "float": NUMBERS, "Mapping": ({}, {"a": 1}), "None": (None,)}
    return rng.choice(values[kind])


def misspelt(rng: Random, word: str) -> str:
    """A word with one letter too many, one left out, or two exchanged."""
    place = rng.randrange(len(word))
    return rng.choice(
        [word[:place] + word[place + 1 :], word[:place] + "x" + word[place:], word[:place][::-1] + word[place:], word.upper()]
    )
