"""A config is written as OmegaConf writes it, and read as PyYAML reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hetsim.config import yaml_text
from hetsim.files.config_file import read_config

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=70).filter(lambda text: "${" not in text)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from(("", "é", "a\nb", "1e-3", "null", "???", "x" * 200))
)
TREES = st.recursive(LEAVES, lambda parts: st.lists(parts, max_size=4) | st.dictionaries(TEXTS, parts, max_size=4), max_leaves=15)


@pytest.mark.slow
@examples(200)
@given(st.dictionaries(TEXTS, TREES, max_size=5))
def test_the_text_is_omegaconfs(entries: dict[str, Any]) -> None:
    """Whichever emitter wrote it."""
    assert yaml_text.as_yaml(entries) == OmegaConf.to_yaml(OmegaConf.create(entries))


def test_without_libyaml_omegaconf_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML may have been built without it."""
    monkeypatch.setattr(yaml_text, "_dumper", lambda: None)
    assert yaml_text.as_yaml({"a": [1, "1"]}) == "a:\n- 1\n- '1'\n"


@pytest.mark.parametrize(
    "text",
    [
        "method: a\nseed: 3\n", "seed: 3\nnodes:\n- a: 1\n  b: 'x y'\n- {}\n", "a: \"x\nseed: 3\n\"\nseed: 4\n", "seed: 03\n",
        "seed: 3\nseed: 4\n", "seed: 3\nseed: x\n", "a: {b: 1,\nseed: 3\n}\n", "a: |\n  x\nseed: 3\n", "seed: -1\n", "seed: 3 # x\n",
        "seed: 9999999999999999999\n", "'seed': 3\n", "a: x\n  y\nseed: 3\n", "# seed: 1\nseed: 2\n", "a: 1\n? b\nseed: 3\n",
        "a: 2001-01-01\nseed: 1\n", "a: 'x\nseed: 3\n'\n", "a:\n- b\n- 'c''d'\nseed: 5\n", "a: it's\nseed: 1\n",
    ],
)  # fmt: skip
def test_configs_that_share_all_but_the_seed_are_read_once(text: str, tmp_path: Path) -> None:
    """And are as if each had been read by itself."""
    (tmp_path / "config.yaml").write_text("seed: 1234\n")
    read_config(tmp_path)
    for seed in ("3", "8"):
        (tmp_path / "config.yaml").write_text(text.replace("seed: 3", f"seed: {seed}"))
        try:
            expected = yaml.safe_load((tmp_path / "config.yaml").read_text())
        except yaml.YAMLError:
            with pytest.raises(ValueError, match=f"{tmp_path}/config.yaml.* cannot be read as YAML"):
                read_config(tmp_path)
        else:
            assert read_config(tmp_path) == expected
