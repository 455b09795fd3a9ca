"""The command `hetsim-compare RUNS RUNS`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from hetsim.checks import printable
from hetsim.cli.command import READING, Parser, command, of_reading, typed
from hetsim.files.reading import check_replaces_no_run
from hetsim.files.writing import write_text
from hetsim.reports import of_comparison, page, perfetto
from hetsim.results.comparison.findings import compare, document
from hetsim.results.comparison.pictures import drawing
from hetsim.results.comparison.text import render
from hetsim.runtime.output import outlive_readers

TOO_DEEP = "a folder has others nested hundreds deep: give the folders of the runs themselves"


def main() -> None:
    """Print the comparison. Exits with status 1 and a sentence if there are no runs to compare."""
    outlive_readers("hetsim-compare")
    parser = Parser(
        prog="hetsim-compare",
        usage="hetsim-compare [-h] [--json FILE] [--pictures FOLDER] [--perfetto FILE] [--html FILE] RUNS RUNS | RUNS... --with RUNS...",
        description="Compare two runs, or several repeats of each, simulated or measured: all numbers, and what the time was spent on.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path, help="the folder of a run, or a folder with several repeats of a run")
    parser.add_argument("--with", nargs="+", default=[], metavar="RUNS", type=Path, dest="second", help="the runs of the second side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this file, as JSON")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw both timelines and all curves to this folder")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write both timelines as two processes, for ui.perfetto.dev")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report to this file, for a web browser")
    arguments = parser.parse_args()
    first, second = (arguments.runs, arguments.second) if arguments.second else (arguments.runs[:1], arguments.runs[1:])
    if len(second) != 1 and not arguments.second:
        parser.error(f"{len(arguments.runs)} folders are not two sides: give two folders, or name the second side after --with")
    with command(parser.prog, READING, partial(of_reading, too_deep=TOO_DEEP)) as tell:
        if arguments.html is not None:
            page.check_file(arguments.html)
        if arguments.json is not None:
            check_replaces_no_run(arguments.json)
        found = compare(first, second)
        report = None if arguments.html is None else of_comparison.page(found, typed(parser.prog))
        draw = None if arguments.pictures is None else drawing(found.sides)
        traced = [] if arguments.perfetto is None else perfetto.of_sides(arguments.perfetto, found.sides)
        print(render(found), flush=True)
        for remark in (*found.sides.in_words, *found.remarks):
            tell(remark)
        for side in found.sides.both:
            for folder, summary in zip(side.folders, side.summaries, strict=True):
                for warning in summary.get("warnings", []):
                    tell(f"{side.name if side.num_runs == 1 else folder}: {warning}")
        if arguments.json is not None:
            write_text(arguments.json, json.dumps(document(found), indent=2, allow_nan=False) + "\n")
        if draw is not None:
            draw(arguments.pictures)
            print(f"pictures in {printable(os.path.relpath(arguments.pictures))}")
        if report is not None:
            page.write(report(), arguments.html)
            print(f"report in {printable(os.path.relpath(arguments.html))}")
        if traced:
            perfetto.write(arguments.perfetto, traced)
            print(f"open {printable(os.path.relpath(arguments.perfetto))} on https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
