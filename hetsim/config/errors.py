"""One sentence for each error that a user can correct: the key, the value, what to do."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from pathlib import PurePosixPath

import yaml
from hydra.errors import HydraException
from omegaconf.errors import ConfigIndexError, MissingMandatoryValue, OmegaConfBaseException

from hetsim import checks
from hetsim.config.schema import GROUPS, unknown_key
from hetsim.distributed.launch.failure_report import CAUSE, CONSEQUENCE, first_to_refuse, leave_reason
from hetsim.effects import PeerLost
from hetsim.errors import RunFailed, RunStopped
from hetsim.files.keys import PLAIN

USERS = (ValueError, OSError, RunFailed, HydraException, OmegaConfBaseException, yaml.YAMLError)
"""The errors that a user can correct."""

MISSING = "Missing mandatory value: "
"""OmegaConf's message for a reference to a key without a value."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a full disk, and of an exceeded disk quota."""

EXTRAS = {
    "hydra/launcher=joblib": "parallel",
    "hydra/launcher=submitit_local": "slurm",
    "hydra/launcher=submitit_slurm": "slurm",
}
"""The extra of hetsim that installs a choice's requirements."""


def report(error: BaseException) -> None:
    """Print the error on standard error. If torchrun's ranks all refuse alike, only the first prints it. torchrun's report has all."""
    show_notes(error)
    text = sentence(error)
    order = CONSEQUENCE if isinstance(error.__cause__, PeerLost) else 1 if isinstance(error, RunFailed | OSError) else CAUSE
    if leave_reason(text, order=order):
        return
    if isinstance(error, RunFailed | OSError) or first_to_refuse(text):
        print(f"hetsim: error: {text}", file=sys.stderr, flush=True)


def tell_stopped(stopped: RunStopped) -> None:
    """Print how to resume a run that was asked to stop. Under a launcher, only the leader knows it."""
    if not str(stopped):
        return
    print(f"hetsim: {checks.printable(str(stopped))}", file=sys.stderr, flush=True)


def show_traceback() -> None:
    """Print the traceback of the error that is being handled, without control characters."""
    _show(traceback.format_exc())


def show_notes(error: BaseException) -> None:
    """Print the notes of a run's failure in the same way. They contain the traceback of an unexpected error in a rank's process."""
    for note in getattr(error, "__notes__", ()) if isinstance(error, RunFailed) else ():
        _show(note)


def _show(text: str) -> None:
    print("\n".join(map(checks.printable, text.rstrip().split("\n"))), file=sys.stderr, flush=True)


def sentence(error: BaseException) -> str:
    """The error in one line of printable letters."""
    return checks.printable(_sentence(error))


def in_one_sentence(error: Exception) -> Exception:
    """The error for a Python caller: a ValueError if it is one, else RunFailed. An unexpected error's class is named."""
    text = sentence(error) if isinstance(error, USERS) else f"{type(error).__name__}: {sentence(error)}"
    return ValueError(text) if isinstance(error, ValueError) else RunFailed(text)


def _sentence(error: BaseException) -> str:
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing: give it a value"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1} cannot be read as YAML ({error.problem}): mend it"
    if isinstance(error, OSError) and error.errno in FULL:
        return _no_space(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be written or read ({error.strerror}): set hydra.run.dir or hydra.sweep.dir to one that can be"
    text = " ".join(str(error).split())
    if library := _importing(error):
        names = _variables_in(text)
        remedy = f"unset {' or '.join(names)}" if names else "install it again"
        return f"{library} cannot be imported ({textwrap.shorten(text, checks.MAX_SHOWN, placeholder=' …')}): {remedy}"
    for pattern, translate in TRANSLATIONS.items():
        if match := re.match(pattern, text):
            return translate(match, error)
    return text or "what was typed or read does not make a config: see 'hetsim --help' for its keys"


def _importing(error: BaseException) -> str | None:
    """The library whose import has raised this error, such as for a wrong variable of the environment; None if it was no import."""
    library = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name == "hetsim":
            library = None
        elif frame.f_code.co_name == "<module>" and library is None and name != "__main__":
            library = name
    return library


def _variables_in(text: str) -> list[str]:
    """The variables of the environment that a text names, or else those whose values it shows."""
    words = {*re.findall(r"\w+", text)}
    return [name for name in os.environ if name in words] or [name for name, value in os.environ.items() if value in words][:3]


def _no_space(error: OSError) -> str:
    keys = "TMPDIR" if error.filename == tempfile.gettempdir() else "hydra.run.dir or hydra.sweep.dir"
    return f"{error.filename or 'a file'} cannot be written ({error.strerror}): free some space, or set {keys} to a folder on another disk"


def _unknown_key(match: re.Match[str], error: BaseException) -> str:
    return unknown_key(match[1], error.__cause__)


def _wrong_kind(match: re.Match[str], error: BaseException) -> str:
    if isinstance(error.__cause__, ConfigIndexError):
        return f"{match[1]} is beyond the rows that the config has there: count them from 0, or type the whole list"
    return f"{match[1]} does not fit what the config has there: give a list for a list, and a mapping for a mapping"


def _unknown_reference(match: re.Match[str], error: BaseException) -> str:
    key = getattr(error, "full_key", None) or "a key"
    return f"{key} refers to ${{{match[1]}}}, which is not a key of the config: give it a value of its own"


def _unresolved(match: re.Match[str], error: BaseException) -> str:
    key = getattr(error, "full_key", None) or "a key"
    reason = match[1].split(" full_key:")[0]
    if reason.startswith(MISSING):
        return f"{reason.removeprefix(MISSING)} is missing: give it a value"
    why = "" if "<" in reason else f" ({reason})"  # "<" as in <lambda> of a resolver
    return f"{key} refers to something that has no value{why}: correct the reference, or write the value out"


def _not_deleted(match: re.Match[str], _: BaseException) -> str:
    key = match[1]
    close = "" if "." in key else checks.suggestion(key, (*PLAIN, *GROUPS))
    return f"~{key} would leave out nothing, because {key} is null or no key of the config: type nothing instead{close}"


def _unreadable_words(_: re.Match[str], error: BaseException) -> str:
    return f"what was typed cannot be read as key=value ({' '.join(str(error).split()).split(' See http')[0]}): see 'hetsim --help'"


def _unreadable_override(match: re.Match[str], _: BaseException) -> str:
    return f"{match[1]} cannot be read as key=value: see 'hetsim --help', and quote braces and spaces for the shell"


def _unknown_choice(match: re.Match[str], _: BaseException) -> str:
    group, name, options = match.groups()
    if f"{group}={name}" == "hydra/sweeper=optuna":
        return "hydra/sweeper=optuna is not a choice: hetsim-search searches by Optuna"
    if extra := EXTRAS.get(f"{group}={name}"):
        return f"{group}={name} is not installed: install hetsim[{extra}], as in pip install 'hetsim[{extra}]'"
    choices = options.split()
    top, path = f"{group}/{name}".split("/", 1)
    if top != "hydra" and (typed := _of_path(top, path)):
        return f"{top}={path} is a path: {typed}"
    *others, last = choices
    close = checks.suggestion(name, choices)
    looked_in = "" if close or group.startswith("hydra") else f"; hetsim looks for {group}/{name}.yaml in the folder of --config-dir"
    return f"{group}={name} is not a choice: take {', '.join(others)}{' or ' if others else ''}{last}{close or looked_in}"


def _of_path(group: str, text: str) -> str:
    """The correction for a path of a choice's file; an empty string for other texts."""
    path = PurePosixPath(text)
    choice, folder = path.stem if path.suffix in (".yaml", ".yml") else path.name, path.parent
    if choice == text:
        return ""
    above = folder.parent if folder.name == group else folder
    move = "" if folder.name == group else f"move it to {above / group / choice}.yaml, and "
    return f"{move}type {shlex.quote(f'{group}={choice}')} with --config-dir {shlex.quote(str(above))}"


def _several_values(match: re.Match[str], _: BaseException) -> str:
    key, values = match[1].split("=", 1)
    brackets = (
        "" if key.lstrip("+") in (*GROUPS, "method", "experiment") else f", or put them in brackets if they are one list, {key}=[{values}]"
    )
    return f"{match[1]} has several values: add -m to run each{brackets}"


def _no_config_dir(match: re.Match[str], _: BaseException) -> str:
    return (
        f"--config-dir {match[1]} is not a folder: give the one that has a folder for each group, such as cluster/, with your files in it"
    )


TRANSLATIONS: dict[str, Callable[[re.Match[str], BaseException], str]] = {
    r"Could not override '([^']+)'": _unknown_key,
    r"Error merging override (.*)": _wrong_kind,
    r"Could not append to config\. An item is already at '([^']+)'": lambda match, _: (
        f"+{match[1]} is in the config already: leave out the +"
    ),
    r"Could not delete from config\. '([^']+)' does not exist": _not_deleted,
    r"Could not delete from config\. The value of '([^']+)' is (.*) and not (.*)\.": lambda match, _: (
        f"~{match[1]}={match[3]} would leave out nothing, because {match[1]} is {match[2]}: type ~{match[1]}"
    ),
    r"Override (\S+)@(\S+?)=.* looks like a config group override": lambda match, _: (
        f"{match[1]}@{match[2]} is not a key of the config, because {match[1]} is not a group of choices: see 'hetsim --help'"
    ),
    r"invalid literal for int\(\) with base 10: '(.*)'$": lambda match, _: (
        f"{match[1]} is not a row of a list: count from 0, as in cluster.nodes.0.count=2"
    ),
    r".*list indices must be integers or slices": lambda *_: "a row of a list cannot be left out so: type the whole list",
    r"Ambiguous value for argument '(.*?)' 1\. ": _several_values,
    r"Sweep parameters '(.*?)' requires --multirun": lambda match, _: f"{match[1]} has several values: add -m to run each",
    r"Additional config directory '(.*?)' not found": _no_config_dir,
    r"Cannot find primary config '(.*?)'": lambda match, _: (
        f"--config-name {match[1]} is not a file in the folder of --config-dir: leave it out"
    ),
    r"Interpolation key '(.*?)' not found": _unknown_reference,
    r"(?:\w+ (?:raised )?while resolving interpolation: )(.*)": _unresolved,
    r"(The following interpolation is used to denote a config key.*)": _unresolved,
    r"Expected header format": lambda _, error: f"the line that begins with '# @' in a config file cannot be read ({error}): correct it",
    r"Recursive interpolation detected": lambda *_: "a key refers to itself, perhaps through others: write its value out",
    r"Exceeds the limit .* for integer string conversion": lambda *_: "a whole number of thousands of digits was given: shorten it",
    r"no viable alternative|mismatched input|extraneous input|token recognition error|missing .* at |Unexpected type annotation|"
    r"Config group override must be": _unreadable_words,
    r"(?:LexerNoViableAltException: |Error parsing override ')(.*?)(?: \^|'| See )": _unreadable_override,
    r"In '.*?': Could not find '(.+?)/([^/']*)' Available options in '.*?': (.*?) Config search path:": _unknown_choice,
}
"""The beginnings of Hydra's and OmegaConf's messages, and the sentences that replace them."""
