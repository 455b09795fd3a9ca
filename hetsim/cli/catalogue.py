"""The command `hetsim-catalogue`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.shown import align_columns, gpu_cells, measured_lines, model_cells, pair_lines
from hetsim.catalogue.tables import PRECISIONS, Catalogue, Gpu, Model
from hetsim.catalogue.times import Choice
from hetsim.checks import printable
from hetsim.cli.command import Parser, command
from hetsim.runtime.output import outlive_readers

ABOUT = """Look up published training step times of GPUs, which cluster.machines and hetsim-advise use by name. Without words, list all GPUs
and models. With a GPU and a model, show the step times that a simulation uses, measured or estimated, with all sources. With one of them,
show its measurements. With any other word, search the names."""


def main() -> None:
    """Print the catalogue, or the requested part. Exits with status 1 and a sentence if nothing matches."""
    outlive_readers("hetsim-catalogue")
    parser = Parser(prog="hetsim-catalogue", description=ABOUT)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a GPU, a model, a precision (fp32, amp, fp16), or part of a name")
    parser.add_argument("--file", metavar="FILE.yaml", help="add your own measured rows (docs/reference/catalogue.md)")
    arguments = parser.parse_args()
    with command(parser.prog):
        print(printable_lines(answered(catalogue_of(arguments.file), arguments.words)))


def printable_lines(lines: Iterator[str]) -> str:
    """The lines as one text without control characters, because a user's file may contain some."""
    return "\n".join(map(printable, lines))


def answered(catalogue: Catalogue, words: Sequence[str]) -> Iterator[str]:
    """The lines for these arguments."""
    gpus: list[Gpu] = []
    models: list[Model] = []
    precisions: list[str] = []
    for word in words:
        if word.lower() in PRECISIONS:
            precisions.append(word.lower())
        elif (gpu := _exact(catalogue, word)) is not None:
            gpus.append(gpu)
        elif word.lower() in catalogue.models:
            models.append(catalogue.models[word.lower()])
        else:
            yield from _searched(catalogue, words)
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


def _exact(catalogue: Catalogue, word: str) -> Gpu | None:
    try:
        return catalogue.gpu(word)
    except ValueError:
        return None


def _searched(catalogue: Catalogue, words: Sequence[str]) -> Iterator[str]:
    """GPUs and models with all words in their name or title."""

    def has(*texts: str) -> bool:
        return all(word.lower() in " ".join(texts).lower() for word in words)

    gpus = [gpu for gpu in catalogue.gpus.values() if has(gpu.name, gpu.title, *gpu.aliases)]
    models = [model for model in catalogue.models.values() if has(model.name, model.title)]
    if not gpus and not models:
        raise ValueError(f"nothing in the catalogue matches {' '.join(words)}: hetsim-catalogue without words lists all")
    yield from _tables(catalogue, gpus, models)


def _tables(catalogue: Catalogue, gpus: Sequence[Gpu], models: Sequence[Model]) -> Iterator[str]:
    if gpus:
        yield from align_columns(gpu_cells(catalogue, gpus))
    if gpus and models:
        yield ""
    if models:
        yield from align_columns(model_cells(catalogue, models))


if __name__ == "__main__":
    main()
