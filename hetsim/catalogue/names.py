"""Names of GPUs and models as people and programs write them.

A name of a GPU is a set of words, such as {a100, 80gb, pcie}. It means a GPU of the catalogue if it contains the words of the chip and
no word that the GPU does not have. So `NVIDIA A100-SXM4-80GB` is a100-80gb, and neither `L40S` nor `RTX 3060` is another card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

from hetsim import checks

MAX_LETTERS = 200
SILENT = frozenset(
    (
        *("nvidia", "amd", "geforce", "tesla", "quadro", "instinct", "gpu", "graphics", "card", "design", "with", "generation"),
        *("hbm2", "hbm2e", "hbm3"),
    )
)
"""Words that tell no GPU from another."""
KINDS_OF_LINK = frozenset(("sxm", "pcie", "nvlink"))
SERIES = frozenset(("rtx", "gtx"))
MEMORY = re.compile(r"[0-9]+gb")
SPLITS = (
    (re.compile(r"\bmax[\s_-]?q\b|maxq\b"), " maxq "),
    (re.compile(r"\b([0-9]+)[\s_-]*gi?b\b"), r" \1gb "),
    (re.compile(r"\b([0-9]+)[\s_-]*g\b|(?<=[\s_-])([0-9]{2})(?![\w.])"), r" \1\2gb "),
    (re.compile(r"\bsxm[0-9]?\b"), " sxm "),
    (re.compile(r"\bpci-?e(?:xpress)?\b"), " pcie "),
    (re.compile(r"\b(rtx|gtx|titan|tesla|quadro)(?=[a-z]?[0-9]|rtx)"), r"\1 "),
    (re.compile(r"([0-9])(ti|super)\b"), r"\1 \2 "),
)
"""Spellings of a word, and what stands for it."""
SEPARATORS = re.compile(r"[^a-z0-9.]+")
DESCRIBE = (
    "describe another GPU by seconds_per_sample, max_samples and inside in cluster.machines, or by seconds, memory_gb and "
    "inside_gb_per_second in catalogue=FILE.yaml (docs/reference/catalogue.md)"
)


class GpuWords(NamedTuple):
    """The words of a GPU: its names in full, those of its chip, and all that may be said of it."""

    names: tuple[frozenset[str], ...]
    chip: frozenset[str]
    every: frozenset[str]


def words_of(names: Sequence[str], described: str) -> GpuWords:
    """The words of a GPU with these names, the first of which is its own, and this description: title, link, memory."""
    sets = tuple(map(_words, names))
    return GpuWords(sets, _chip(sets[0]), frozenset().union(*sets, _words(described)))


PROFILE = re.compile(r"[\s_-]+(?:mig[\s_-]*)?([1-9])g\.([0-9]{1,3})gb", re.IGNORECASE)
"""A MIG slice behind the name of its GPU, such as `MIG 3g.20gb` or `_3g.20gb`."""


def split_profile(text: str) -> tuple[str, tuple[int, int] | None]:
    """The name of the whole GPU, and the sevenths and gigabytes of a MIG slice; None for a whole GPU."""
    match = PROFILE.search(str(text)[:MAX_LETTERS])
    if match is None or match.end() < len(str(text).rstrip()):
        return text, None
    return str(text)[: match.start()], (int(match[1]), int(match[2]))


def name_of_gpu(text: str, gpus: Mapping[str, GpuWords]) -> str:
    """The GPU that this text names. Raises ValueError if it is none, or several."""
    if len(str(text)) > MAX_LETTERS:
        raise ValueError(f"{checks.shown(text)} is no GPU of the catalogue")
    key = str(text).strip().lower().replace(" ", "-").replace("_", "-")
    if key in gpus:
        return key
    words = _words(str(text))
    if len(words) < len([word for word in _split(str(text)) if word not in SILENT]):
        raise ValueError(f"{checks.shown(text)} is no GPU of the catalogue: it has a word twice")
    exact = [name for name, gpu in gpus.items() if words and words in gpu.names]
    fitting = exact or fitting_gpus(str(text), gpus)
    usual = [name for name in fitting if _chip(words) in gpus[name].names]
    if len(fitting) > 1 and len(usual) != 1:
        raise ValueError(f"{checks.shown(text)} may be {' or '.join(fitting)}: name one of them")
    if fitting:
        return (usual or fitting)[0]
    same_chip = [name for name, gpu in gpus.items() if gpu.chip == _chip(words) & gpu.chip != frozenset() and _is_variant(words, gpu)]
    others = f", which has {', '.join(same_chip)}" if same_chip else ""
    raise ValueError(f"{checks.shown(text)} is no GPU of the catalogue{others}: {DESCRIBE}")


def fitting_gpus(text: str, gpus: Mapping[str, GpuWords]) -> list[str]:
    """The GPUs whose chip this text names, and of which it says nothing else."""
    words = _words(text)
    return [name for name, gpu in gpus.items() if words and gpu.chip <= words <= gpu.every]


def _is_variant(words: frozenset[str], gpu: GpuWords) -> bool:
    """Whether these words name the chip of a GPU, with another memory or link."""
    return all(word in gpu.every or word in KINDS_OF_LINK or MEMORY.fullmatch(word) for word in words)


@lru_cache(maxsize=1000)
def _words(text: str) -> frozenset[str]:
    return frozenset(_split(text)) - SILENT


def _split(text: str) -> list[str]:
    text = text.lower().replace("_", "-")
    for spelling, word in SPLITS:
        text = spelling.sub(word, text)
    return [word for word in SEPARATORS.split(text) if word]


def _chip(words: frozenset[str]) -> frozenset[str]:
    """The words without memory, link and series."""
    chip = frozenset(word for word in words - KINDS_OF_LINK if not MEMORY.fullmatch(word))
    return chip - SERIES if any(letter.isdigit() for word in chip for letter in word) else chip


# Models

OWNER, TAG = re.compile(r"^[\w.-]+/(?=[\w-]*[a-z])"), re.compile(r"\.(?!\d)\w+$")
"""The owner and the weights in a name of the Hugging Face Hub or timm: `timm/resnet50.a1_in1k`."""
SIZES = frozenset(("tiny", "small", "medium", "base", "large", "huge", "xl", "xxl", "mini", "nano"))
ALIKE = 0.8
"""The similarity of the families of a name and of its hint: `resnt` is alike to `resnet`, and `opt` is not to `mpt`."""


def name_of_model(text: str, models: Mapping[str, Sequence[str]]) -> str:
    """The model that this text names; `models` has each one's aliases. Raises ValueError if it is none."""
    if len(str(text)) > MAX_LETTERS:
        raise ValueError(f"{checks.shown(text)} is no model of the catalogue")
    keys = {_key(alias): name for name, aliases in models.items() for alias in (*aliases, name)}
    typed = str(text).strip().lower()
    for key in (_key(typed), _key(OWNER.sub("", typed)), _key(TAG.sub("", OWNER.sub("", typed)))):
        if key in keys:
            return keys[key]
    raise ValueError(f"{checks.shown(text)} is no model of the catalogue{_hint(typed, models)}")


def _key(text: str) -> str:
    """The letters and digits of a name, and the points between digits."""
    return re.sub(r"[^a-z0-9.]|(?<![0-9])\.|\.(?![0-9])", "", text.lower())


def _hint(typed: str, models: Mapping[str, Sequence[str]]) -> str:
    """The models whose names begin with this one, or a model of the same numbers and size in a family that is spelled alike."""
    longer = [name for name in models if _key(typed) and _key(name).startswith(_key(typed))]
    alike = [name for name in models if _numbers_and_size(name) == _numbers_and_size(typed) and _is_alike(_family(name), _family(typed))]
    close = "" if longer else checks.suggestion(typed, alike)
    others = f", which has {', '.join(longer)}" if longer else ""
    return close or f"{others}: hetsim-catalogue lists its models, and catalogue=FILE.yaml adds yours"


def _family(name: str) -> str:
    """The first letters of a name."""
    return re.match(r"[a-z]*", name.lower())[0]  # type: ignore[index]


def _is_alike(family: str, other_family: str) -> bool:
    return SequenceMatcher(None, family, other_family).ratio() >= ALIKE


def _numbers_and_size(name: str) -> tuple[list[str], list[str]]:
    return re.findall(r"[0-9.]+", name), sorted(word for word in SEPARATORS.split(name.lower()) if word in SIZES)
