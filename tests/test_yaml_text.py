"""A config is written as OmegaConf writes it."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hetsim.config import yaml_text

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
