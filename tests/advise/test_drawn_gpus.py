"""An advice about named GPUs does not say more than it knows: laws on drawn machines, models, batches and networks."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from here import Here, text

from hetsim.advice.advice import AdviceFindings, advice
from hetsim.advice.candidates import equal_nodes
from hetsim.advice.question import AdviceQuestion, asked
from hetsim.catalogue.tables import shipped_catalogue

DRAWN = [0, 1, *(pytest.param(number, marks=pytest.mark.long) for number in range(2, 60))]
NETWORKS = ("1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s", "400 Gbit/s")


def drawn(number: int) -> tuple[list[str], list[str]]:
    """One to three machines in words, in two orders each with the other words: model, batch and network."""
    chance = random.Random(f"named {number}")
    catalogue = shipped_catalogue()
    models = sorted({row.model for row in catalogue.rows if catalogue.models[row.model].parameters})
    model = chance.choice(models)
    gpus = [gpu for gpu in sorted(catalogue.gpus) if "mig" not in gpu]
    sums = [f"{chance.randint(1, 4)}*{gpu}" for gpu in chance.sample(gpus, chance.randint(1, 3))]
    batch = chance.randint(2, 64) * sum(int(part.partition("*")[0]) for part in sums)
    words = [f"model={model}", f"batch_size={batch}", f"network={chance.choice(NETWORKS)}"]
    return [" + ".join(sums), *words], [" + ".join(reversed(sums)), *words]


def answered(words: list[str]) -> tuple[AdviceQuestion, AdviceFindings] | str:
    """The question and its advice, or the sentence that refuses it."""
    question = asked(words, None)
    try:
        question.check()
        return question, advice(question, Here(), lambda _: None)
    except ValueError as error:
        return str(error)


def shares(question: AdviceQuestion, findings: AdviceFindings) -> Iterator[tuple[str, int, int | None]]:
    """Of each node of the recommended candidate: its GPU, its samples, and the most that it holds."""
    assert question.named is not None
    row = findings.recommended
    kept = [rank for rank in range(findings.num_nodes) if rank not in row.candidate.leave_out]
    names = {rank: name for name, ranks in question.named.ranks.items() for rank in ranks}
    for rank, samples in zip(kept, row.batch_sizes, strict=True):
        yield names[rank], samples, question.experiment.cluster.nodes[rank].max_samples


@pytest.mark.slow
@pytest.mark.parametrize("number", DRAWN)
def test_an_advice_about_named_gpus_keeps_to_what_is_known(number: int) -> None:
    """Equal GPUs stay together, memories hold the shares, the doubt is in the first sentence, and the order of machines changes nothing."""
    answer, again = map(answered, drawn(number))
    if isinstance(answer, str) or isinstance(again, str):
        assert re.fullmatch(r".* (too large for|hold|was not measured|no source) .*", answer if isinstance(answer, str) else "")
        assert isinstance(again, str)
        return
    question, findings = answer
    recommended = findings.recommended
    out = {*recommended.candidate.leave_out}
    if any(0 < len(out & {*ranks}) < len(ranks) for ranks in equal_nodes(question.experiment.cluster)):
        assert "Some equal nodes are left out, because" in findings.sentence
    for gpu, samples, most in shares(question, findings):
        assert most is None or samples <= most, gpu
    said = text(findings)
    assert (", unless " in findings.sentence) == ("the recommendation changes across" in said)
    assert question.named is not None
    assert all(str(times) in said for times in question.named.times.values())
    assert f"batches of {question.experiment.batch_size}" in said
    one_sample = 1 / min(filter(None, recommended.batch_sizes))  # equal shares give the samples that are left over to the first nodes
    assert again[1].recommended.seconds.mean == pytest.approx(recommended.seconds.mean, rel=0.01 + one_sample)
