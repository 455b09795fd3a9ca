"""A question to `hetsim-advise`: the arguments for all candidates, and the goal of the ranking."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hetsim import checks
from hetsim.advice.simulated import Goal, experiment_of
from hetsim.catalogue.own import catalogue_of
from hetsim.catalogue.prices import prices_of
from hetsim.catalogue.times import Choice
from hetsim.catalogue.typed_machines import TypedMachine, typed_machines
from hetsim.config.compose import entries_as_typed
from hetsim.config.methods import Method, shipped
from hetsim.config.resolved import Named, named_gpus
from hetsim.config.typed import as_typed
from hetsim.distributed.environment import check_alone
from hetsim.runtime.experiment import Experiment

TIMING = "timing"
GOALS = ("target_accuracy", "target_loss")
DECIDED = ("budget.updates", "budget.seconds", "evaluate_every_epochs", "evaluate_every_seconds", "stop_when_diverged")
"""Keys that the advice sets itself."""
WORKLOAD = ("workload", "autocast", "partition", "data_root", "download")
"""Keys of the training, which runs for timing only do not have."""
BASELINE = "ddp"
"""Plain DistributedDataParallel: equal batches on all nodes. Gains are relative to it."""
RATES = ("learning_rate", "local_learning_rate")
OF_CATALOGUE = {"model": "model", "precision": "precision", "source": "source", "catalogue": "file"}
"""Arguments for named GPUs, each with the key of cluster.catalogue that it sets."""
OF_MACHINES = ("network", "inside", "micro_batch", "loading")
"""Arguments for named GPUs, which each machine or each of its GPUs gets."""
PRICES = "prices"
"""The argument with the prices of named GPUs."""
OF_ONE_LINE = re.compile(rf"cluster\.machines\.\d+\.(?:gpus\.(?:\d+\.)?)?({'|'.join(OF_MACHINES)})\b")
"""The keys that these arguments set, as errors name them."""
MOST_NODES = 256
"""The maximum number of nodes to simulate in the process of the question."""
EXAMPLE = "'2*a100-40gb + 4*t4' model=resnet50 network='1 Gbit/s'"

OF_BOUNDS = re.compile(r"the nodes' max_samples hold (\d+) samples in all, but batch_size=(\d+): raise them, or lower it")


@dataclass(frozen=True)
class AdviceQuestion:
    """The arguments for all candidates, the methods to try, and the ranking: by time alone, or by time to a goal."""

    words: tuple[str, ...]
    methods: tuple[Method, ...]
    timing: bool = False
    goal: Goal | None = None
    """The goal. None: the result of plain DDP in the given number of epochs."""
    config_dir: str | None = None
    in_one_line: bool = False
    """Whether the machines were typed in one line."""

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment of plain DDP with these arguments. Raises ValueError if they are invalid."""
        try:
            return experiment_of(self.words_of_baseline, self.config_dir)
        except ValueError as error:
            text = OF_ONE_LINE.sub(r"\1=…", str(error)) if self.in_one_line else str(error)
            raise ValueError(OF_BOUNDS.sub(self._how_to_fit, text)) from None

    def _how_to_fit(self, bounds: re.Match[str]) -> str:
        """The sentence on a batch that nodes cannot hold, for named GPUs."""
        most = [times.max_samples for times in self.named.times.values() if times.max_samples is not None] if self.named is not None else []
        if self.named is None or len(most) < len(self.named.times):
            return bounds[0]
        return (
            f"these GPUs hold {bounds[1]} samples of {self.named.model.name} in all, but batch_size={bounds[2]}: lower it, or type "
            f"micro_batch={min(most)}, the samples of one pass"
        )

    @cached_property
    def named(self) -> Named | None:
        """The catalogue's data of the named GPUs that the arguments do not leave out; None if there are none."""
        entries = entries_as_typed(self.words_of_baseline, self.config_dir)["cluster"]
        named = named_gpus(entries)
        return None if named is None else named.without(entries.get("leave_out") or ())

    @property
    def machines(self) -> str | None:
        """A sentence that says which GPUs each machine has; None if no GPU is named."""
        return None if self.named is None else self.named.sentence

    @property
    def gpus(self) -> Mapping[str, tuple[int, ...]]:
        """The nodes of each named GPU by its title."""
        return {} if self.named is None else self.named.titles

    @property
    def task(self) -> str:
        """What is trained, in words: the model of named GPUs, or else the workload."""
        return self.experiment.workload.name if self.named is None else self.named.model.name

    @property
    def place(self) -> str:
        """Where it is trained, in words: the number of named GPUs, or else the cluster."""
        cluster, num_named = self.experiment.cluster, sum(map(len, self.gpus.values()))
        return f"{num_named} GPU{'s' if num_named > 1 else ''}" if num_named == cluster.num_workers else cluster.name

    @property
    def batches(self) -> str:
        """The batch size in words."""
        default = "" if self.typed("batch_size") else " (the default)"
        return f"batches of {self.experiment.batch_size}{default}"

    def check(self) -> None:
        """Raise ValueError if plain DDP makes no experiment, the goal needs a model, or several processes ask the same question."""
        check_alone("the same candidates", "start one process")
        if self.goal is not None and not self.experiment.workload.has_model:
            raise ValueError(f"workload={self.experiment.workload.name} trains nothing, so it reaches no {self.goal}: ask for timing")
        assert self.epochs

    @cached_property
    def epochs(self) -> float:
        """The number of epochs to train."""
        epochs = self.experiment.budget.epochs
        if epochs is None:
            raise ValueError("budget.epochs is null, and an advice is for so much training: give it, such as budget.epochs=20")
        return epochs

    def typed(self, key: str) -> bool:
        """Whether the arguments choose a group or set this key, or a key within it."""
        return any(name == key or name.startswith(f"{key}.") for name in map(key_of, self.words))

    @property
    def even(self) -> str | None:
        """The baseline's allocation if the arguments choose one for all candidates; else None."""
        return "even" if self.typed("allocation") else None

    @property
    def words_of_baseline(self) -> list[str]:
        """The arguments of plain DDP."""
        return [*self.words, f"method={BASELINE}", *(["allocation=even"] if self.even else []), "backend=sim"]

    @property
    def is_small(self) -> bool:
        """Whether this process may simulate: without a model and a user's code, on a few hundred nodes."""
        return not (self.typed("trust") or self.experiment.workload.has_model) and self.experiment.num_workers <= MOST_NODES

    @property
    def words_of_timing(self) -> list[str]:
        """The arguments that also apply to a run without a model. Its samples are divided equally, because they have no labels."""
        kept = [word for word in self.words if key_of(word).split(".")[0] not in WORKLOAD]
        return [*kept, "partition=even"] if self.experiment.data == "owned" else kept


def key_of(word: str) -> str:
    """The key of a Hydra argument."""
    return word.lstrip("+~").partition("=")[0]


def asked(words: Sequence[str], config_dir: str | None) -> AdviceQuestion:
    """The question in these arguments. Raises ValueError if they are invalid."""
    _refuse_twice(words)
    expanded = expanded_arguments(words)
    timing = TIMING in expanded
    goals = {key: word.partition("=")[2] for word in expanded if (key := key_of(word)) in GOALS}
    if timing + len(goals) > 1:
        raise ValueError("an advice is by one thing: leave out all but one of timing, target_accuracy=… and target_loss=…")
    kept = [word for word in expanded if word != TIMING and key_of(word) not in GOALS]
    for word in kept:
        _check(word)
    methods = next((word.partition("=")[2] for word in kept if key_of(word) == "method"), None)
    return AdviceQuestion(
        tuple(word for word in kept if key_of(word) != "method"),
        tuple(shipped()) if methods is None else _methods(methods),
        timing,
        _goal(goals),
        config_dir,
        bool(_gpu_words(words)),
    )


def _refuse_twice(words: Sequence[str]) -> None:
    """Raise ValueError if a key has two values."""
    keys = [key_of(word) for word in words if "=" in word]
    if twice := next((key for place, key in enumerate(keys) if key in keys[:place]), None):
        raise ValueError(
            "method is given twice: list the candidates in one word, such as method=ssgd,dbs_sgd"
            if twice == "method"
            else f"{twice} is given twice: leave one of them out"
        )


def _check(word: str) -> None:
    if "=" not in word and not word.startswith("~"):
        hint = (
            checks.suggestion(word, (TIMING, *(method.name for method in shipped())))
            or f": give key=value, timing, or GPUs such as {EXAMPLE}"
        )
        raise ValueError(f"{checks.shown(word)} is not an argument of hetsim{hint}")
    key = key_of(word)
    if key in DECIDED:
        raise ValueError(f"{key} is what an advice sets itself: leave it out, and say how much is trained by budget.epochs")
    if key == "backend" or key.startswith("backend."):
        raise ValueError("an advice is by simulation: leave backend out, and run what it recommends with backend=dist")
    if key == "experiment":
        raise ValueError("experiment chooses a method, which an advice does itself: leave it out")


def _methods(listed: str) -> tuple[Method, ...]:
    methods = {method.name: method for method in shipped()}
    names = [name.strip() for name in listed.strip("[]").split(",")]
    for name in names:
        if name not in methods:
            raise ValueError(
                f"method={checks.shown(name)} is not a shipped method{checks.suggestion(name, methods) or ': see hetsim-methods'}"
            )
    return tuple(methods[name] for name in dict.fromkeys(names))


def _goal(goals: dict[str, str]) -> Goal | None:
    for key, value in goals.items():
        try:
            number = checks.number(key, float(value))
        except ValueError:
            raise ValueError(f"{key} must be a number above zero, not {checks.shown(value)}") from None
        if key == "target_accuracy" and number > 1:
            raise ValueError(f"target_accuracy is a share from 0 to 1, not {number:g}: of a percentage take a hundredth")
        return Goal(accuracy=number) if key == "target_accuracy" else Goal(loss=number)
    return None


def expanded_arguments(words: Sequence[str]) -> list[str]:
    """The arguments of a question that may name GPUs, such as `EXAMPLE`, as arguments of hetsim.

    A cluster replaces the named GPUs. If the arguments then name no method, they get `method=ddp`.

    Raises ValueError for invalid arguments.
    """
    named, options = _gpu_words(words), _options(words)
    if joined := next((word for word in words if re.search(r"\s", key_of(word)) and "=" in word), None):
        raise ValueError(
            f"{checks.shown(joined)} has GPUs and an argument in one word: quote the GPUs alone, as in hetsim-advise {EXAMPLE}"
        )
    if not named:
        if options:
            raise ValueError(f"{next(iter(options))}=… goes with GPUs that are named: write hetsim-advise {EXAMPLE}")
        return [*words]
    if len(named) > 1:
        raise ValueError(f"GPUs are named in {len(named)} words: quote all of them as one, such as {EXAMPLE}")
    catalogue = catalogue_of(options.get("catalogue"))
    typed = typed_machines(named[0], catalogue.gpu)
    for key in ("model", "network"):
        if key not in options:
            hints = (f"{name}=… is unknown{hint}" for name in map(key_of, words) if (hint := checks.suggestion(name, (key,))))
            raise ValueError(next(hints, f"{named[0]} needs {key}=…: write hetsim-advise {EXAMPLE}"))
    prices = prices_of(options[PRICES], catalogue.gpu) if PRICES in options else {}
    machines = [_machine(machine, options, prices) for machine in typed]
    kept = [word for word in words if word not in named and _key_and_value(word)[0] not in options]
    of_catalogue = [f"+cluster.catalogue.{OF_CATALOGUE[key]}={as_typed(value)}" for key, value in options.items() if key in OF_CATALOGUE]
    workload = [] if any(_key_and_value(word)[0] == "workload" for word in kept) else ["workload=phantom"]
    method = [] if any(_key_and_value(word)[0] == "method" for word in kept) else ["method=ddp"]
    return ["cluster=machines", f"cluster.machines={as_typed(machines)}", *of_catalogue, *workload, *kept, *method]


def _key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    return (key, value) if equals else ("", "")


def alternatives(words: Sequence[str], machines: Sequence[str]) -> list[list[str]]:
    """The arguments of a question that names GPUs, and those of the same question about each of these machines.

    The times of all GPUs are from one series of the catalogue. Raises ValueError for invalid arguments.
    """
    named, options = _gpu_words(words), _options(words)
    if len(named) != 1 or "model" not in options:
        raise ValueError(f"--or compares GPUs that are named with others: write hetsim-advise {EXAMPLE} --or rtx4090")
    choice = Choice(catalogue_of(options.get("catalogue")))
    typed = [typed_machines(text, choice.catalogue.gpu) for text in (named[0], *machines)]
    gpus = [choice.catalogue.gpu(kind.name) for option in typed for machine in option for kind in machine.kinds]
    model = choice.catalogue.model(options["model"])
    source, _, precision = choice.series(gpus, model, options.get("precision"), options.get("source"))
    kept = [word for word in words if key_of(word) not in ("source", "precision") and word not in named]
    return [[text, *kept, f"source={source}", f"precision={precision}"] for text in (named[0], *machines)]


def _options(words: Sequence[str]) -> dict[str, str]:
    """The values of the arguments that go with named GPUs."""
    return {key: value for word in words for key, value in [_key_and_value(word)] if key in (*OF_CATALOGUE, *OF_MACHINES, PRICES)}


def _gpu_words(words: Sequence[str]) -> list[str]:
    """The words that name GPUs. Without a model, a word without digits, brackets and signs is a mistyped argument."""
    bare = [word for word in words if "=" not in word and not word.startswith("~") and word != TIMING]
    named = [word for word in bare if re.search(r"[0-9*+()]", word)]
    return named or (bare if "model" in _options(words) else [])


def _machine(machine: TypedMachine, options: Mapping[str, str], prices: Mapping[str, float]) -> dict[str, object]:
    """The machine as a row of `cluster.machines`."""
    values = {key: _number(options[key]) for key in OF_MACHINES if key in options}
    of_gpu = {key: value for key, value in values.items() if key == "micro_batch"}
    num_gpus = sum(kind.count for kind in machine.kinds)
    of_machine = {key: value for key, value in values.items() if key not in of_gpu and (key != "inside" or num_gpus > 1)}
    return {**({"count": machine.count} if machine.count > 1 else {}), "gpus": machine.gpus(of_gpu, prices), **of_machine}


def _number(text: str) -> str | int | float:
    """A number without a unit, or the text."""
    try:
        return int(text) if text.isascii() and text.isdecimal() else float(text)
    except ValueError:
        return text
