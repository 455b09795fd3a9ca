"""The command `hetsim-search`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hetsim.answers.text import terminal
from hetsim.cli.command import ENGINE, Parser, command
from hetsim.config.errors import USERS, sentence
from hetsim.runtime.output import outlive_readers
from hetsim.searches.answer import answer
from hetsim.searches.search import SearchQuestion, opened

ABOUT = """Search for the best values of some keys. Pass the arguments of hetsim. Give each key that you want to search as an interval,
a range or a list: 'learning_rate=tag(log,interval(0.01,1))' 'batch_size=int(interval(64,512))' method=ssgd,dbs_sgd. With seed=0,1,2, each
trial runs all three seeds and reports the mean."""


def main() -> None:
    """Search, and print the best trial. Exits with status 1 and a sentence if no trial has a number."""
    outlive_readers("hetsim-search")
    parser = Parser(prog="hetsim-search", description=ABOUT)
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE", help="arguments of hetsim")
    parser.add_argument(
        "--objective",
        required=True,
        metavar="NAME",
        help="the number to optimise: seconds_to_0.9 (a test accuracy), or a number of summary.json",
    )
    parser.add_argument("--direction", metavar="WAY", help="minimize or maximize, for your own metric (final.NAME)")
    parser.add_argument(
        "--trials", type=int, default=50, metavar="N", help="the total number of trials, including existing ones in the folder (50)"
    )
    parser.add_argument("--processes", type=int, metavar="P", help="the number of parallel trials (1; with Ray the number of its CPUs)")
    parser.add_argument("--engine", default="local", metavar="NAME", help=ENGINE)
    parser.add_argument("--sampler", default="tpe", metavar="NAME", help="tpe (the default) or random")
    parser.add_argument("--no-pruning", action="store_true", help="never stop a trial early")
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="the folder of the runs and of the search, which can be resumed"
    )
    parser.add_argument("--config-dir", metavar="DIR", help="a folder of your own configs")
    arguments = parser.parse_intermixed_args()
    os.environ["TQDM_DISABLE"] = "1"  # the bars of the runs
    with command(parser.prog, USERS, sentence, again=": the same command continues with what is missing"):
        question = SearchQuestion(
            tuple(arguments.words), arguments.objective, arguments.direction, arguments.trials, arguments.processes,
            arguments.sampler, not arguments.no_pruning, arguments.config_dir, arguments.engine,
        )  # fmt: skip
        with opened(question, arguments.folder) as search:
            search.run()
            print(terminal(answer(search)), flush=True)
        sys.exit(0 if search.best else 1)


if __name__ == "__main__":
    main()
