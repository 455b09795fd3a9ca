"""The words of a command line, before Hydra reads them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence

from hydra._internal.utils import get_args_parser

from hetsim.checks import printable

WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--package", "-p", "--experimental-rerun"),
)
"""Hydra's options that are followed by a value."""


def options_first(arguments: Sequence[str]) -> list[str]:
    """The same words in the order that Hydra demands: its options, then the overrides of the config."""
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
    """While this lasts, what `--info`, `--cfg` and `--help` print of a stranger's names and texts steers no terminal."""
    parsed, _ = get_args_parser().parse_known_args([*arguments])
    if not (parsed.info or parsed.cfg or parsed.help):
        yield
        return
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            yield
    finally:
        print("\n".join(map(printable, told.getvalue().split("\n"))), end="")


def check_options(arguments: Sequence[str]) -> None:
    """ValueError with one sentence for what is no option of Hydra's, and for those of its options that run code."""
    for argument in arguments:
        option = argument.split("=")[0]
        if option.startswith("--e") and "--experimental-rerun".startswith(option):
            raise ValueError(
                f"{option} is not allowed, as it reads a pickle, which may run code: type the overrides in the run's config.yaml"
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


def verbose(arguments: Sequence[str]) -> bool:
    """Whether errors are to be shown with their tracebacks."""
    return any(argument.lower() == "hydra.verbose=true" for argument in arguments)
