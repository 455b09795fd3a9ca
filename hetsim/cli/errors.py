"""What a user can mend, in one sentence."""

from __future__ import annotations

import re
import sys

import yaml
from hydra.errors import HydraException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from hetsim import checks
from hetsim.cli.schema import GROUPS, PLAIN
from hetsim.errors import RunFailed

USERS = (ValueError, OSError, RunFailed, HydraException, OmegaConfBaseException, yaml.YAMLError)  # what a user can mend


EXTRAS = {
    "hydra/launcher=joblib": "parallel",
    "hydra/launcher=submitit_local": "slurm",
    "hydra/launcher=submitit_slurm": "slurm",
    "hydra/sweeper=optuna": "search",
}


def _tell(error: BaseException) -> None:
    print(f"hetsim: error: {sentence(error)}", file=sys.stderr, flush=True)


def _verbose() -> bool:
    return any(argument.lower() == "hydra.verbose=true" for argument in sys.argv)


def sentence(error: BaseException) -> str:
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
