"""From a config to a run. The only place that knows Hydra."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hetsim import checks, report, sweep, trusted
from hetsim.budget import Budget
from hetsim.coordination.plan import Coordination
from hetsim.description import cluster
from hetsim.experiment import Backend, Experiment, RunFailed
from hetsim.methods import configs
from hetsim.policies.admission import Admission
from hetsim.policies.allocation import Allocation
from hetsim.policies.compensation import Compensation
from hetsim.policies.compression import Compression
from hetsim.policies.weighting import Discount, Weighting
from hetsim.workloads.task import OptimizerRecipe, Recipe, Workload

AXES: dict[str, type] = {
    "allocation": Allocation,
    "weighting": Weighting,
    "discount": Discount,
    "compensation": Compensation,
    "admission": Admission,
    "compression": Compression,
}
PLAIN = (
    *("method", "seed", "batch_size", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures"),
    *("trust", "data_root", "download", "learning_rate", "momentum", "local_learning_rate", "objective"),
)
OPTIMIZERS = {"optimizer": "learning_rate_schedule", "local_optimizer": "local_learning_rate_schedule"}
GROUPS = ("backend", "cluster", "workload", "coordination", "budget", *AXES, *OPTIMIZERS, *OPTIMIZERS.values())


def experiment(config: DictConfig) -> tuple[Experiment, Backend]:
    """The objects that a config describes; ValueError with one sentence if it describes none."""
    try:
        entries = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ValueError(_sentence(error)) from None
    entries = checks.mapping("config", entries, optional=(*PLAIN, *GROUPS))
    for name in ("backend", "cluster", "workload", "coordination", "optimizer", "budget", *AXES):
        checks.mapping(name, entries.get(name), optional=list(entries.get(name) or ()))
    trust = entries.get("trust") or []
    if not isinstance(trust, list) or not all(isinstance(module, str) for module in trust):
        raise ValueError(f"trust must be a list of module names, such as trust=[mypackage], not {trust!r}")
    late = (*OPTIMIZERS, *OPTIMIZERS.values())  # resolved where torch may be imported
    for key, path in _targets({name: entry for name, entry in entries.items() if name not in late}):
        trusted.resolve(path, key=key, trust=trust)
    for key, path in _targets({name: entries.get(name) for name in late}):
        trusted.permitted(path, key=key, trust=trust)
    sweep.check_objective(entries.get("objective"))
    for rate in ("learning_rate", "momentum", "local_learning_rate"):
        checks.number(rate, entries.get(rate, 0.0), zero=True)
    if entries.get("local_learning_rate_schedule") is not None and not entries.get("local_optimizer"):
        raise ValueError(
            "local_learning_rate_schedule would do nothing without a local optimizer: leave it out, or add local_optimizer=sgd"
        )
    budget = checks.mapping("budget", entries["budget"], optional=("epochs", "updates", "seconds"))
    policies = {axis: _build(axis, entries[axis], kind, trust) for axis, kind in AXES.items()}
    made = Experiment(
        method=str(entries["method"]),
        coordination=_build("coordination", entries["coordination"], Coordination, trust, **policies),
        cluster=cluster(entries["cluster"]),
        workload=_build("workload", entries["workload"], Workload, trust),
        optimizer=_optimizer(entries, "optimizer", tuple(trust)),
        local_optimizer=_optimizer(entries, "local_optimizer", tuple(trust)) if entries.get("local_optimizer") else None,
        budget=Budget(**budget),
        **{key: entries[key] for key in ("batch_size", "seed", "dtype", "threads", "evaluate_every_epochs", "trace", "pictures")},
    )
    backend = _build("backend", entries["backend"], Backend, trust)
    backend.check(made)
    return made, backend


def _build(name: str, entry: dict[str, Any], kind: type, trust: list[str], **given: Any) -> Any:
    """The object that `_target_` names, of the expected kind and with no key that it does not know."""
    if "_target_" not in entry:
        raise ValueError(f"{name}._target_ is missing: choose one of hetsim's configs with {name}=…, or name a class")
    target = trusted.resolve(entry["_target_"], key=f"{name}._target_", trust=trust)
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ValueError(f"{name}._target_={entry['_target_']} is no {kind.__name__}: name a subclass of {kind.__module__}.{kind.__name__}")
    if inspect.isabstract(target):
        lacks = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ValueError(f"{name}._target_={entry['_target_']} lacks {lacks}: write what {kind.__module__}.{kind.__name__} asks for")
    options = [key for key in entry if key != "_target_"]
    known = [key for key in trusted.options(target) if key not in given]
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name}.{option} is no key of {entry['_target_']} ({', '.join(known) or 'it has none'})"
                f"{checks.suggestion(option, known) or f': add {chr(39)}~{name}.{option}{chr(39)} to leave it out'}"
            )
    for option in trusted.required(target):
        if option not in options and option not in given:
            raise ValueError(f"{name}.{option} is missing: give it a value")
    return instantiate({**entry, "_partial_": True}, _convert_="all")(**given)


def _optimizer(entries: Mapping[str, Any], name: str, trust: tuple[str, ...]) -> OptimizerRecipe:
    schedule = entries.get(OPTIMIZERS[name])
    recipe = None if schedule is None else _recipe(OPTIMIZERS[name], schedule)
    return OptimizerRecipe(_recipe(name, entries[name]), recipe, trust, key=name, schedule_key=OPTIMIZERS[name])


def _recipe(name: str, entry: Any) -> Recipe:
    """What to build later; nested recipes too."""
    if not isinstance(entry, Mapping) or "_target_" not in entry:
        raise ValueError(f"{name} must have a _target_, such as torch.optim.SGD or torch.optim.lr_scheduler.StepLR, not {entry!r}")
    options = {key: value for key, value in entry.items() if key != "_target_"}
    for key, value in options.items():
        if isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            options[key] = [_recipe(f"{name}.{key}", part) for part in value]
    return Recipe(entry["_target_"], options)


def _targets(entry: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every `_target_` at any depth, with the key where it stands."""
    if isinstance(entry, Mapping):
        for name, value in entry.items():
            where = f"{key}.{name}" if key else str(name)
            if name == "_target_":
                yield where, value
            elif isinstance(name, str) and name in ("_args_", "_partial_", "_recursive_", "_convert_"):
                raise ValueError(f"{where} is no key of the schema: name the arguments themselves")
            yield from _targets(value, where)
    elif isinstance(entry, list):
        for index, value in enumerate(entry):
            yield from _targets(value, f"{key}[{index}]")


RATES = {"learning_rate": "optimizer", "momentum": "optimizer", "local_learning_rate": "local_optimizer"}


def _used(config: DictConfig, typed: Sequence[str]) -> None:
    """Refuse a rate that was typed where the optimizer does not read it."""
    for rate, group in RATES.items():
        entry = config.get(group)
        if any(override.split("=")[0] == rate for override in typed) and entry and f"${{{rate}}}" not in OmegaConf.to_yaml(entry):
            raise ValueError(f"{rate} would do nothing, as this {group} does not read it: set {group}'s own keys, such as {group}.lr")


USERS = (ValueError, OSError, RunFailed, HydraException, OmegaConfBaseException, yaml.YAMLError)  # what a user can mend
failures: list[BaseException] = []  # of the one run of this command, told already


def job(config: DictConfig) -> sweep.Outcome | None:
    """One run, or one of a sweep's: it may be in a process of its own."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        return _of_sweep(config, folder)
    _single(config, folder)
    return None


_app = hydra.main(version_base="1.3", config_path=str(configs()), config_name="config")(job)


def _single(config: DictConfig, folder: Path) -> None:
    summary = None
    try:
        summary = _run(config, folder)
    except USERS as error:
        if _verbose():
            raise
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, ValueError):  # of torchrun's ranks, one tells what all see
            _tell(error)
        failures.append(error)
    finally:
        if summary is None:
            with contextlib.suppress(OSError):
                folder.rmdir()  # Hydra made it; if anything is in it, it is somebody's
    if summary is not None:
        print(report.describe(summary))
        for warning in summary["warnings"]:
            print(f"hetsim: warning: {warning}", file=sys.stderr)
        print(f"  files in {os.path.relpath(folder)}", flush=True)


def _of_sweep(config: DictConfig, folder: Path) -> sweep.Outcome:
    """Skip what is there. What fails is told here and in the run's folder, and does not keep the other runs from running."""
    settings = HydraConfig.get()
    name, typed = os.path.relpath(folder, settings.sweep.dir), tuple(settings.overrides.task)
    if multiprocessing.get_start_method(allow_none=True) == "loky":
        multiprocessing.set_start_method(None, force=True)  # joblib's own is unknown to the processes that backend=dist starts
    worst = sweep.DIRECTIONS.get(_direction(settings) or "minimize", 0.0)
    try:
        with sweep.alone(folder):
            summary = sweep.finished(folder, sweep.identity(_entries(config)))
            already = summary is not None
            summary = _run(config, folder) if summary is None else summary
            objective = sweep.objective(config.objective, summary or {}, folder, worst=worst)
    except Exception as error:
        if settings.verbose is True:
            raise
        known = isinstance(error, USERS)
        sentence = _sentence(error) if known else f"{type(error).__name__} in hetsim's own code: {_sentence(error)}"
        sweep.failed(folder, sentence, "" if known else traceback.format_exc())
        print(f"hetsim: error: {sentence}", file=sys.stderr, flush=True)
        return sweep.Outcome(name, typed, worst, failure=sentence)
    sweep.succeeded(folder)
    if summary is not None:
        told = "is there already" if already else report.line(summary)
        print(f"{name}: {told}", flush=True)
        for warning in () if already else summary["warnings"]:
            print(f"hetsim: warning: {name}: {warning}", file=sys.stderr, flush=True)
    return sweep.Outcome(name, typed, objective, already)


def _run(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    typed = HydraConfig.get().overrides.task
    _used(config, typed)
    made, backend = experiment(config)
    entries = _entries(config)
    return backend.run(made, folder, sweep.header(sweep.identity(entries), typed) + OmegaConf.to_yaml(OmegaConf.create(entries)))


def _entries(config: DictConfig) -> dict[str, Any]:
    """The config without Hydra's own part, resolved; as it stands if it cannot be, which the run will tell."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"]) if "hydra" in config else config
    try:
        entries = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException:
        entries = OmegaConf.to_container(own)
    assert isinstance(entries, dict)
    return {str(key): value for key, value in entries.items()}


OmegaConf.register_new_resolver("hetsim.folder", lambda *, _root_: sweep.name(_entries(_root_)), replace=True)


def _direction(settings: Any) -> str | None:
    """Which way a search goes; None where a sweep is no search."""
    direction = settings.sweeper.get("direction")
    return None if direction is None else str(getattr(direction, "name", direction))


class Recorded(Launcher):
    """Any launcher, and how the runs ended that it launched: they may have ended in other processes, on other machines."""

    def __init__(self, launcher: Launcher, outcomes: list[sweep.Outcome]) -> None:
        self.launcher = launcher
        self.outcomes = outcomes

    def setup(self, **given: Any) -> None:
        """The launcher within is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """As the launcher within does; RunFailed if a process of it was lost."""
        try:
            returned = self.launcher.launch(job_overrides, initial_job_idx)
        except BrokenProcessPool:
            raise RunFailed(f"a worker process was killed, perhaps for lack of memory: {AGAIN}") from None
        except RuntimeError as error:
            if not type(error).__module__.startswith("submitit"):
                raise
            raise RunFailed(f"a job was lost ({str(error).splitlines()[0]}): see the logs in the sweep's .submitit; {AGAIN}") from None
        self.outcomes.extend(job.return_value for job in returned if job.status == JobStatus.COMPLETED)
        return returned


AGAIN = "the same command with the same hydra.sweep.dir goes on with what is missing"


class Composed:
    """A config loader for the sweeper's check that every run can be composed: once for all runs that make the same choices of groups.

    What is typed for a key changes no composition, and a thousand seeds would be composed here one after the other.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self.loader = loader
        self.composed: dict[tuple[str, ...], DictConfig] = {}
        self.groups: dict[str, bool] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The config of one run, or of its like that was composed before."""
        choices = tuple(override if self.is_group(key) else key for override in sweep_overrides for key in [override.split("=")[0]])
        if choices not in self.composed:
            self.composed[choices] = self.loader.load_sweep_config(master_config, sweep_overrides)
        return self.composed[choices]

    def is_group(self, key: str) -> bool:
        """Whether what is typed for it is one of a group's choices."""
        if key not in self.groups:
            self.groups[key] = bool(self.loader.get_group_options(key.lstrip("+~").split("@")[0]))
        return self.groups[key]


class Sweep:
    """What is known of this command's sweep: its folder, its objective, and how its runs ended."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.objective: str | None = None
        self.direction: str | None = None
        self.outcomes: list[sweep.Outcome] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Whatever launcher a sweeper takes while this lasts is a recorded one."""
        plugins, quiet = Plugins.instance(), os.environ.get("TQDM_DISABLE")
        instantiate_launcher = plugins.instantiate_launcher

        def instantiate(*, config: DictConfig, hydra_context: HydraContext, task_function: TaskFunction) -> Launcher:
            self.folder = os.path.relpath(config.hydra.sweep.dir)
            self.objective, self.direction = config.objective, _direction(config.hydra)
            sweep.check_objective(self.objective)
            if self.direction is not None:
                sweep.check_search(self.objective, self.direction)
            if not config.hydra.launcher._target_.endswith(".BasicLauncher"):
                os.environ["TQDM_DISABLE"] = "1"  # the bars of several processes would write over each other
            own = HydraContext(config_loader=hydra_context.config_loader, callbacks=hydra_context.callbacks)
            hydra_context.config_loader = cast(ConfigLoader, Composed(own.config_loader))  # the sweeper's; the launcher composes every run
            return Recorded(instantiate_launcher(config=config, hydra_context=own, task_function=task_function), self.outcomes)

        plugins.instantiate_launcher = instantiate  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            plugins.instantiate_launcher = instantiate_launcher  # type: ignore[method-assign]
            if quiet is None:
                os.environ.pop("TQDM_DISABLE", None)

    def close(self) -> bool:
        """Tell how the runs ended; whether all of them succeeded."""
        if self.folder is None:
            return True
        if self.direction is not None and self.objective is not None and self.outcomes:
            print(sweep.best(self.outcomes, self.objective, worst=sweep.DIRECTIONS[self.direction]))
        print(sweep.ended(self.outcomes, self.folder), flush=True)
        failed = sweep.failures(self.outcomes)
        if failed:
            print(failed, file=sys.stderr, flush=True)
        return not failed


def main() -> None:
    """The command `hetsim`: one sentence and exit status 1 for what a user can mend, 130 after Ctrl-C."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they become sentences
    sys.argv[1:] = options_first(sys.argv[1:])
    runs = Sweep()
    try:
        with runs.watched():
            _app()
    except KeyboardInterrupt:
        print(f"hetsim: interrupted{'' if runs.folder is None else f': add hydra.sweep.dir={runs.folder} to go on'}", file=sys.stderr)
        sys.exit(130)
    except USERS as error:
        if _verbose():
            raise
        _tell(error)
        sys.exit(1)
    except Exception as error:
        if runs.folder is None or _verbose():
            raise
        _tell(RunFailed(f"the sweep broke off ({type(error).__name__}: {_sentence(error)}): {AGAIN}; hydra.verbose=true tells more"))
        sys.exit(1)
    sys.exit(0 if runs.close() and not failures else 1)


WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--experimental-rerun"),
)


def options_first(arguments: Sequence[str]) -> list[str]:
    """What Hydra takes: its options, and behind them what is typed for the config."""
    options, typed, left = [], [], list(arguments)
    while left:
        argument = left.pop(0)
        if not argument.startswith("-"):
            typed.append(argument)
            continue
        options.append(argument)
        if left and (argument in WITH_VALUE or (argument in ("--info", "-i") and "=" not in left[0])):
            options.append(left.pop(0))
    return options + typed


EXTRAS = {
    "hydra/launcher=joblib": "parallel",
    "hydra/launcher=submitit_local": "slurm",
    "hydra/launcher=submitit_slurm": "slurm",
    "hydra/sweeper=optuna": "search",
}


def _tell(error: BaseException) -> None:
    print(f"hetsim: error: {_sentence(error)}", file=sys.stderr, flush=True)


def _verbose() -> bool:
    return any(argument.lower() == "hydra.verbose=true" for argument in sys.argv)


def _sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give it a value"
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        top = unknown[1].split(".")[0]
        if unknown[1] in ("backend.emulate", "backend.interface", "backend.port"):
            return f"{unknown[1]} is no key of the config: add backend=dist, which has it"
        if top in GROUPS and top != unknown[1]:
            return (
                f"{unknown[1]} is no key of the config as it stands: see 'hetsim --help', or add it with a + in front, as +{unknown[1]}=…"
            )
        hint = "" if top in (*PLAIN, *GROUPS) else checks.suggestion(top, (*PLAIN, *GROUPS))
        return f"{unknown[1]} is no key of the config: see 'hetsim --help' for those there are{hint}"
    unlike = re.match(r"Error merging override (.*)", text)
    if unlike:
        return f"{unlike[1]} does not fit what the config has there: give a list for a list, and a mapping for a mapping"
    nowhere = re.match(r"Interpolation key '(.*?)' not found", text)
    if nowhere:
        where = getattr(error, "full_key", None) or "a key"
        return f"{where} refers to ${{{nowhere[1]}}}, which is no key of the config: give it a value of its own"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1} cannot be read as YAML ({error.problem}): mend it"
    unreadable = re.match(r"(?:LexerNoViableAltException: |Error parsing override ')(.*?)(?: \^|'| See )", text)
    if unreadable:
        return f"{unreadable[1]} cannot be read as key=value: see 'hetsim --help', and quote braces and spaces for the shell"
    no_choice = re.match(r"In '.*?': Could not find '(.+?)/([^/']*)' Available options in '.*?': (.*?) Config search path:", text)
    if no_choice and f"{no_choice[1]}={no_choice[2]}" in EXTRAS:
        extra = EXTRAS[f"{no_choice[1]}={no_choice[2]}"]
        return f"{no_choice[1]}={no_choice[2]} is not installed: install hetsim[{extra}], as in pip install 'hetsim[{extra}]'"
    if no_choice:
        *others, last = no_choice[3].split()
        return f"{no_choice[1]}={no_choice[2]} is no choice: take {', '.join(others)}{' or ' if others else ''}{last}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be written or read ({error.strerror}): set hydra.run.dir or hydra.sweep.dir to one that can be"
    return text or type(error).__name__
