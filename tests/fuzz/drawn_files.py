"""YAML files in a --config-dir of the fuzzer's own: right ones, broken ones, and such that would like to run code."""

from __future__ import annotations

import known_keys
from drawn_draft import Draft
from drawn_values import hostile, like, text

FOLDER = "mine"

TAGS = (
    *("!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [code-ran]]", "!!python/name:os.system ''"),
    *("!!python/object/apply:os.system ['touch code-ran']", "!!python/module:code_ran ''", "!nothing 1", "!!binary aGk=", "!!set {a, b}"),
    *("!!timestamp 2001-01-01", "2001-01-01", "!!omap [a: 1]", "!!float word", "!!int word", "!!int '1'", "!!null ''", "!!str 1"),
)

WHOLE = (
    *("", "\n", "# nothing\n", "[]\n", "- 1\n- 2\n", "word\n", "1\n", "null\n", "a: b: c\n", "{\n", "\ta: 1\n", "a: [1\n", "a: &x [*x]\n"),
    *(
        "? [1, 2]\n: 3\n",
        "1: 2\n",
        "null: 1\n",
        "true: 1\n",
        "a: 1\na: 2\n",
        "---\na: 1\n---\nb: 2\n",
        "%YAML 9.9\n---\na: 1\n",
        "\ufeffseed: 1\n",
    ),
    *(
        "a: *nothing\n",
        "'': 1\n",
        "a.b: 1\n",
        "defaults: 1\n",
        "defaults: [nothing]\n",
        "defaults: [{nothing: a}]\n",
        "defaults: [_self_, _self_]\n",
    ),
    *(
        "defaults: [method: ssgd]\n",
        "defaults: [override /method: ssgd]\n",
        "defaults: [optional nothing: a]\n",
        "defaults: [1]\n",
        "defaults: [[]]\n",
    ),
    *("trust: [code_ran]\n", "hydra: {run: {dir: elsewhere}}\n", "hydra: 1\n", "hydra: {callbacks: {mine: {_target_: code_ran.Rule}}}\n"),
    *(
        "<<: {seed: 1}\n",
        "<<: 1\n",
        "a: !!python/tuple [1]\n",
        "\x00\n",
        "a: \x01\n",
        "seed: 1_0\n",
        "seed: 0o7\n",
        "seed: 1:30\n",
        "a: |\n  x\n y\n",
    ),
)

HEADS = (
    "# @package _global_\n",
    "# @package _global_\n",
    "",
    "# @package seed\n",
    "# @package a.b\n",
    "# @package\n",
    "# @package _group_\n",
)


def add_file(draft: Draft) -> None:
    """A choice of one's own in any group, as one would write it, and the words that take it."""
    rng = draft.rng
    group = rng.choice(("experiment", *known_keys.groups()))
    if group == "experiment" or rng.random() < 0.5:
        group, content = "experiment", "# @package _global_\n" + "\n".join(_lines(draft, wrong=0.0))
    else:
        content = (known_keys.configs() / group / f"{rng.choice(known_keys.groups()[group])}.yaml").read_text(encoding="utf-8")
    _take(draft, group, content)


def spoil_file(draft: Draft) -> None:
    """A file in which something is wrong."""
    rng = draft.rng
    group = rng.choice(("experiment", "experiment", *known_keys.groups(), "nothing"))
    if rng.random() < 0.5:
        content = rng.choice(HEADS) + rng.choice(WHOLE)
    else:
        overriding = (
            f"defaults:\n  - override /{rng.choice(list(known_keys.groups()))}: {rng.choice(('none', 'ssgd', 'sgd', 'nothing', '[a]'))}\n"
        )
        content = rng.choice(HEADS) + (overriding if rng.random() < 0.3 else "") + "\n".join(_lines(draft, wrong=0.7))
    _take(draft, group, content + rng.choice(("", "", "\n_target_: os.getcwd\n", "\nmore: 1\n")))
    draft.files["code_ran.py"] = "open('code-ran', 'w')\nclass Rule: pass\n"
    if rng.random() < 0.1:
        draft.words += rng.choice(
            (("--config-dir", "nowhere"), ("--config-name", "nothing"), ("-cn", "experiment/own"), ("--config-path", "mine"))
        )


def _take(draft: Draft, group: str, content: str) -> None:
    draft.files[f"{FOLDER}/{group}/own.yaml"] = content
    take = f"{group}=own" if group != "nothing" else draft.rng.choice(("+nothing=own", "nothing=own"))
    draft.words += [*draft.rng.choice((("--config-dir", FOLDER), ("-cd", FOLDER), (f"--config-dir={FOLDER}",))), take]


def _lines(draft: Draft, *, wrong: float) -> list[str]:
    """A few keys of conf/ with values, some of them wrong."""
    rng, lines = draft.rng, []
    keys = [key for key in known_keys.fitting(draft.choices) if not key.startswith("budget")]
    for key in rng.sample(keys, rng.randint(1, 3)):
        value = (
            text(like(rng, known_keys.leaves()[key][0], key))
            if rng.random() >= wrong
            else rng.choice((hostile(rng, key), rng.choice(TAGS)))
        )
        *parents, name = key.split(".")
        lines += ["  " * depth + f"{parent}:" for depth, parent in enumerate(parents)] + ["  " * len(parents) + f"{name}: {value}"]
    return lines
