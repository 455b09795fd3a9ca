"""Try drawn configs, and print what they were refused for and which laws they broke.

    python tests/fuzz/fuzz.py --configs 10000 --seed 0 --processes 2
    python tests/fuzz/fuzz.py --seed 0 --only 4711 --keep /tmp/4711

A config is a function of the seed and its number, so the second command repeats one of the first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drawn_config import drawn_config
from fuzzing import Server, run_all
from laws import Ran
from reducing import reduced
from report import Figures, command_line


def main() -> None:
    """Exit status 1 if a law was broken."""
    parser = argparse.ArgumentParser(description="Try drawn configs: no traceback, no hang, no file and no process left.")
    parser.add_argument("--configs", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first (0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="N", help="this config alone, with all that it prints")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --only: the folder for its files")
    parser.add_argument("--reduce", action="store_true", help="also drop words that a finding does not need")
    arguments = parser.parse_args()
    if arguments.only is not None:
        sys.exit(_one(arguments.seed, arguments.only, arguments.keep))
    figures = Figures(arguments.seed)
    numbers = range(arguments.first, arguments.first + arguments.configs)
    for ran in run_all(arguments.seed, numbers, processes=arguments.processes):
        figures.add(ran)
        for finding in ran.found:
            print(f"{finding.number} {finding.kind}: {finding.cause}", file=sys.stderr, flush=True)
    print(figures.text())
    if arguments.reduce:
        with Server() as server:
            for finding in figures.causes():
                print(f"{finding.kind}: {finding.cause}\n  {command_line(reduced(server, arguments.seed, finding))}", flush=True)
    sys.exit(1 if figures.found else 0)


def _one(seed: int, number: int, keep: Path | None) -> int:
    config = drawn_config(seed, number)
    with Server() as server:
        ran: Ran = server.run(config, keep=keep)
    print(
        command_line(config),
        f"changes: {', '.join(config.changes)}",
        *(f"--- {name}\n{content!s}" for name, content in config.files.items()),
        sep="\n",
    )
    print(f"--- exit status {ran.status} after {ran.seconds:.1f} s", ran.stdout, ran.stderr, ran.stuck, sep="\n")
    print("--- files", *ran.files, "--- findings", *(f"{finding.kind}: {finding.cause}" for finding in ran.found), sep="\n")
    return 1 if ran.found else 0


if __name__ == "__main__":
    main()
