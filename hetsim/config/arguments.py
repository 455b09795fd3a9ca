"""The arguments of the command `hetsim`, which are Hydra's, and the texts that `--help`, `--cfg` and others print."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from string import Template
from typing import Any

import yaml
from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from hetsim.checks import printable
from hetsim.config.compositions import Compositions, hydra_version, without_hydra, written_out
from hetsim.config.sources import NAME
from hetsim.config.typed import words_and_choices
from hetsim.files.config_file import flattened
from hetsim.trust.shipped import configs, names

WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--experimental-rerun"),
)
"""Hydra's options that take a value."""
MODE = re.compile(r"[+]*hydra\.mode=(RUN|MULTIRUN)", re.IGNORECASE)
"""A word that says whether the command is a sweep."""

ABOUT = {
    "method": "a published method, as a choice from each group of policies ('hetsim-methods' describes each)",
    "experiment": "a paper's own values; those of 'method' suit small workloads",
    "allocation": "how many samples each worker takes; fixed needs allocation.parts=[…]",
    "weighting": "how much a gradient counts",
    "discount": "how much less a stale gradient counts",
    "compensation": "how a stale gradient is corrected",
    "admission": "which gradients the server applies, and which workers it releases",
    "compression": "how a push to the server, or a change by local steps, is compressed",
    "coordination": "the program that each rank runs: who computes, sends and waits",
    "backend": "sim simulates in virtual time (its key: processes), dist trains in real processes (emulate, reduction, micro_batch)",
    "cluster": "nodes, links and faults; machines is for 'cluster.machines=[…]' (docs/guide/describe-a-cluster.md)",
    "workload": "the model and its data; phantom has sizes only, own is a model of yours (docs/guide/own-workload.md)",
    "partition": "with data=owned, which worker each sample belongs to; keys: alpha, classes (docs/guide/owned-data.md)",
    "optimizer": "on the vector of all parameters; or any such class of torch's, as optimizer._target_=torch.optim.…",
    "local_optimizer": "of the workers' local steps, in methods that have some",
    "regional_optimizer": "of the local servers, in methods that have some",
}
"""The groups of choices, in the order of --help, each with what a choice decides."""
WIDTH, INDENT = 148, 20


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's options, and the words of the config as `overrides`. Raises ValueError for other options, and for those that run code."""
    for argument in arguments:
        option = argument.split("=")[0]
        if option.startswith("--e") and "--experimental-rerun".startswith(option):
            raise ValueError(
                f"{option} is not allowed, because it reads a pickle, which may run code: type the overrides in the run's config.yaml"
            )
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            options = get_args_parser().parse_args(_options_first(arguments))
    except SystemExit as ended:
        if not ended.code:
            raise
        reason = printed.getvalue().strip().split("\n")[-1].partition("error: ")[2]
        raise ValueError(f"the options cannot be read ({reason}): see 'hetsim --help'") from None
    if options.shell_completion:
        raise ValueError("--shell-completion is not allowed, as Hydra's script for it evaluates the names of files: see 'hetsim --help'")
    if options.config_path is not None:
        raise ValueError("--config-path would leave out hetsim's own configs: type --config-dir for a further folder")
    options.config_name = options.config_name or "config"
    if not NAME.fullmatch(options.config_name):  # Hydra would read any file by its path
        raise ValueError(f"--config-name {options.config_name} is not the name of a file in the folder of --config-dir: leave it out")
    for word in options.overrides:
        if mode := MODE.fullmatch(word):
            options.multirun = mode[1].upper() == "MULTIRUN"
    return options


def _options_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments in the order that Hydra requires: its options, then the config's overrides."""
    options, overrides, rest = [], [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        options.append(argument)
        if rest and (argument in WITH_VALUE or (argument in ("--info", "-i") and "=" not in rest[0])):
            options.append(rest.pop(0))
    return options + overrides


def idle_word(words: Sequence[str], *, multirun: bool) -> str | None:
    """A word about sweeps in a single run, or about single runs in a sweep, which has no effect; None if there is none."""
    idle = re.compile(r"hydra\.run\..*" if multirun else r"hydra([./](sweeper|launcher)|\.sweep)\b.*")
    return next((word for word in words if idle.fullmatch(word)), None)


def repeated_key(words: Sequence[str]) -> str | None:
    """A key that is typed twice, or is twice in a typed mapping, of which only the last value counts; None if there is none."""
    typed = [word.lstrip("+").partition("=") for word in words if not word.startswith("~")]
    keys = Counter((key, value.startswith("{")) for key, _, value in typed)
    twice = (key for (key, _), count in keys.items() if count > 1)
    within = (f"{name} in {key}" for key, _, value in typed if "{" in value and (name := _repeated_name(value)))
    return next(chain(twice, within), None)


def _repeated_name(value: str) -> str | None:
    """A key that a mapping in a typed value has twice."""
    try:
        yaml.load(value, Loader=get_yaml_loader())
    except yaml.YAMLError as error:
        duplicate = re.match(r"found duplicate key (\S+)", getattr(error, "problem", None) or "")
        return duplicate[1] if duplicate else None
    except ValueError:  # the run reports what is no value
        pass
    return None


def defaults() -> str:
    """The choices of a run without arguments, such as `method=dbs_sgd cluster=mixed4`."""
    chosen = {group: name for entry in _shipped_config()["defaults"] if isinstance(entry, Mapping) for group, name in entry.items()}
    return " ".join(f"{group}={chosen[group]}" for group in ("method", "cluster", "workload", "backend"))


def config_words() -> list[str]:
    """`group=choice` for every shipped choice, and `key=` for every other key of the config."""
    folders = sorted(path for path in configs().iterdir() if path.is_dir())
    choices = [f"{folder.name}={path.stem}" for folder in folders for path in sorted(folder.glob("*.yaml"))]
    config = _shipped_config()
    groups = {folder.name for folder in folders}
    keys = flattened({key: value for key, value in config.items() if key not in {"defaults", "hydra", *groups}})
    return [*choices, *(f"{key}=" for key, _ in keys)]


def _shipped_config() -> Mapping[str, Any]:
    config: Mapping[str, Any] = OmegaConf.to_container(OmegaConf.load(configs() / "config.yaml"))  # type: ignore[assignment]
    return config


def verbose(words: Sequence[str]) -> bool:
    """Whether errors are printed with tracebacks."""
    return any(word.lower() == "hydra.verbose=true" for word in words)


def asks_to_show(arguments: argparse.Namespace) -> bool:
    """Whether these arguments ask for a text instead of a run."""
    return bool(arguments.help or arguments.hydra_help or arguments.cfg or arguments.info)


def show(arguments: argparse.Namespace) -> None:
    """Print the text, without control characters, because it may contain somebody else's names."""
    arguments.overrides, choices = words_and_choices(arguments.overrides, arguments.config_dir, arguments.config_name)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            _show(arguments, choices)
    finally:
        print("\n".join(map(printable, shown.getvalue().split("\n"))), end="")


def _show(arguments: argparse.Namespace, choices: Compositions) -> None:
    if arguments.help:
        config = choices.config(arguments.overrides)
        template = Template(written_out(config, "hydra.help.template"))
        text = OmegaConf.to_yaml(without_hydra(config), resolve=arguments.resolve)
        print(template.safe_substitute(CONFIG=text, GROUPS="\n".join(map(_group_line, ABOUT))))
        return
    from hydra._internal.hydra import Hydra

    words = {"config_name": choices.name, "overrides": arguments.overrides}
    with hydra_version():
        hydra = Hydra("hetsim", choices.loader)
        if arguments.hydra_help:
            hydra.hydra_help(choices.name, get_args_parser(), arguments)
        elif arguments.cfg:
            hydra.show_cfg(**words, cfg_type=arguments.cfg, package=arguments.package, resolve=arguments.resolve)
        else:
            hydra.show_info(arguments.info, **words)


def _group_line(group: str) -> str:
    text = f"{ABOUT[group]}: {' | '.join(names(group))}"
    return textwrap.fill(text, WIDTH, initial_indent=f"{group:<{INDENT}}", subsequent_indent=" " * INDENT)
