"""The command `hetsim-catalogue`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hetsim import checks
from hetsim.catalogue.inventory import inventory
from hetsim.catalogue.names import DESCRIBE
from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.shown import align_columns, gpu_cells, measured_lines, model_cells, pair_lines
from hetsim.catalogue.tables import PRECISIONS, Catalogue, Gpu, Model, Named
from hetsim.catalogue.times import Choice
from hetsim.cli.command import Parser, command
from hetsim.runtime.output import outlive_readers

ABOUT = """Look up published training step times of GPUs, which cluster.machines and hetsim-advise use by name. Without words, list all GPUs
and models. With a GPU and a model, show the step times that a simulation uses, measured or estimated, with all sources. With one of them,
show its measurements. With any other word, search the names. --from prints the machines of a cluster from what its tools print."""
MAX_WORDS = 8
"""The most words that are one name."""


def main() -> None:
    """Print the catalogue, or the requested part. Exits with status 1 and a sentence if nothing matches."""
    outlive_readers("hetsim-catalogue")
    parser = Parser(prog="hetsim-catalogue", description=ABOUT)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a GPU, a model, a precision (fp32, amp, fp16), or part of a name")
    parser.add_argument(
        "--from",
        dest="inventory",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="print the machines that these files describe: the output of nvidia-smi -L, of sinfo, or of kubectl get nodes -o json",
    )
    parser.add_argument("--file", metavar="FILE.yaml", help="add your own measured rows (docs/reference/catalogue.md)")
    arguments = parser.parse_args()
    with command(parser.prog):
        catalogue = catalogue_of(arguments.file)
        if arguments.inventory and arguments.words:
            raise ValueError(f"--from prints machines, and {arguments.words[0]} is to be looked up: leave one of them out")
        lines = inventory(arguments.inventory, catalogue) if arguments.inventory else answered(catalogue, arguments.words)
        print(printable_lines(lines))


def printable_lines(lines: Iterator[str]) -> str:
    """The lines as one text without control characters, because a user's file may contain some."""
    return "\n".join(map(checks.printable, lines))


def answered(catalogue: Catalogue, words: Sequence[str]) -> Iterator[str]:
    """The lines for these arguments."""
    gpus: list[Gpu] = []
    models: list[Model] = []
    precisions: list[str] = []
    unknown: list[str] = []
    for name in _names(catalogue, words):
        if name.lower() in PRECISIONS:
            precisions.append(name.lower())
        elif (gpu := _exact(catalogue.gpu, name)) is not None:
            gpus.append(gpu)
        elif (model := _exact(catalogue.model, name)) is not None:
            models.append(model)
        else:
            unknown.append(name)
    if unknown:
        yield from _searched(catalogue, words, unknown)
        return
    if gpus and models:
        choice = Choice(catalogue)
        for place, (gpu, model) in enumerate((gpu, model) for gpu in gpus for model in models):
            yield from [""] * (place > 0)
            yield from pair_lines(choice, gpu, model, precisions[0] if precisions else None)
    elif words:
        names = {*(gpu.name for gpu in gpus), *(model.name for model in models)}
        rows = [row for row in catalogue.rows if not names or {row.gpu, row.model} & names]
        yield from measured_lines(catalogue, [row for row in rows if row.precision in (precisions or PRECISIONS)])
    else:
        yield from _tables(catalogue, [*catalogue.gpus.values()], [*catalogue.models.values()])


def _names(catalogue: Catalogue, words: Sequence[str]) -> Iterator[str]:
    """The names in these words. Several words may be one name, such as RTX 4090."""
    first = 0
    while first < len(words):
        ends = range(min(len(words), first + MAX_WORDS), first, -1)
        names = {end: " ".join(words[first:end]) for end in ends}
        first = next((end for end, name in names.items() if _exact(catalogue.gpu, name) or _exact(catalogue.model, name)), first + 1)
        yield names[first]


def _exact(look_up: Callable[[str], Named], name: str) -> Named | None:
    try:
        return look_up(name)
    except ValueError:
        return None


def _searched(catalogue: Catalogue, words: Sequence[str], unknown: Sequence[str]) -> Iterator[str]:
    """GPUs and models with all words in their names or title."""
    gpus = [gpu for gpu in catalogue.gpus.values() if _has(gpu, *words)]
    models = [model for model in catalogue.models.values() if _has(model, *words)]
    if not gpus and not models:
        raise ValueError(_why_nothing(catalogue, words, unknown))
    yield from _tables(catalogue, gpus, models)


def _why_nothing(catalogue: Catalogue, words: Sequence[str], unknown: Sequence[str]) -> str:
    """The error for words that match nothing together: the first of them that matches nothing alone, and what it may mean."""
    entries: list[Gpu | Model] = [*catalogue.gpus.values(), *catalogue.models.values()]
    alone = [word for word in unknown if not any(_has(entry, word) for entry in entries)]
    if not alone:
        return f"nothing in the catalogue matches {' '.join(words)} together: leave out {' or '.join(unknown)}"
    if hint := checks.suggestion(alone[0], PRECISIONS):
        return f"{checks.shown(alone[0])} is no GPU, model or precision of the catalogue{hint}"
    for look_up in (catalogue.gpu, catalogue.model):
        try:
            look_up(alone[0])
        except ValueError as error:
            if any(hint in str(error) for hint in (", which has ", "did you mean", "MIG")):
                return str(error)
    return f"nothing in the catalogue matches {checks.shown(alone[0])}: hetsim-catalogue without words lists all; {DESCRIBE}"


def _has(entry: Gpu | Model, *words: str) -> bool:
    """Whether all words are in the names or the title."""
    text = " ".join((entry.name, entry.title, *entry.aliases)).lower()
    return all(word.lower() in text for word in words)


def _tables(catalogue: Catalogue, gpus: Sequence[Gpu], models: Sequence[Model]) -> Iterator[str]:
    if gpus:
        yield from align_columns(gpu_cells(catalogue, gpus))
    if gpus and models:
        yield ""
    if models:
        yield from align_columns(model_cells(catalogue, models))


if __name__ == "__main__":
    main()
