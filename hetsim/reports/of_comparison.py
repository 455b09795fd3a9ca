"""The report of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hetsim.files.reading import shown
from hetsim.reports.page import Page, Sheet
from hetsim.results.comparison.findings import Findings
from hetsim.results.comparison.pictures import figures
from hetsim.results.comparison.sides import Side
from hetsim.results.comparison.text import about, sections
from hetsim.results.writing.describe import formatted

RATE = "updates_per_second"


def page(found: Findings, command: str) -> Callable[[], Page]:
    """Read all files, and return a function that makes the report of these findings. `command` has printed them."""
    drawn = figures(found.sides)

    def made() -> Page:
        pictures = drawn()
        return Page(
            question=_question(found),
            answer=" ".join(_answer(found)),
            figures=[
                ("The first steps of the first run of each side", pictures.get("timeline")),
                ("What was evaluated during the runs", pictures.get("curve")),
            ],
            sheets=list(_sheets(found)),
            remarks=list(_remarks(found)),
            command=command,
        )

    return made


def _question(found: Findings) -> str:
    one, other = found.sides.both
    if other.name == "measured":
        return f"How close is the simulation to the measurement of {one.title}?"
    return f"How do two sides of {one.title} differ?" if one.title == other.title else f"How do {one.title} and {other.title} differ?"


def _answer(found: Findings) -> Iterator[str]:
    rate = next(row for row in found.numbers if row["key"] == RATE)
    if rate["relative_error"] is not None:
        one, other = found.sides.names
        within = ", which is within the spread of its repeats" if rate["within_spread"] else ""
        yield (
            f"The {one} side makes {formatted(rate['first'])} updates/s and the {other} side {formatted(rate['second'])}: "
            f"{100 * rate['relative_error']:+.2f} %{within}."
        )
    if found.where:
        yield f"{found.where[0].upper()}{found.where[1:]}."


def _sheets(found: Findings) -> Iterator[Sheet]:
    for section in sections(found):
        heads, *lines = section.lines
        yield Sheet(section.title, heads, lines)
    if found.sides.different:
        yield Sheet(
            "Keys that differ", ("", *found.sides.names), [(key, *map(shown, values)) for key, values in found.sides.different.items()]
        )


def _remarks(found: Findings) -> Iterator[str]:
    yield from (line for line in about(found) if line)
    yield from (section.below for section in sections(found) if section.below)
    yield from found.remarks
    for side in found.sides.both:
        yield from (f"{side.name}: {warning}" for warning in dict.fromkeys(_warnings(side)))


def _warnings(side: Side) -> Iterator[str]:
    for summary in side.summaries:
        yield from summary.get("warnings", ())
