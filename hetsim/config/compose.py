"""Compose the config of overrides from Python, as the command does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from hetsim.config.errors import USERS, sentence
from hetsim.config.guard import provenance
from hetsim.config.guard.folders import check_folder
from hetsim.config.typed_files import with_files
from hetsim.config.written_config import without_hydra
from hetsim.errors import RunFailed
from hetsim.trust.shipped import configs


def composed(words: Sequence[str], *, config_dir: Path | None) -> tuple[DictConfig, Path, tuple[str, ...]]:
    """The config of a run, its folder by `hydra.run.dir`, and the overrides of the config itself.

    `config_dir` has further choices, as the command's --config-dir. ValueError with one sentence if the words make no config.
    """
    words = with_files(words, config_dir)
    try:
        check_folder("the current folder", Path.cwd())
        with provenance.installed(), initialize_config_dir(str(configs()), version_base="1.3"):
            config = compose("config", overrides=words, return_hydra_config=True)
        typed = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        assert isinstance(typed, list)
        return without_hydra(config), Path(config.hydra.run.dir), tuple(map(str, typed))
    except RunFailed:
        raise
    except USERS as error:
        raise ValueError(sentence(error)) from None
