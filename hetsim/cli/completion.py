"""All commands, and the script of `hetsim completion bash` or `zsh`, which completes their words without running Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetsim.catalogue.tables import shipped_catalogue
from hetsim.config.arguments import config_words
from hetsim.trust.shipped import names


class Command(NamedTuple):
    """A command: what it does, its options, and the words that it takes.

    These are the config's, GPUs, methods, or names of models behind any other text.
    """

    about: str
    options: str
    words: tuple[str, ...] = ()


COMMANDS = {
    "hetsim": Command(
        "simulates a training on unequal machines, or trains in real processes",
        "--cfg --config-dir --config-name --help --hydra-help --info --multirun --package --resolve --version",
        ("config",),
    ),
    "hetsim-advise": Command(
        "recommends the fastest method, batch split and machines",
        "--config-dir --engine --folder --help --html --json --minutes --or --picture --processes --version",
        ("config", "gpu", "model="),
    ),
    "hetsim-calibrate": Command(
        "measures your machines, for simulations of them",
        "--against --compose --config-dir --from-trace --gpu --help --html --quick --rows --seconds --version",
        ("config", "gpu"),
    ),
    "hetsim-catalogue": Command("shows the published step times of a GPU or a model", "--file --from --help --version", ("gpu", "")),
    "hetsim-compare": Command("compares two runs", "--help --html --json --perfetto --pictures --version --with"),
    "hetsim-ddp-check": Command("verifies the gradients of a training script", "--help --minutes --processes --version"),
    "hetsim-launch": Command("starts one run on several hosts", "--help --master --node-rank --nodes --processes --version", ("config",)),
    "hetsim-methods": Command("lists the methods", "--help --json --version", ("method",)),
    "hetsim-report": Command("writes a page or a timeline of a run", "--help --html --perfetto --version"),
    "hetsim-search": Command(
        "searches for the best values of keys",
        "--config-dir --direction --engine --folder --help --no-pruning --objective --processes --sampler --trials --version",
        ("config",),
    ),
    "hetsim-stragglers": Command("finds the slow ranks of a job and their cost", "--help --html --json --no-replay --picture --version"),
    "hetsim-table": Command(
        "ranks the runs of a sweep",
        "--at-seconds --baseline --best-of --direction --help --html --metric --target-accuracy --target-loss --to --version",
    ),
}
BASH = """_hetsim() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##* }
    local name=${line%% *}
    local words=""
    case ${name##*/} in
CASES
    esac
    local before=""
    if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then
        before=${word%%=*}=  # bash replaces what follows the sign
    fi
    local found=($(compgen -W "$words" -- "$word"))
    COMPREPLY=("${found[@]#"$before"}")
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -o default -F _hetsim NAMES
"""
ZSH = "autoload -Uz bashcompinit && bashcompinit\n" + BASH
SHELLS = {"bash": BASH, "zsh": ZSH}


def completion(arguments: Sequence[str]) -> str:
    """The script for a shell. Raises ValueError for another shell."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise ValueError("hetsim completion is for bash and zsh: type hetsim completion bash")
    cases = [f'        {name}) words="{" ".join(_words(command))}" ;;' for name, command in COMMANDS.items()]
    return SHELLS[arguments[0]].replace("CASES", "\n".join(cases)).replace("NAMES", " ".join(COMMANDS))


def _words(command: Command) -> list[str]:
    """All words that may follow a command."""
    words: list[str] = []
    for kind in command.words:
        if kind == "config":
            words += config_words()
        elif kind == "method":
            words += names("method")
        elif kind == "gpu":
            words += shipped_catalogue().gpus
        else:
            words += [kind + name for name in shipped_catalogue().models]
    return words + command.options.split()
