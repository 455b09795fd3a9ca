"""The arguments of a command line, before Hydra reads them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser

from hetsim.checks import printable

WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--experimental-rerun"),
)
"""Hydra's options that take a value."""


def options_first(arguments: Sequence[str]) -> list[str]:
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


@contextlib.contextmanager
def without_control_characters(arguments: Sequence[str]) -> Iterator[None]:
    """Within this context, `--info`, `--cfg` and `--help` print untrusted names and texts without control characters."""
    parsed, _ = get_args_parser().parse_known_args([*arguments])
    if not (parsed.info or parsed.cfg or parsed.help):
        yield
        return
    told = io.StringIO()
    listed = Hydra.format_config_groups
    Hydra.format_config_groups = lambda *given, **more: _Later(lambda: listed(*given, **more))  # type: ignore[method-assign,assignment]
    try:
        with contextlib.redirect_stdout(told):
            yield
    finally:
        Hydra.format_config_groups = listed  # type: ignore[method-assign]
        print("\n".join(map(printable, told.getvalue().split("\n"))), end="")


class _Later:
    """A text that is made only if a template contains it. Hydra would list all groups and choices for each `--help`."""

    def __init__(self, made: Callable[..., Any]) -> None:
        self._made = made

    def __str__(self) -> str:
        return str(self._made())


def check_options(arguments: Sequence[str]) -> None:
    """Raise ValueError for arguments that are no options of Hydra, and for options that run code."""
    for argument in arguments:
        option = argument.split("=")[0]
        if option.startswith("--e") and "--experimental-rerun".startswith(option):
            raise ValueError(
                f"{option} is not allowed, because it reads a pickle, which may run code: type the overrides in the run's config.yaml"
            )
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            parsed = get_args_parser().parse_args([*arguments])
    except SystemExit as ended:
        if not ended.code:
            raise
        reason = told.getvalue().strip().split("\n")[-1].partition("error: ")[2]
        raise ValueError(f"the options cannot be read ({reason}): see 'hetsim --help'") from None
    if parsed.shell_completion:
        raise ValueError("--shell-completion is not allowed, as Hydra's script for it evaluates the names of files: see 'hetsim --help'")


def config_dir(arguments: Sequence[str]) -> Path | None:
    """The folder of --config-dir; None without this option."""
    parsed, _ = get_args_parser().parse_known_args([*arguments])
    return None if parsed.config_dir is None else Path(parsed.config_dir)


def idle_word(arguments: Sequence[str]) -> str | None:
    """An argument about sweeps in a single run, or about single runs in a sweep, which has no effect; None if there is none."""
    parsed, words = get_args_parser().parse_known_args([*arguments])
    sweeps = parsed.multirun or any(word.lower() == "hydra.mode=multirun" for word in arguments)
    idle = re.compile(r"hydra\.run\..*" if sweeps else r"hydra([./](sweeper|launcher)|\.sweep)\b.*")
    return next((word for word in (*parsed.overrides, *words) if idle.fullmatch(word)), None)


def verbose(arguments: Sequence[str]) -> bool:
    """Whether errors are printed with tracebacks."""
    return any(argument.lower() == "hydra.verbose=true" for argument in arguments)
