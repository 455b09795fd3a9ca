"""Every kind of interval that a world records has a row in one table, which traces, comparisons and timelines read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pages
import pytest

from hetsim.reports.perfetto import TRACKS
from hetsim.results.comparison.time_use import INTERVALS
from hetsim.results.writing.figures import DRAWN
from hetsim.runtime.recording import recorder
from hetsim.runtime.recording.recorder import APPLY, COMMIT, INTERVAL_KINDS, KINDS, PROFILE

HETSIM = Path(recorder.__file__).parents[2]
CONSTANTS = {name: value for name, value in vars(recorder).items() if name.isupper() and isinstance(value, int)}
MOMENTS = {KINDS[APPLY], KINDS[COMMIT]}
BEFORE_THE_RUN = {KINDS[PROFILE]}


def kinds_in(folder: str) -> set[str]:
    """The kinds that the modules of a folder name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (HETSIM / folder).rglob("*.py")]
    names = {part.id for tree in trees for part in ast.walk(tree) if isinstance(part, ast.Name)}
    return {KINDS[value] for name, value in CONSTANTS.items() if name in names}


def test_a_kinds_constant_is_its_place_in_the_table() -> None:
    assert {name.lower(): value for name, value in CONSTANTS.items()} == {name: place for place, name in enumerate(KINDS)}


@pytest.mark.parametrize("world", ["sim", "distributed/rank"])
def test_both_worlds_record_the_same_kinds_and_each_is_shown(world: str) -> None:
    """What lasts during a run is compared, or is an absence, and has a track; what is drawn is compared, too."""
    recorded = kinds_in(world)

    assert recorded == set(KINDS) - MOMENTS - BEFORE_THE_RUN
    assert recorded == {KINDS[kind] for kinds in TRACKS.values() for kind in kinds}
    assert recorded - {KINDS[kind] for kind, _ in INTERVALS.values()} == {"down"}
    assert DRAWN.keys() <= recorded


def test_the_page_explains_every_kind() -> None:
    (table,) = re.findall(r"^\| kind \| the row records \|\n(.*?)\n\n", pages.text("run-files.md"), flags=re.MULTILINE | re.DOTALL)
    explained = [kind for row in re.findall(r"^\|([^|]*)\|", table, flags=re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)]

    assert sorted(explained) == sorted(KINDS)


def test_kinds_of_one_legend_have_one_colour() -> None:
    drawings = [row.drawing for row in INTERVAL_KINDS if row.drawing is not None]

    assert len({(each.legend, each.colour) for each in drawings}) == len({each.legend for each in drawings})
