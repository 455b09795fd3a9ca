"""The command `hetsim-advise`."""

from __future__ import annotations

from pathlib import Path

from hetsim.advice.advice import advised
from hetsim.advice.answer import answer
from hetsim.advice.options import answer as answer_options
from hetsim.advice.options import compared, questions_about
from hetsim.advice.question import EXAMPLE, asked
from hetsim.advice.simulations import num_processes
from hetsim.answers.files import AnswerFiles
from hetsim.answers.text import as_json, terminal
from hetsim.cli.command import ENGINE, Parser, command, minutes, typed
from hetsim.cli.completion import COMMANDS
from hetsim.config.errors import USERS, sentence
from hetsim.runtime.output import outlive_readers

ABOUT = """Recommend a method, a batch split and a set of nodes. hetsim simulates the candidates on your cluster and ranks them by the time
to a goal. Pass the arguments of hetsim: cluster=…, workload=…, batch_size=…, budget.epochs=…, data=owned …. target_accuracy=0.9 or
target_loss=0.1 sets the goal; the default is 1.25 times the test error that plain DDP reaches within budget.epochs with the worst of three
seeds. timing ranks by time alone, as does workload=phantom, which trains nothing. method=ssgd,dbs_sgd tries only these methods. GPUs of the
catalogue need no config: hetsim-advise '2*a100-40gb + 4*t4' model=resnet50 batch_size=384 network='1 Gbit/s'. --or rtx4090
compares with other machines, and prices='t4: 0.35, a100-40gb: 1.1' (or a file) says what each costs."""

EXAMPLES = (
    ("GPUs of the catalogue, by name:", f"hetsim-advise {EXAMPLE}"),
    ("Other machines instead:", f"hetsim-advise {EXAMPLE} --or 8*l4"),
    ("A cluster that you describe in a file:", "hetsim-advise cluster=mixed4 timing"),
)


def introduction() -> str:
    """What the command does, three examples, and all other commands."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "hetsim-advise recommends the data-parallel method, the batch split and the machines that train fastest.",
            *(f"{what}\n    {line}" for what, line in EXAMPLES),
            "All arguments: hetsim-advise --help. The other commands:",
            *(f"    {name:<{width}}  {each.about}" for name, each in COMMANDS.items() if name != "hetsim-advise"),
        ]
    )


def main() -> None:
    """Print the recommendation, the choices, a ranked table and the best command. Exits with status 1 and a sentence without an advice."""
    outlive_readers("hetsim-advise")
    parser = Parser(prog="hetsim-advise", description=ABOUT)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="arguments of hetsim, and timing, target_accuracy=… or target_loss=…")
    parser.add_argument(
        "--or", action="append", default=[], dest="alternatives", metavar="GPUS", help="compare with these machines; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the advice as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the advice to this file, as PNG")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report to this file, for a web browser")
    parser.add_argument(
        "--processes", type=int, metavar="P", help="the number of parallel simulations (default: the number of cores, at most 8)"
    )
    parser.add_argument("--engine", default="local", metavar="NAME", help=ENGINE)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="store the result of each simulation in this folder, and resume from it")
    parser.add_argument("--minutes", type=minutes, metavar="M", help="stop after M minutes, or at SIGTERM, and report the best so far")
    parser.add_argument("--config-dir", metavar="DIR", help="a folder of your own configs")
    arguments = parser.parse_intermixed_args()
    if not (arguments.words or arguments.alternatives):
        print(introduction())
        return
    files = AnswerFiles(writer=parser.prog, picture=arguments.picture, html=arguments.html)
    with command(parser.prog, USERS, sentence) as tell:
        processes = num_processes(arguments.processes, arguments.engine)
        files.check()
        settings = (processes, arguments.folder, arguments.minutes, tell)
        if arguments.alternatives:
            questions, small = questions_about(arguments.words, arguments.alternatives, arguments.config_dir)
            printed_answer = answer_options(compared(questions, *settings, engine=arguments.engine), typed(parser.prog), small)
        else:
            question = asked(arguments.words, arguments.config_dir)
            question.check()
            printed_answer = answer(advised(question, *settings, engine=arguments.engine), typed(parser.prog))
        print(as_json(printed_answer) if arguments.json else terminal(printed_answer), flush=True)
        files.write(printed_answer)


if __name__ == "__main__":
    main()
