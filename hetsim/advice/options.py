"""Several choices of machines for one training: what each takes, what it costs, and when another one pays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hetsim.advice.advice import AdviceFindings, AdviceRow, advised
from hetsim.advice.answer import answer as advice_answer
from hetsim.advice.decision import what_to_do
from hetsim.advice.question import AdviceQuestion, alternatives, asked
from hetsim.answers.answer import Answer, Picture, Sheet
from hetsim.catalogue.tables import Catalogue
from hetsim.results.writing.describe import formatted, unit_of_time
from hetsim.results.writing.figures import COMPUTE, INK, own_style

OF_BATCH, OF_MODEL = re.compile(r"(?:the nodes' max_samples|these GPUs) hold \d+ samples"), re.compile(r"\S+ is too large for ")
"""Sentences of errors about machines whose memories are too small."""
DIFFER = 1.1
"""Sources differ if the ratio of two GPUs in one is over this factor of the ratio in another."""


@dataclass(frozen=True)
class Option:
    """A choice of machines, with the advice for it. `machines` is what was typed."""

    machines: str
    question: AdviceQuestion
    advice: AdviceFindings

    @property
    def row(self) -> AdviceRow:
        """The recommended candidate."""
        return self.advice.recommended

    @property
    def seconds(self) -> float:
        """The seconds of the training; infinite if it does not reach the goal."""
        return math.inf if self.row.seconds.mean is None else self.row.seconds.mean

    @property
    def cost(self) -> float | None:
        """The cost of the training; None without prices."""
        return self.row.cost

    @property
    def hourly(self) -> float:
        """The price of an hour of the nodes in use; 0 without prices."""
        return 3600 * (self.cost or 0.0) / self.seconds

    @property
    def error(self) -> float:
        """The largest relative error of the times of the GPUs in use."""
        named, out = self.question.named, set(self.row.candidate.leave_out)
        used = [named.times[name].error for name, ranks in named.ranks.items() if not out.issuperset(ranks)] if named is not None else []
        return max(used, default=0.0)

    @property
    def samples_per_second(self) -> float:
        """The samples in a second of the whole training."""
        return self.advice.epochs * self.advice.num_samples / self.seconds


class TooSmall(NamedTuple):
    """A choice of machines whose memories cannot hold the batch, or the model, and the sentence that says so."""

    machines: str
    reason: str

    @property
    def cell(self) -> str:
        """What its row of the table says."""
        return f"cannot hold the {'batch' if OF_BATCH.match(self.reason) else 'model'}"


def questions_about(
    words: Sequence[str], machines: Sequence[str], config_dir: str | None
) -> tuple[list[tuple[str, AdviceQuestion]], list[TooSmall]]:
    """Each choice of machines with its question, the typed one first, and the choices that are too small for a question.

    Raises ValueError for invalid arguments, and if all choices are too small.
    """
    questions: list[tuple[str, AdviceQuestion]] = []
    small: list[TooSmall] = []
    for option in alternatives(words, machines):
        try:
            question = asked(option, config_dir)
            question.check()
        except ValueError as error:
            if not (OF_BATCH.match(str(error)) or OF_MODEL.match(str(error))):
                raise
            small.append(TooSmall(option[0], str(error)))
        else:
            questions.append((option[0], question))
    if not questions:
        raise ValueError(small[0].reason)
    return questions, small


def compared(
    questions: Sequence[tuple[str, AdviceQuestion]],
    processes: int | None,
    folder: Path | None,
    minutes: float | None,
    tell: Callable[[str], object],
    *,
    engine: str = "local",
) -> list[Option]:
    """The advice for each choice of machines. Each has the same part of the minutes, and a folder of its own within `folder`."""
    options = []
    for number, (machines, question) in enumerate(questions):
        tell(f"{machines}:")
        place = None if folder is None else folder / str(number)
        limit = None if minutes is None else minutes / len(questions)
        options.append(Option(machines, question, advised(question, processes, place, limit, tell, engine=engine)))
    return options


def answer(options: Sequence[Option], command: str = "", small: Sequence[TooSmall] = ()) -> Answer:
    """The answer with these options. `command` has asked for them. Choices that are too small come last."""
    first, advice = options[0], options[0].advice
    in_order = sorted(options, key=lambda option: option.seconds)
    by_price = sorted((option for option in options if option.cost is not None), key=lambda option: option.cost or 0.0)
    fastest, cheapest = in_order[0], next(iter(by_price), None)
    finite = [option for option in in_order if option.seconds < math.inf]
    sentence = f"The fastest is {fastest.machines}" if fastest.seconds < math.inf else f"No choice reaches {advice.goal}"
    if fastest is not first and first.seconds < math.inf:
        sentence += f", {first.seconds / fastest.seconds:.3g} times as fast as {first.machines}"
    near = [option for option in in_order[1:] if option.seconds < (1 + math.hypot(fastest.error, option.error)) * fastest.seconds]
    if near:
        sentence += f" (within the error of the times, {' or '.join(option.machines for option in near)} may be as fast)"
    if cheapest is not None:
        unpriced = f", of the {len(by_price)} with prices" if len(by_price) < len(options) else ""
        sentence += f"; the cheapest is {cheapest.machines}{unpriced}"
    tokens = None if first.question.named is None else first.question.named.model.tokens
    rates = ["samples/s", *(["tokens/s"] if tokens else [])]
    heads = ["machines", *rates, "time", *(["price of an hour", "price", "by price"] if by_price else []), "what to run"]
    unit = unit_of_time(fastest.seconds)
    rows = [_cells(option, unit, tokens, by_price) for option in in_order]
    rows += [[choice.machines, *["–"] * (len(heads) - 2), choice.cell] for choice in small]
    above = [f"{first.question.task}: time {advice.end_point}, {advice.batches}, the fastest first"]
    return Answer(
        question=f"Which machines for {first.question.task}?",
        answer=[f"{sentence}.", *(_break_even(first, options[1:]) if first.seconds < math.inf else [])],
        pictures=[Picture("machines", "Time of the training", partial(_picture, finite, unit))],
        sheets=[Sheet("The machines", heads, rows, above=above)],
        remarks=[*(f"{choice.machines} is not ranked: {choice.reason}" for choice in small), *_remarks(options)],
        command=command,
        data={
            "fastest": fastest.machines,
            "cheapest": None if cheapest is None else cheapest.machines,
            "options": [_data(option) for option in options],
            **({"too_small": [choice._asdict() for choice in small]} if small else {}),
        },
    )


def _cells(option: Option, unit: tuple[str, float], tokens: int | None, by_price: Sequence[Option]) -> list[str]:
    prices = ["–", "–", "–"] if option.cost is None else [f"{option.hourly:.3g}", f"{option.cost:.3g}", str(1 + by_price.index(option))]
    time = "–" if option.seconds == math.inf else f"{formatted(option.seconds / unit[1])} {unit[0]}"
    order = what_to_do(option.row.candidate, option.question.experiment.cluster, option.question.gpus)
    rates = [formatted(per_sample * option.samples_per_second) for per_sample in (1, *([tokens] if tokens else []))]
    return [option.machines, *rates, time, *(prices if by_price else []), order]


@own_style()
def _picture(options: Sequence[Option], unit: tuple[str, float]) -> Any:
    """A figure with a bar for each choice of machines, and its price."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 0.4 * len(options)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(range(len(options)), [option.seconds / unit[1] for option in options], color=COMPUTE)
    axes.bar_label(bars, ["" if option.cost is None else f"{option.cost:.3g}" for option in options], padding=3, fontsize=9, color=INK)
    axes.set_yticks(range(len(options)), [option.machines for option in options], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"time of the training in {unit[0]}" + (", and its price" if any(option.cost for option in options) else ""), fontsize=9, color=INK
    )
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return figure


def _break_even(first: Option, others: Sequence[Option]) -> Iterator[str]:
    """For each other choice, when it pays to take it instead of the first one."""
    for option in (option for option in others if option.seconds < math.inf):
        ratio = first.seconds / option.seconds
        if first.cost is None:
            yield f"{option.machines} costs less per training if its hour costs less than {ratio:.3g} times an hour of {first.machines}."
            continue
        limit = 3600 * first.cost / option.seconds
        sentence = f"{option.machines} costs less than {first.machines} if its hour costs less than {limit:.3g}"
        if option.cost is not None:
            saved, more = (first.seconds - option.seconds) / 3600, option.cost - first.cost
            sentence += f" (it costs {option.hourly:.3g})"
            if saved > 0 and more > 0:
                sentence += f"; each hour that it saves costs {more / saved:.3g}"
            elif saved < 0 and more < 0:
                sentence += f"; each hour that it takes longer saves {more / saved:.3g}"
        yield f"{sentence}."


def _remarks(options: Sequence[Option]) -> Iterator[str]:
    """How the times are known, where sources differ, and what each advice adds. Remarks that several options have come once."""
    series = {times.series for option in options if option.question.named for times in option.question.named.times.values()}
    for source, model, precision in series:
        yield f"all times are of {model} in {precision}, from the programs of {source}, measured or estimated by one law"
    yield from dict.fromkeys(str(times) for option in options if option.question.named for times in option.question.named.times.values())
    yield from _differences(options)
    for option in options:
        if option.advice.stopped is not None:
            yield f"{option.machines} was stopped {option.advice.stopped}: this is its best so far"
    yield "for the split and the command of one of them, ask about it alone"


def _differences(options: Sequence[Option]) -> Iterator[str]:
    """Pairs of GPUs of the first choice and another one whose ratio differs between sources."""
    named = [option.question.named for option in options if option.question.named is not None]
    if len(named) < 2:
        return
    mine = dict.fromkeys(times.gpu.name for times in named[0].times.values())
    others = dict.fromkeys(times.gpu.name for of_option in named[1:] for times in of_option.times.values())
    for gpu in mine:
        for other in others:
            ratios = _ratios(named[0].catalogue, gpu, other, named[0].model.name) if other != gpu else {}
            if ratios and max(ratios.values()) > DIFFER * min(ratios.values()):
                listed = ", ".join(f"{ratio:.3g} ({source}, {precision})" for (source, precision), ratio in ratios.items())
                yield f"sources differ: {other} is so many times as fast as {gpu}: {listed}"


def _ratios(catalogue: Catalogue, gpu: str, other: str, model: str) -> dict[tuple[str, str], float]:
    """How many times as fast the other GPU is, for each source and precision that measured both: at their best batch sizes."""
    rates: dict[tuple[str, str], dict[str, float]] = {}
    for row in catalogue.rows:
        if row.model == model and row.gpu in (gpu, other):
            of_series = rates.setdefault((row.source, row.precision), {})
            of_series[row.gpu] = max(row.batch / row.seconds, of_series.get(row.gpu, 0.0))
    return {series: of_series[other] / of_series[gpu] for series, of_series in rates.items() if len(of_series) == 2}


def _data(option: Option) -> dict[str, Any]:
    """An option as JSON values."""
    return {
        "machines": option.machines,
        "samples_per_second": option.samples_per_second,
        "seconds": option.row.seconds.mean,
        "cost": option.cost,
        "advice": advice_answer(option.advice).data,
    }
