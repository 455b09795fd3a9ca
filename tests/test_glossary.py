"""docs/reference/glossary.md has one line for each term."""

from __future__ import annotations

import re

import pages

from hetsim.config.schema import AXES

TERMS = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", pages.text("glossary.md"), flags=re.M)[1:]


def test_terms_are_in_alphabetical_order() -> None:
    """Each once."""
    assert sorted(set(TERMS)) == TERMS
    assert len(TERMS) > 60


def test_every_axis_of_a_method_is_a_term() -> None:
    """With what a method is made of."""
    assert {*AXES, "coordination", "effect", "policy", "program", "version", "world"} <= set(TERMS)
