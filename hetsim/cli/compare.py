"""The command `hetsim-compare RUNS RUNS`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from hetsim.answers.files import AnswerFiles
from hetsim.answers.text import terminal
from hetsim.checks import printable
from hetsim.cli.command import READING, Parser, command, of_reading, typed
from hetsim.reports import perfetto
from hetsim.results.comparison.answer import answer
from hetsim.results.comparison.findings import compare
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
    files = AnswerFiles(writer=parser.prog, json=arguments.json, pictures=arguments.pictures, html=arguments.html)
    with command(parser.prog, READING, partial(of_reading, too_deep=TOO_DEEP)) as tell:
        files.check()
        if arguments.perfetto is not None:
            perfetto.check_file(arguments.perfetto, parser.prog)
        findings = compare(first, second)
        traced = [] if arguments.perfetto is None else perfetto.of_sides(findings.sides)
        printed_answer = answer(findings, typed(parser.prog))
        lines = files.write(printed_answer)
        print(terminal(printed_answer, remarks=False), flush=True)
        for remark in printed_answer.remarks:
            tell(remark)
        for line in lines:
            print(line)
        if traced:
            perfetto.write(arguments.perfetto, traced, parser.prog)
            print(f"open {printable(os.path.relpath(arguments.perfetto))} on https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
