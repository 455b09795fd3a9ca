"""The command `hetsim-table SWEEP_DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hetsim import checks
from hetsim.results.finished_runs import finished_runs
from hetsim.results.table import METRICS, arranged, chosen, rows, title
from hetsim.results.table_files import markdown, write


def main() -> None:
    """Write and print the table; exit status 1 with one sentence if there is none."""
    parser = argparse.ArgumentParser(prog="hetsim-table", description="One table and one picture of a sweep: means over seeds.")
    parser.add_argument("sweep", metavar="SWEEP_DIR", type=Path, help="the folder of a sweep: finished runs at any depth")
    parser.add_argument("--metric", metavar="NAME", help=f"sort the rows by this number and draw it: {', '.join(METRICS)}")
    parser.add_argument("--accuracy", type=float, default=0.9, help="the test accuracy of seconds_to_accuracy (0.9)")
    parser.add_argument("--to", metavar="DIR", type=Path, help="write the files to this folder instead of SWEEP_DIR")
    arguments = parser.parse_args()
    try:
        if arguments.metric is not None and arguments.metric not in METRICS:
            hint = checks.suggestion(arguments.metric, METRICS)
            raise ValueError(f"--metric {arguments.metric} is unknown: take {', '.join(METRICS)}{hint}")
        if not 0 < arguments.accuracy <= 1:
            raise ValueError(f"--accuracy must be above 0 and at most 1, not {arguments.accuracy:g}")
        found = finished_runs(arguments.sweep)
        made, remarks = rows(found, accuracy=arguments.accuracy)
        metric = chosen(arguments.metric, made, arguments.accuracy)
        made = arranged(made, metric)
        folder = arguments.to or arguments.sweep
        write(made, folder, metric=metric, accuracy=arguments.accuracy, title=title(found))
        print(markdown(made, accuracy=arguments.accuracy), end="")
        failed = sum(not (path.parent / "summary.json").exists() for path in arguments.sweep.rglob("error.txt"))
        if failed:
            remarks.append(f"{failed} runs failed and are not in the table: see error.txt in their folders")
        for remark in remarks:
            tell(remark)
    except OSError as error:
        tell(f"error: {error.filename} cannot be read or written ({error.strerror}): give another folder")
        sys.exit(1)
    except RecursionError:
        tell(f"error: {arguments.sweep} has folders that are nested hundreds deep: move them elsewhere")
        sys.exit(1)
    except ValueError as error:
        tell(f"error: {error}")
        sys.exit(1)


def tell(message: str) -> None:
    """Print a line on standard error. What it quotes may be a stranger's, who could steer the terminal."""
    print(f"hetsim-table: {checks.one_line(message)}", file=sys.stderr)


if __name__ == "__main__":
    main()
