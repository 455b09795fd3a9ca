"""The command `hetsim-stragglers TRACE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hetsim.answers.files import AnswerFiles
from hetsim.answers.text import terminal
from hetsim.cli.command import READING, Parser, command, of_reading, typed
from hetsim.runtime.output import outlive_readers
from hetsim.straggling.answer import answer
from hetsim.straggling.findings import find

TOO_DEEP = "a file is nested hundreds deep: give the files that torch.profiler wrote"
ABOUT = """Find the slow ranks of a finished job: whether they are slow always, periodically or in rare stalls, what this costs, where the
job's time goes, and how long the job would take without slow ranks. TRACE is the folder of a hetsim run, the folder that Team(trace=…)
writes, or the files of torch.profiler (.json, .json.gz; one for each rank, or their folder)."""


def main() -> None:
    """Print the findings. Exits with status 1 and a sentence if no job can be read."""
    outlive_readers("hetsim-stragglers")
    parser = Parser(prog="hetsim-stragglers", description=ABOUT)
    parser.add_argument("traces", nargs="+", metavar="TRACE", type=Path, help="a folder, or one file for each rank")
    parser.add_argument("--no-replay", action="store_true", help="do not simulate the job without stragglers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all results to this file, as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the heat map of ranks and steps, as PNG")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report to this file, for a web browser")
    arguments = parser.parse_args()
    files = AnswerFiles(writer=parser.prog, json=arguments.json, picture=arguments.picture, html=arguments.html)
    with command(parser.prog, READING, partial(of_reading, too_deep=TOO_DEEP)):
        files.check()
        printed_answer = answer(find(arguments.traces, replay=not arguments.no_replay), typed(parser.prog))
        lines = files.write(printed_answer)
        print(terminal(printed_answer), flush=True)
        for line in lines:
            print(line)


if __name__ == "__main__":
    main()
