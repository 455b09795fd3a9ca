"""The command `hetsim-calibrate`: measure these machines, and write a cluster that both backends read."""

from __future__ import annotations

from pathlib import Path

from hetsim.answers.files import AnswerFiles
from hetsim.calibration.measuring.answer import answer
from hetsim.calibration.measuring.from_run import from_trace
from hetsim.calibration.measuring.measure import calibrate
from hetsim.cli.command import Parser, command, seconds, typed
from hetsim.config.cluster_files import as_rows, compose
from hetsim.config.errors import USERS, sentence
from hetsim.distributed.launch.failure_report import CAUSE, leave_reason
from hetsim.distributed.rank.cleanup import follow_launcher
from hetsim.errors import RunFailed
from hetsim.runtime.output import outlive_readers

ABOUT = """Measure how long gradients, updates, messages and all-reduces take on your machines, and how much processor time they need. Pass
the arguments of your training run. hetsim keeps the nodes, quotas and links of the cluster, and replaces the times. It writes the measured
cluster to FILE.yaml, such as my/cluster/lab.yaml. Use this cluster with hetsim --config-dir my cluster=lab."""


SECONDS, QUICK_SECONDS = 2.0, 0.4


def main() -> None:
    """Measure, and write the cluster. Exits with status 1 and a sentence if that is impossible."""
    outlive_readers("hetsim-calibrate")
    parser = Parser(prog="hetsim-calibrate", description=ABOUT)
    parser.add_argument("file", type=Path, metavar="FILE.yaml", help="the cluster file to write")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="arguments of hetsim")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=seconds, default=SECONDS, metavar="S", help=f"the duration of each measuring phase ({SECONDS:g})")
    length.add_argument(
        "--quick", dest="seconds", action="store_const", const=QUICK_SECONDS,
        help=f"same as --seconds {QUICK_SECONDS:g}: takes about 20 seconds for a few workers, and is less accurate",
    )  # fmt: skip
    parser.add_argument("--against", type=Path, metavar="OLD.yaml", help="an earlier calibration: report what has changed since")
    parser.add_argument(
        "--compose",
        nargs="+",
        metavar="PART.yaml[:COPIES]",
        help="do not measure: combine the nodes of these calibrations, with the links of the first",
    )
    parser.add_argument("--from-trace", type=Path, metavar="RUN", help="do not measure: use the times of this finished run")
    parser.add_argument("--html", type=Path, metavar="PAGE", help="write a report to this file, for a web browser")
    parser.add_argument(
        "--rows", type=Path, metavar="ROWS.yaml", help="do not measure: append the step times of FILE.yaml to your own catalogue"
    )
    parser.add_argument("--gpu", metavar="NAME[:RANK]", help="with --rows: the name of the GPU, and its node (default: node 0)")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own configs")
    arguments = parser.parse_intermixed_args()
    follow_launcher()
    files = AnswerFiles(writer=parser.prog, html=arguments.html)
    with command(parser.prog, USERS, _sentence):
        files.check()
        if arguments.html is not None and (arguments.compose is not None or arguments.from_trace is not None):
            raise ValueError("--html is for what was measured: leave it out with --compose and --from-trace")
        if arguments.compose is not None:
            compose(arguments.file, arguments.compose, arguments.words)
            return
        if (arguments.rows is None) != (arguments.gpu is None):
            raise ValueError("--rows and --gpu go together: give --rows my-gpus.yaml --gpu my-card")
        if arguments.rows is not None:
            as_rows(arguments.file, arguments.gpu, arguments.rows, arguments.words)
            return
        if arguments.from_trace is not None:
            from_trace(arguments.file, arguments.from_trace, arguments.words)
            return
        result = calibrate(
            arguments.file, arguments.words, seconds=arguments.seconds, against=arguments.against, config_dir=arguments.config_dir
        )  # fmt: skip
        if result is not None:
            files.write(answer(arguments.file, result, typed(parser.prog)))


def _sentence(error: BaseException) -> str | None:
    """The error's sentence; None if hetsim-launch prints it."""
    text = sentence(error)
    return None if leave_reason(text, order=1 if isinstance(error, RunFailed | OSError) else CAUSE) else text


if __name__ == "__main__":
    main()
