"""Choices that are typed as files: `cluster=my/cluster/lab.yaml` means `cluster=lab` with the further folder `my`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetsim import checks
from hetsim.config.guard.folders import check_folder
from hetsim.config.typed import quoted
from hetsim.trust.shipped import choices, is_group


def with_files(words: Sequence[str], config_dir: Path | None = None, *, of_option: bool = False) -> list[str]:
    """The words that Hydra reads, with one that adds the folders of these files and `config_dir`.

    With `of_option`, Hydra itself adds `config_dir`. ValueError with one sentence if a folder is none, or two files have one name.
    """
    if config_dir is not None and not of_option and not config_dir.is_dir():
        raise ValueError(f"config_dir={config_dir} is not a folder: give one with folders of choices, such as method/")
    found: dict[tuple[str, str], Path] = {}
    read = [_with_names(word, found) for word in words]
    own = [] if config_dir is None else [config_dir]
    folders = [*own, *(folder for folder in dict.fromkeys(found.values()) if folder not in own)]
    for group, name in found:
        if len([folder for folder in folders if Path(folder, group, f"{name}.yaml").exists()]) > 1:
            raise ValueError(f"{group}={name} is a file in each of {', '.join(map(str, folders))}: rename all but one of them")
    if found and (typed := next((word for word in words if word.startswith("hydra.searchpath=")), None)):
        raise ValueError(f"{typed} does not go with the path of a file: type {' '.join('='.join(each) for each in found)}")
    added = folders[len(own) :] if of_option else folders
    for folder in added:
        check_folder("config_dir", folder.absolute())
    return [*read, *([f"hydra.searchpath=[{','.join(quoted(f'file://{folder.absolute()}') for folder in added)}]"] if added else [])]


def _with_names(word: str, found: dict[tuple[str, str], Path]) -> str:
    """The argument with names of choices instead of their files. The files' folders are added to `found`."""
    group, _, value = word.partition("=")
    if ".yaml" not in value or not is_group(group):
        return word
    return f"{group}={','.join(_name(group, part, found) for part in value.split(','))}"


def _name(group: str, text: str, found: dict[tuple[str, str], Path]) -> str:
    file = Path(text.strip("'\""))
    if file.suffix != ".yaml" or file.parent.name != group:
        return text
    if not file.is_file():
        raise ValueError(f"{group}={text}: there is no such file")
    if file.stem in choices(group):
        raise ValueError(f"{group}={text}: {group}={file.stem} ships with hetsim and would be taken instead: rename the file")
    found.setdefault((group, file.stem), file.parent.parent)
    if found[group, file.stem] != file.parent.parent:
        raise ValueError(f"{group}={text}: {found[group, file.stem] / group} has a {file.name}, too: rename one of them")
    return checks.name(group, file.stem)
