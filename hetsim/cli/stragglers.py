"""The command `hetsim-stragglers TRACE`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from hetsim.checks import printable
from hetsim.cli.command import READING, Parser, command, of_reading, typed
from hetsim.files.reading import check_replaces_no_run
from hetsim.files.writing import write_text, written_whole
from hetsim.reports import of_stragglers, page
from hetsim.reports.place import check_place
from hetsim.results.writing.figures import save
from hetsim.runtime.output import outlive_readers
from hetsim.straggling.findings import document, find
from hetsim.straggling.picture import picture
from hetsim.trust.libraries import keep_processes_out

TOO_DEEP = "a file is nested hundreds deep: give the files that torch.profiler wrote"
ABOUT = """Find the slow ranks of a finished job: whether they are slow always, in spells or periodically, what this costs, and how long
the job would take without slow ranks. TRACE is the folder of a hetsim run, the folder that Team(trace=…) writes, or the files of
torch.profiler (.json, .json.gz; one for each rank, or their folder)."""


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
    with command(parser.prog, READING, partial(of_reading, too_deep=TOO_DEEP)):
        keep_processes_out()
        if arguments.html is not None:
            page.check_file(arguments.html)
        if arguments.json is not None:
            check_replaces_no_run(arguments.json)
        if arguments.picture is not None:
            check_place(arguments.picture, "--picture", ".png")
        found = find(arguments.traces, replay=not arguments.no_replay)
        print("\n".join(map(printable, str(found).splitlines())), flush=True)
        if arguments.json is not None:
            write_text(arguments.json, json.dumps(document(found), indent=2, allow_nan=False) + "\n")
        if arguments.picture is not None:
            with written_whole(arguments.picture) as file:
                save(picture(found.found), file)
        if arguments.html is not None:
            page.write(of_stragglers.page(found, typed(parser.prog)), arguments.html)
            print(f"report in {printable(os.path.relpath(arguments.html))}")


if __name__ == "__main__":
    main()
