"""The command `hetsim-report RUN`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from hetsim.answers.files import AnswerFiles
from hetsim.checks import printable
from hetsim.cli.command import READING, Parser, command, of_reading
from hetsim.reports import perfetto
from hetsim.reports.run import answer
from hetsim.runtime.output import outlive_readers

TOO_DEEP = "its files are nested hundreds deep: give the folder of another run"


def main() -> None:
    """Write the requested files. Exits with status 1 and a sentence if that is impossible."""
    outlive_readers("hetsim-report")
    parser = Parser(prog="hetsim-report", description="Write a report or a timeline of a finished run, for a web browser.")
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report to this file: numbers, pictures, tables and the config")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write the whole timeline to this file, for ui.perfetto.dev")
    arguments = parser.parse_args()
    if arguments.html is None and arguments.perfetto is None:
        parser.error("nothing is asked for: give --html report.html, or --perfetto run.pftrace")
    files = AnswerFiles(writer=parser.prog, html=arguments.html)
    with command(parser.prog, READING, partial(of_reading, too_deep=TOO_DEEP)):
        files.check()
        if arguments.perfetto is not None:
            perfetto.check_file(arguments.perfetto, parser.prog)
            perfetto.write(arguments.perfetto, [perfetto.traced(arguments.run)], parser.prog)
            print(f"open {printable(os.path.relpath(arguments.perfetto))} on https://ui.perfetto.dev")
        for line in files.write(answer(arguments.run)) if arguments.html is not None else ():
            print(line)


if __name__ == "__main__":
    main()
