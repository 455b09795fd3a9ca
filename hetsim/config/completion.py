"""`hetsim completion bash` and `hetsim completion zsh` print a script that completes config arguments without running Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from hetsim.files.config_file import flattened
from hetsim.trust.shipped import configs

COMMANDS = "hetsim hetsim-advise hetsim-calibrate hetsim-launch hetsim-search"
"""The commands with config arguments."""
BASH = """_hetsim() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##* }
    local before=""
    if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then
        before=${word%%=*}=  # bash replaces what follows the sign
    fi
    local found=($(compgen -W "WORDS" -- "$word"))
    COMPREPLY=("${found[@]#"$before"}")
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *= ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -o default -F _hetsim COMMANDS
"""
ZSH = "autoload -Uz bashcompinit && bashcompinit\n" + BASH
SHELLS = {"bash": BASH, "zsh": ZSH}


def completion(arguments: Sequence[str]) -> str:
    """The script for a shell. Raises ValueError for another shell."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise ValueError("hetsim completion is for bash and zsh: type hetsim completion bash")
    return SHELLS[arguments[0]].replace("WORDS", " ".join(words())).replace("COMMANDS", COMMANDS)


def words() -> list[str]:
    """`group=choice` for every shipped choice, and `key=` for every other key of the config."""
    folders = sorted(path for path in configs().iterdir() if path.is_dir())
    choices = [f"{folder.name}={path.stem}" for folder in folders for path in sorted(folder.glob("*.yaml"))]
    config: Mapping[str, Any] = OmegaConf.to_container(OmegaConf.load(configs() / "config.yaml"))  # type: ignore[assignment]
    groups = {folder.name for folder in folders}
    keys = flattened({key: value for key, value in config.items() if key not in {"defaults", "hydra", *groups}})
    return [*choices, *(f"{key}=" for key, _ in keys)]
