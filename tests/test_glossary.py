"""docs/glossary.md has one line for each term."""

from __future__ import annotations

import re
from pathlib import Path

from hetsim.config.schema import AXES

TERMS = re.findall(
    r"^\| ([^|]+) \| [^|]+ \|$", (Path(__file__).parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8"), flags=re.M
)[1:]


def test_terms_are_in_alphabetical_order() -> None:
    """Each once."""
    assert sorted(set(TERMS)) == TERMS
    assert len(TERMS) > 60


def test_every_axis_of_a_method_is_a_term() -> None:
    """With what a method is made of."""
    assert {*AXES, "coordination", "effect", "policy", "program", "version", "world"} <= set(TERMS)
