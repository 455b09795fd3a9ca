"""The command `hetsim-search`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from hetsim import checks
from hetsim.cli.errors import USERS, sentence
from hetsim.cli.search.search import Question, Search, opened
from hetsim.cli.search.space import chosen_words
from hetsim.libraries import keep_processes_out
from hetsim.results.describe import formatted

ABOUT = """Search for the best values of some keys. The words are those of hetsim; a key that is given as an interval, a range or a list is
searched: 'learning_rate=tag(log,interval(0.01,1))' 'batch_size=int(interval(64,512))' method=ssgd,dbs_sgd. Each trial runs every seed of
'seed=0,1,2', and its number is their mean."""


def main() -> None:
    """Search, and print the best trial; exit status 1 with one sentence if no trial has a number."""
    parser = argparse.ArgumentParser(prog="hetsim-search", description=ABOUT)
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE", help="the words of hetsim")
    parser.add_argument(
        "--objective", required=True, metavar="NAME", help="seconds_to_0.9 (that test accuracy), or a number of summary.json"
    )
    parser.add_argument("--direction", metavar="WAY", help="minimize or maximize, for a number of your own (final.NAME)")
    parser.add_argument("--trials", type=int, default=50, metavar="N", help="how many, with those that the folder has already (50)")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="how many trials run at a time (1)")
    parser.add_argument("--sampler", default="tpe", metavar="NAME", help="tpe (the default) or random")
    parser.add_argument("--no-pruning", action="store_true", help="run every trial to its end")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="where the runs and the search are kept, to be resumed")
    parser.add_argument("--config-dir", metavar="DIR", help="a folder of your own configs")
    arguments = parser.parse_intermixed_args()
    os.environ["TQDM_DISABLE"] = "1"  # the bars of the runs
    try:
        keep_processes_out()
        question = Question(
            tuple(arguments.words), arguments.objective, arguments.direction, arguments.trials, arguments.processes,
            arguments.sampler, not arguments.no_pruning, arguments.config_dir,
        )  # fmt: skip
        with opened(question, arguments.folder) as search:
            search.run()
            print(told(search), flush=True)
        sys.exit(0 if search.best else 1)
    except KeyboardInterrupt:
        tell("interrupted: the same command goes on with what is missing")
        sys.exit(130)
    except USERS as error:
        tell(f"error: {sentence(error)}")
        sys.exit(1)


def told(search: Search) -> str:
    """How a search has ended: its best trial, and the command that runs it."""
    best, question = search.best, search.question
    states = [one.state.name for one in search.trials]
    counts = f"{len(states)} trials, {states.count('PRUNED')} pruned, {states.count('FAIL')} failed, in {os.path.relpath(search.folder)}"
    if best is None:
        return f"no trial has a number for {question.objective}: {counts}"
    mean = f", the mean of {len(search.space.seeds)} seeds" if len(search.space.seeds) > 1 else ""
    return (
        f"best {question.objective}: {formatted(best.value)}{mean} ({counts})\n"
        f"  {checks.printable(' '.join(chosen_words(search.values(best))))}\n"
        f"  run it: hetsim {checks.printable(shlex.join(search.words(best)))}"
    )


def tell(message: str) -> None:
    """Print a line on standard error."""
    print(f"hetsim-search: {checks.one_line(message)}", file=sys.stderr)


if __name__ == "__main__":
    main()
