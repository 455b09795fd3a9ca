"""The command `hetsim-table SWEEP_DIR`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hetsim.answers.files import AnswerFiles
from hetsim.answers.text import markdown
from hetsim.cli.command import READING, Parser, command, of_reading, seconds, typed
from hetsim.results.reading.finished_runs import read_runs
from hetsim.results.tables.answer import answer
from hetsim.results.tables.files import check_place, write
from hetsim.results.tables.metrics import METRICS, Target
from hetsim.results.tables.question import TableQuestion
from hetsim.results.tables.table import table
from hetsim.runtime.output import outlive_readers


def main() -> None:
    """Write and print the table. Exits with status 1 and a sentence if no table can be made."""
    outlive_readers("hetsim-table")
    parser = Parser(prog="hetsim-table", description="Write a table and a picture of a sweep, with means over seeds.")
    parser.add_argument("sweep", metavar="SWEEP_DIR", type=Path, help="the folder of a sweep; finished runs may be at any depth")
    parser.add_argument(
        "--metric", metavar="NAME", help=f"rank by this number and draw it: {', '.join(METRICS)}, or final.NAME for your own metric"
    )
    parser.add_argument("--direction", metavar="WAY", help="minimize (default) or maximize, for your own metric (final.NAME)")
    parser.add_argument(
        *("--target-accuracy", "--accuracy"),
        type=float,
        metavar="A",
        help="the accuracy of seconds_to_accuracy (default: the highest that every row reaches)",
    )
    parser.add_argument("--target-loss", type=float, metavar="L", help="the training loss of seconds_to_loss")
    parser.add_argument("--at-seconds", type=seconds, metavar="T", help="the time of accuracy_at_seconds and loss_at_seconds")
    parser.add_argument(
        "--baseline", metavar="KEY=VALUE,…", help="show the gain of each row over the row with these values, such as method=ssgd"
    )
    parser.add_argument(
        "--best-of",
        metavar="KEYS",
        default="",
        help="among rows that differ only in these keys, such as learning_rate,momentum, keep the best",
    )
    parser.add_argument("--to", metavar="DIR", type=Path, help="write the files to this folder instead of SWEEP_DIR")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a report to this file, for a web browser")
    arguments = parser.parse_args()
    too_deep = f"{arguments.sweep} has folders that are nested hundreds deep: move them elsewhere"
    files = AnswerFiles(writer=parser.prog, html=arguments.html)
    with command(parser.prog, READING, partial(of_reading, too_deep=too_deep)) as tell:
        files.check()
        check_place("--to", arguments.to) if arguments.to else check_place("", arguments.sweep)
        keys = tuple(key.strip() for key in arguments.best_of.split(",") if key.strip())
        target = Target(arguments.target_accuracy, arguments.target_loss, arguments.at_seconds)
        question = TableQuestion(arguments.metric, target, arguments.baseline, keys, arguments.direction)
        runs = read_runs(arguments.sweep)
        sweep_table = table(runs.runs, question, known=runs.remarks)
        printed_answer = answer(sweep_table, typed(parser.prog))
        write(sweep_table, arguments.to or arguments.sweep)
        files.write(printed_answer)
        print(markdown(printed_answer), end="", flush=True)
        for remark in printed_answer.remarks:
            tell(remark)


if __name__ == "__main__":
    main()
