"""The command `hetsim-compare RUN RUN`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from hetsim.checks import one_line
from hetsim.results.compare import comparison, differences, drawing, ordered, render
from hetsim.results.config_file import read_config
from hetsim.results.identity import environment_hashes
from hetsim.results.keys import VARY_IN_A_COMPARISON
from hetsim.runtime.files import write_text


def main() -> None:
    """Print the comparison; exit status 1 with one sentence if there are no two runs to compare."""
    parser = argparse.ArgumentParser(prog="hetsim-compare", description="Compare two runs, simulated or measured, number by number.")
    parser.add_argument("runs", nargs=2, metavar="RUN", type=Path, help="the folder of a finished run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file, as JSON")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw both timelines and both curves in this folder")
    arguments = parser.parse_args()
    try:
        runs, summaries, names = ordered(arguments.runs)
        rows = comparison(*summaries)
        different = differences(*(read_config(run) | environment_hashes(run, without=VARY_IN_A_COMPARISON) for run in runs))
        draw = None if arguments.pictures is None else drawing(runs, summaries, names)
        print(render(rows, names))
        for key, (one, other) in different.items():
            tell(f"the runs differ in {key}: {one} and {other}")
        for name, summary in zip(names, summaries, strict=True):
            for warning in summary.get("warnings", []):
                tell(f"{name}: {warning}")
        if arguments.json is not None:
            numbers = {
                row["key"]: {names[0]: row["first"], names[1]: row["second"], "relative_error": row["relative_error"]} for row in rows
            }
            document = {
                "runs": {name: str(run) for name, run in zip(names, runs, strict=True)},
                "different": list(different),
                "numbers": numbers,
            }
            write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n")
        if draw is not None:
            draw(arguments.pictures)
            print(f"pictures in {os.path.relpath(arguments.pictures)}")
    except OSError as error:
        tell(f"error: {error.filename} cannot be read or written ({error.strerror}): give another folder")
        sys.exit(1)
    except ValueError as error:
        tell(f"error: {error}")
        sys.exit(1)


def tell(message: str) -> None:
    """Print a line on standard error. What it quotes may be a stranger's, who could steer the terminal."""
    print(f"hetsim-compare: {one_line(message)}", file=sys.stderr)


if __name__ == "__main__":
    main()
