"""hetsim from Python: what the commands do, for notebooks and scripts.

    import hetsim

    run = hetsim.run("method=dbs_sgd", "cluster=mixed4")
    run.summary["updates_per_second"], run.curve(), run.timeline()

`run` takes the arguments of the command, writes a folder, and returns its results. Errors that you can correct are ValueErrors, or
`hetsim.errors.RunFailed` if the run had begun. The message is one sentence.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from threading import RLock
from typing import Any, ParamSpec, TypeVar

from hetsim.api.returned import Advice, Comparison, Run, Search, Stragglers, Table, printable_errors
from hetsim.errors import RunFailed
from hetsim.files.summary_and_curve import check_has, read_summary
from hetsim.results.comparison.answer import answer as answer_of_comparison
from hetsim.results.comparison.findings import compare as compared
from hetsim.results.reading.finished_runs import finished_run, read_runs
from hetsim.results.tables.answer import answer as answer_of_table
from hetsim.results.tables.metrics import Target
from hetsim.results.tables.question import TableQuestion
from hetsim.results.tables.table import Ranking
from hetsim.results.tables.table import table as ranking
from hetsim.results.writing.describe import DESCRIBED

P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that only one thread at a time calls it, because a process has only one Hydra state and one set of seeds."""

    @wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> R:
        with _lock, _current_folder_named():
            return function(*arguments, **options)

    return called


@contextlib.contextmanager
def _current_folder_named() -> Iterator[None]:
    """Within this context, Python imports from the folder that is current now. A run may change the current folder."""
    folder_of_imports = os.getcwd() if "" in sys.path else ""
    sys.path[:] = [entry or folder_of_imports for entry in sys.path]
    try:
        yield
    finally:
        sys.path[:] = ["" if entry is folder_of_imports else entry for entry in sys.path]


_lock = RLock()


@one_at_a_time
def run(*words: str, trust: Sequence[str] = (), config_dir: str | Path | None = None, folder: str | Path | None = None, **keys: Any) -> Run:
    """Run `hetsim` with these arguments, and return the results of the run.

    Args:
        words: arguments of the command line, such as "method=dbs_sgd" and "backend=dist".
        trust: names of your modules from which `_target_` may load classes.
        config_dir: a folder with further config files, as `--config-dir`.
        folder: the folder of the run's files; by default a new folder below runs/.
        keys: the same arguments as keywords: method="dbs_sgd". A mapping changes some keys of a group and
            keeps its other keys: cluster={"nodes": [{"count": 2, …}]}.

    Returns:
        The finished run.

    Raises:
        ValueError: the config is wrong; one sentence says what to type.
        RunFailed: the run began and failed.
    """
    from hetsim.config.compose import composed
    from hetsim.config.errors import in_one_sentence
    from hetsim.config.resumed import finished_already
    from hetsim.config.start import start
    from hetsim.config.typed import words_for
    from hetsim.files.lock import only_run_in

    config = composed([*words, *words_for(keys), *_trusted(trust)], config_dir=config_dir, folder=folder)
    if config.folder.is_symlink():
        raise ValueError(f"{config.folder} is a link, and would be written through: give another folder")
    try:
        summary = finished_already(config.entries, config.words, config.folder) or start(config, only_run_in)
    except Exception as error:
        printed = "".join(traceback.format_exception(error))  # a notebook shows it
        is_printable = all(map(str.isprintable, printed.split("\n")))
        if is_printable and not isinstance(error, OSError):
            raise
        raise in_one_sentence(error) from (error if is_printable else None)
    if summary is None:
        raise RunFailed("another process leads this run: call hetsim.run in one process, or start the command by a launcher")
    return Run(config.folder, summary)


def _trusted(trust: Sequence[str]) -> tuple[str, ...]:
    return (f"trust=[{','.join(trust)}]",) if trust else ()


@one_at_a_time
def sweep(
    varied: Mapping[str, Any],
    *,
    processes: int | None = None,
    engine: str = "local",
    folder: str | Path | None = None,
    grid: Mapping[str, Mapping[str, Any]] | None = None,
    trust: Sequence[str] = (),
    config_dir: str | Path | None = None,
) -> Table:
    """Run `hetsim -m`: every combination of the values.

    Args:
        varied: a value, or a list of values, for each key: {"method": ["ssgd", "asgd"], "seed": range(3), "budget.epochs": 2}. To pass
            a single value that is a list, write [[…]].
        processes: the number of runs at a time; by default 1, and with Ray one for each CPU of the cluster.
        engine: "local", or "ray" for the Ray cluster of RAY_ADDRESS or for Ray on this machine.
        folder: the folder of the runs; by default a new folder below runs/. hetsim does not repeat finished runs there.
        grid: values for each method separately, as `+grid=`: {"asgd": {"learning_rate": [0.01, 0.02]}}.
        trust: names of your modules from which `_target_` may load classes.
        config_dir: a folder with further config files, as `--config-dir`.

    Returns:
        The table of all runs in the folder.

    Raises:
        ValueError: a config is wrong; one sentence says what to type.
        RunFailed: all runs failed. If only some fail, a warning lists them.
    """
    from hetsim.config.typed import as_typed, check_folder, quoted
    from hetsim.sweeps.sweep import swept, words_of

    words = [*words_of(varied), *_trusted(trust)]
    if grid is not None:
        words.append(f"+grid={as_typed({method: dict(keys) for method, keys in grid.items()})}")
    if folder is not None:
        check_folder("folder", folder)
        words.append(f"hydra.sweep.dir={quoted(str(folder))}")
    place, outcomes = swept(words, processes=processes, engine=engine, config_dir=None if config_dir is None else Path(config_dir))
    failed = [f"{outcome.run}: {outcome.failure}" for outcome in outcomes if outcome.failure is not None]
    if len(failed) == len(outcomes):
        raise RunFailed(f"all {len(failed)} runs failed, the first as {failed[0]}" if len(failed) > 1 else failed[0].partition(": ")[2])
    if failed:
        warnings.warn(f"{len(failed)} of {len(outcomes)} runs failed: {'; '.join(failed)}", stacklevel=2)
    return table(place)


@printable_errors
def load(folder: str | Path) -> Run:
    """Load a finished run.

    Args:
        folder: the folder of the run.

    Returns:
        The run. It reads its other files on demand.

    Raises:
        ValueError: the folder contains no finished run.
    """
    run = Run(Path(folder), read_summary(Path(folder)))
    check_has(run.folder, run.summary, *DESCRIBED)
    return run


@printable_errors
def compare(first: Run | str | Path | Sequence[Run | str | Path], second: Run | str | Path | Sequence[Run | str | Path]) -> Comparison:
    """Compare two sides, as `hetsim-compare` does.

    Args:
        first: a run, its folder, a folder that contains repeats of one config, or a list of these.
        second: the other side, in one of the same forms.

    Returns:
        The comparison. If one side is simulated and the other measured, the simulated side comes first.

    Raises:
        ValueError: a side has no runs, or its runs are not repeats of one config.
    """
    sides = [[one] if isinstance(one, Run | str | Path) else list(one) for one in (first, second)]
    if not all(sides):
        raise ValueError("one side has no runs: give at least one for each")
    findings = compared(*([one.folder if isinstance(one, Run) else Path(one) for one in side] for side in sides))
    return Comparison(answer_of_comparison(findings), findings)


@printable_errors
def table(
    runs: str | Path | Sequence[Run | str | Path],
    *,
    metric: str | None = None,
    direction: str | None = None,
    target_accuracy: float | None = None,
    target_loss: float | None = None,
    at_seconds: float | None = None,
    baseline: str | None = None,
    best_of: Sequence[str] = (),
) -> Table:
    """Rank finished runs in a table, as `hetsim-table` does.

    Args:
        runs: a folder with runs below it, such as a sweep's folder, or a list of runs or their folders.
        metric: the number to rank by, such as "samples_per_second"; by default the time to an accuracy that all rows reach.
        direction: "minimize" or "maximize", for a metric of your own workload.
        target_accuracy: compare the times to reach this test accuracy (0 to 1).
        target_loss: compare the times to reach this training loss.
        at_seconds: compare the accuracies and losses at this time on the run's clock, in seconds.
        baseline: the row that gains are relative to, such as "method=ssgd".
        best_of: keys, such as ["learning_rate"]. If rows differ only in these keys, the table keeps the best row.

    Returns:
        The table. It contains one row for each config, with means over the config's seeds.

    Raises:
        ValueError: hetsim cannot make this table from these runs.
    """
    question = TableQuestion(metric, Target(target_accuracy, target_loss, at_seconds), baseline, tuple(best_of), direction)
    if isinstance(runs, str | Path):
        below = read_runs(Path(runs))
        return _table(ranking(below.runs, question, known=below.remarks))
    finished_runs = [finished_run(run.folder if isinstance(run, Run) else Path(run)) for run in runs]
    if not finished_runs:
        raise ValueError("there are no runs to make a table of: give some")
    return _table(ranking(finished_runs, question))


def _table(ranked: Ranking) -> Table:
    return Table(answer_of_table(ranked), ranked)


@one_at_a_time
def search(
    *words: str,
    objective: str,
    folder: str | Path,
    direction: str | None = None,
    trials: int = 50,
    processes: int | None = None,
    engine: str = "local",
    sampler: str = "tpe",
    prune: bool = True,
    trust: Sequence[str] = (),
    config_dir: str | Path | None = None,
) -> Search:
    """Search for the best values of keys, as `hetsim-search` does. The same call with the same folder resumes the search.

    Args:
        words: arguments of `hetsim`. The search varies keys whose value is an interval, a range or a list.
        objective: the number to optimise: an entry of summary.json, or "seconds_to_0.9" for the time to a test accuracy.
        folder: the folder of the trials.
        direction: "minimize" or "maximize"; by default, the direction that suits the objective.
        trials: the total number of trials in the folder at the end.
        processes: the number of trials at a time; by default 1, and with Ray one for each CPU of the cluster.
        engine: "local", or "ray" for the Ray cluster of RAY_ADDRESS or for Ray on this machine.
        sampler: the Optuna sampler, "tpe" or "random".
        prune: whether to stop simulated trials early if they cannot win.
        trust: names of your modules from which `_target_` may load classes.
        config_dir: a folder with further config files, as `--config-dir`.

    Returns:
        The search, with its best trial.

    Raises:
        ValueError: the arguments give no values to search.
        RunFailed: no trial could run.
    """
    from hetsim.answers.text import terminal
    from hetsim.searches.answer import answer
    from hetsim.searches.search import SearchQuestion, opened

    configs = None if config_dir is None else str(config_dir)
    question = SearchQuestion((*words, *_trusted(trust)), objective, direction, trials, processes, sampler, prune, configs, engine)
    with opened(question, Path(folder)) as opened_search:
        opened_search.tell = lambda _: None
        opened_search.run()
        best, answered = opened_search.best, answer(opened_search)
        if not opened_search.has_run:
            raise RunFailed(terminal(answered))
    return Search(answered, Path(folder), best.value if best else None, opened_search.words(best) if best else ())


@one_at_a_time
def advise(
    *words: str,
    alternatives: Sequence[str] = (),
    processes: int | None = None,
    engine: str = "local",
    folder: str | Path | None = None,
    minutes: float | None = None,
    trust: Sequence[str] = (),
    config_dir: str | Path | None = None,
) -> Advice:
    """Simulate candidates and recommend a method, a batch split and a set of nodes, as `hetsim-advise` does.

    Args:
        words: arguments of the command, such as "cluster=mixed8" and "timing".
        alternatives: other machines to compare with those that `words` name, each as "2*rtx4090". The answer is then about the machines,
            and `words` of the result are for the fastest of them.
        processes: the number of simulations at a time; by default one for each core, at most 8; with Ray one for each CPU of the cluster.
        engine: "local", or "ray" for the Ray cluster of RAY_ADDRESS or for Ray on this machine.
        folder: the folder for the results of simulations, from which the same call resumes; by default none.
        minutes: the time limit. After this limit, or at SIGTERM, the call returns the best result so far, and
            `data["stopped"]` gives the reason.
        trust: names of your modules from which `_target_` may load classes.
        config_dir: a folder with further config files, as `--config-dir`.

    Returns:
        The ranked candidates.

    Raises:
        ValueError: plain DDP cannot be simulated on this cluster.
    """
    from hetsim.advice.advice import advised
    from hetsim.advice.answer import answer
    from hetsim.advice.options import answer as answer_options
    from hetsim.advice.options import compared, questions_about
    from hetsim.advice.question import asked
    from hetsim.advice.simulations import num_processes

    configs, typed = None if config_dir is None else str(config_dir), [*words, *_trusted(trust)]
    place, workers = None if folder is None else Path(folder), num_processes(processes, engine)
    command = shlex.join(["hetsim-advise", *words, *(word for machines in alternatives for word in ("--or", machines))])
    if alternatives:
        questions, small = questions_about(typed, alternatives, configs)
        options = compared(questions, workers, place, minutes, lambda _: None, engine=engine)
        return Advice(answer_options(options, command, small), min(options, key=lambda option: option.seconds).row.words)
    question = asked(typed, configs)
    question.check()
    advice = advised(question, workers, place, minutes, lambda _: None, engine=engine)
    return Advice(answer(advice, command), advice.recommended.words)


@one_at_a_time
@printable_errors
def stragglers(*traces: Run | str | Path, replay: bool = True) -> Stragglers:
    """Find the slow ranks of a job and what they cost, as `hetsim-stragglers` does.

    Args:
        traces: a run or its folder, the folder that a Team's `trace` names, or torch.profiler's files, one for each rank.
        replay: whether to simulate the job without slow ranks.

    Returns:
        The slow ranks, and the time that you would save without them.

    Raises:
        ValueError: hetsim found no readable job with several ranks.
    """
    if not traces:
        raise ValueError("no trace was given: give the folder of a run, or the files of torch.profiler")
    from hetsim.straggling.answer import answer
    from hetsim.straggling.findings import find

    places = [trace.folder if isinstance(trace, Run) else Path(trace) for trace in traces]
    return Stragglers(answer(find(places, replay=replay), shlex.join(["hetsim-stragglers", *map(str, places)])))
