"""What is typed: values as words in Hydra's grammar, words that Hydra can read, and files instead of choices.

`cluster=my/cluster/lab.yaml` is `cluster=lab` with the further folder `my`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from hetsim import checks
from hetsim.config.compositions import Compositions, compositions, parsed
from hetsim.trust.shipped import choices, is_group

PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_][\w.-]*", re.IGNORECASE | re.ASCII)
"""A text that needs no quotes."""


def as_typed(value: Any) -> str:
    """The text that a user would type for this value. Raises ValueError if no text can express it."""
    if isinstance(value, str) and PLAIN.fullmatch(value):
        return value
    return str(Override._get_value_element_as_str(_quoted(value)))


def command_line(words: Sequence[str], config_dir: str | None) -> str:
    """The command that runs these arguments, for a shell."""
    return shlex.join(["hetsim", *([] if config_dir is None else ["--config-dir", config_dir]), *words])


def words_for(keys: Mapping[str, Any]) -> list[str]:
    """The arguments that give each key its value. A mapping gives values to the keys below its key."""
    return [word for key, value in keys.items() for word in _words(key, value, "++" if isinstance(value, Mapping) else "")]


def _words(key: str, value: Any, adds: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _words(f"{key}.{name}", part, adds)
    else:
        yield f"{adds}{key}={as_typed(value)}"


def _quoted(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return QuotedString(value, Quote.single)
    if isinstance(value, dict):
        return {str(key): _quoted(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(part) for part in value]
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError(f"{checks.shown(value)} is not a value of a config: give a number, a text, true, false, null, a list or a mapping")


def quoted(text: str) -> str:
    """A text in quotes, in Hydra's grammar. Backslashes are literal, except before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda quote: quote[1] * 2 + ("\\'" if quote[2] else ""), text) + "'"


# Words that Hydra can read

PLACE = re.compile(r"\[(\d+)\]")
LIVE, DOUBLE = re.compile(r'["$`!\\\\]'), '"{}"'
"""Characters that a shell interprets between double quotes, and the double quotes."""
PAIRS = {"(": ")", "[": "]", "{": "}"}


def check_readable(words: Iterable[str]) -> None:
    """Raise ValueError for an argument that is no key=value, or an unknown choice of a group of hetsim."""
    for word in words:
        try:
            override = parsed(word)
        except HydraException:
            raise ValueError(f"{word} cannot be read as key=value: {_instead(word)}") from None
        if not override.key_or_group:
            raise ValueError(f"{word} cannot be read as key=value: give the key in front of the =")
        if is_group(override.key_or_group) and override.package is None:
            _check_choice(word, override)


def _check_choice(word: str, override: Override) -> None:
    group, value = override.key_or_group, override.value()
    if override.is_delete():
        instead = f"type {group}=none" if "none" in choices(group) else f"choose another with {group}=…"
        raise ValueError(f"{word} would leave a run without its {group}: {instead}")
    if override.is_add() or override.is_force_add():
        if isinstance(value, str):
            raise ValueError(f"{word} adds nothing, because {group} is chosen already: type {word.lstrip('+')}")
    elif value is None and not override.is_sweep_override():
        instead = f"type {group}=none" if "none" in choices(group) else f"leave it out, or type one of {', '.join(choices(group))}"
        raise ValueError(f"{word} names no choice: {instead}")
    elif value == "":
        raise ValueError(f"{word} names no choice: type one of {', '.join(choices(group))}")
    elif not isinstance(value, str | list | dict) and not override.is_sweep_override():
        raise ValueError(f"{word} names no choice{checks.suggestion(value, choices(group))}: type one of {', '.join(choices(group))}")


def _instead(word: str) -> str:
    key, equals, value = word.partition("=")
    if equals and PLACE.search(key):
        return "type " + PLACE.sub(r".\1", key) + f"={value}"
    if not equals:
        return f"type {word}=VALUE" if re.fullmatch(r"[+~]*[\w.@/]+", word) else "quote it for the shell together with the word before it"
    if not key.strip("+~"):
        return "give the key in front of the ="
    if _unclosed(value):
        return f"close its brackets, and quote the whole word for the shell, as in '{key}=…'"
    if value.rstrip().endswith(","):
        return "a value is missing after the last comma"
    with_quotes = f"{key}={as_typed(value)}"
    return f"quote its value, as in {shlex.quote(with_quotes) if LIVE.search(with_quotes) else DOUBLE.format(with_quotes)}"


def _unclosed(value: str) -> bool:
    """Whether brackets do not match."""
    expected: list[str] = []
    quote = ""
    for letter in value:
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
        elif letter in PAIRS:
            expected.append(PAIRS[letter])
        elif letter in PAIRS.values() and (not expected or expected.pop() != letter):
            return True
    return bool(expected)


# Folders of configs

Folders = str | Path | None
"""A further folder of configs."""


def words_and_choices(words: Sequence[str], config_dir: Folders = None, name: str = "config") -> tuple[list[str], Compositions]:
    """The words as Hydra reads them, and the configs of this primary config and of the folders that the words name.

    Raises ValueError with one sentence for a word that is none, and for a folder that cannot be used.
    """
    hydra_words, folders = with_files(words, config_dir)
    check_readable(hydra_words)
    return hydra_words, compositions(folders, name)


SEARCH_PATH = re.compile(r"[+]*hydra\.searchpath=")


def with_files(words: Sequence[str], config_dir: Folders = None) -> tuple[list[str], tuple[str, ...]]:
    """The words that Hydra reads, and the folders of configs that they or `config_dir` name, as absolute paths or pkg://….

    Raises ValueError with one sentence if a folder is none, or two files have one name.
    """
    check_folder("the current folder", Path.cwd())
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ValueError(f"config_dir={config_dir} is not a folder: give the one with a folder for each group, such as cluster/")
    option_folders = [] if config_dir is None else [Path(config_dir)]
    files: dict[tuple[str, str], Path] = {}
    hydra_words = [_with_names(word, files) for word in words if not SEARCH_PATH.match(word)]
    folders = [*option_folders, *(folder for folder in dict.fromkeys(files.values()) if folder not in option_folders)]
    for group, name in files:
        if len([folder for folder in folders if Path(folder, group, f"{name}.yaml").exists()]) > 1:
            raise ValueError(f"{group}={name} is a file in each of {', '.join(map(str, folders))}: rename all but one of them")
    searched = [str(place) for word in words if SEARCH_PATH.match(word) for place in _places(word)]
    for folder in folders:
        check_folder("config_dir", folder.absolute())
    return hydra_words, (*(str(folder.absolute()) for folder in folders), *searched)


def check_folder(key: str, folder: str | Path) -> None:
    """Raise ValueError if a folder's name contains more than a name: a reference to Hydra, or a line of a scheduler's script."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", str(folder)):
        raise ValueError(f"{key} is {checks.printable(str(folder))}, whose name has control characters: work in a folder of another name")
    if "${" in str(folder):
        raise ValueError(f"{key} is {folder}, in which Hydra would take ${{…}} for a reference: work in a folder of another name")


def _places(word: str) -> list[str]:
    """The folders and packages in a typed search path."""
    value = parsed(word).value()
    if not isinstance(value, list) or not all(isinstance(place, str) for place in value):
        raise ValueError(f"{word} must be a list of folders, as in hydra.searchpath=[my/configs]")
    places = [str(place).removeprefix("file://") for place in value]
    return [place if "://" in place else str(Path(place).absolute()) for place in places]


def _with_names(word: str, files: dict[tuple[str, str], Path]) -> str:
    """The argument with names of choices instead of their files. The files' folders are added to `files`."""
    group, _, value = word.partition("=")
    if ".yaml" not in value or not is_group(group):
        return word
    return f"{group}={','.join(_name(group, part, files) for part in value.split(','))}"


def _name(group: str, text: str, files: dict[tuple[str, str], Path]) -> str:
    file = Path(text.strip("'\""))
    if file.suffix != ".yaml" or file.parent.name != group:
        return text
    if not file.is_file():
        raise ValueError(f"{group}={text}: there is no such file")
    if file.stem in choices(group):
        raise ValueError(f"{group}={text}: {group}={file.stem} ships with hetsim and would be taken instead: rename the file")
    files.setdefault((group, file.stem), file.parent.parent)
    if files[group, file.stem] != file.parent.parent:
        raise ValueError(f"{group}={text}: {files[group, file.stem] / group} has a {file.name}, too: rename one of them")
    return checks.name(group, file.stem)
