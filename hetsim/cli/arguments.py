"""The words of a command line, before Hydra reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def check_options(arguments: Sequence[str]) -> None:
    """ValueError with one sentence for what is no option of Hydra's, and for its --experimental-rerun, however it is abbreviated."""
    for argument in arguments:
        option = argument.split("=")[0]
        if re.match(r"-[^-a-zA-Z]", option):
            raise ValueError(f"{option} is no option, and cannot be read as key=value: see 'hetsim --help'")
        if option.startswith("--e") and "--experimental-rerun".startswith(option):
            raise ValueError(
                f"{option} is not allowed, as it reads a pickle, which may run code: type the overrides in the run's config.yaml"
            )


def verbose(arguments: Sequence[str]) -> bool:
    """Whether errors are to be shown with their tracebacks."""
    return any(argument.lower() == "hydra.verbose=true" for argument in arguments)
