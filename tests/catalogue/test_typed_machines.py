"""Machines in one line: each text means what it seems to mean, or is refused at its place with the form that would."""

from __future__ import annotations

import contextlib
import random

import pytest

from hetsim.catalogue.tables import shipped_catalogue
from hetsim.catalogue.typed_machines import Kind, TypedMachine, typed_machines

CATALOGUE = shipped_catalogue()
A100, T4, H100, CARD_3090, CARD_1080 = "a100-40gb", "t4", "h100-80gb", "rtx3090", "gtx1080ti"


def one(*kinds: tuple[int, str]) -> TypedMachine:
    """A machine with these GPUs."""
    return TypedMachine(1, tuple(Kind(*kind) for kind in kinds))


TWO_AND_FOUR = [one((2, A100)), one((4, T4))]
MEANING = {
    "2*a100 + 4*t4": TWO_AND_FOUR,
    "2*a100+4*t4": TWO_AND_FOUR,
    "2xA100 + 4xT4": TWO_AND_FOUR,
    "2×A100 + 4×T4": TWO_AND_FOUR,
    "2*A100 + 4*T4": TWO_AND_FOUR,
    "2 A100, 4 T4": TWO_AND_FOUR,
    "2 A100 / 4 T4": TWO_AND_FOUR,
    "2 A100 and 4 Tesla T4": TWO_AND_FOUR,
    "(2*a100) + (4*t4)": TWO_AND_FOUR,
    "2*NVIDIA A100-SXM4-40GB + 4*Tesla T4": TWO_AND_FOUR,
    "8x(8*h100)": [TypedMachine(8, (Kind(8, H100),))],
    "8×(8*h100)": [TypedMachine(8, (Kind(8, H100),))],
    "8 x ( 8 h100 )": [TypedMachine(8, (Kind(8, H100),))],
    "8x8*h100": [TypedMachine(8, (Kind(8, H100),))],
    "8*(h100)": [TypedMachine(8, (Kind(1, H100),))],
    "2*rtx 3090": [one((2, CARD_3090))],
    "2x3090": [one((2, CARD_3090))],
    "2 3090": [one((2, CARD_3090))],
    "(3090 + 1080ti) + 2*t4": [one((1, CARD_3090), (1, CARD_1080)), one((2, T4))],
    "2x(2*a100 + 4*t4)": [TypedMachine(2, (Kind(2, A100), Kind(4, T4)))],
    "2x((2*a100) + (4*t4))": [TypedMachine(2, (Kind(2, A100),)), TypedMachine(2, (Kind(4, T4),))],
    "3x(2x(t4))": [TypedMachine(6, (Kind(1, T4),))],
    "(t4 + t4)": [one((2, T4))],
    "a100*0.8 + 2*t4*1.5": [TypedMachine(1, (Kind(1, A100, 0.8),)), TypedMachine(1, (Kind(2, T4, 1.5),))],
    "3090*0.8": [TypedMachine(1, (Kind(1, CARD_3090, 0.8),))],
}
REFUSED = {
    "0x(t4)": "at '0x(t4)': a number of GPUs or machines is from 1",
    "0*t4": "at '0*t4': a number of GPUs or machines is from 1",
    "((t4)": "at its end: a ) is missing",
    "t4)": "at ')': no ( is open there",
    "2*(t4*)": "at '*)': the speed of a GPU is a number with a point",
    "t4 +": "at its end: the name of a GPU is missing",
    "()": "at ')': the name of a GPU is missing",
    "t4 t4": "at 't4': write + between two machines",
    "2*a100 4*t4": "at '4*t4': write + between two machines",
    "t4 ! l4": "at '! l4': write + between two machines",
    "a100*2": "at '*2': write 2*a100-40gb, and a100-40gb*0.8 for",
    "a100:2": "at ':2': write 2*a100-40gb",
    "a100 x2": "at 'a100 x2': write 2*a100",
    "3090*2": "at '2': write 2*3090",
    "t4*0.0": "the speed of a GPU must be a finite number above zero",
    "1000000*t4 + t4": "has over 1000000 GPUs",
    "99999999999999999999*t4": "a number of GPUs or machines is from 1 to 1000000",
    "2*b200": "'b200' is no GPU of the catalogue",
    "(" * 50 + "t4": "over 10 parentheses are open",
    "t4 + " * 1000: "has over 2000 letters",
}


@pytest.mark.parametrize("text", MEANING)
def test_a_text_means_what_it_seems_to_mean(text: str) -> None:
    """A number in front of a name counts GPUs of a machine, and one in front of parentheses counts machines."""
    assert typed_machines(text, CATALOGUE.gpu) == MEANING[text]


@pytest.mark.parametrize("text", REFUSED)
def test_another_text_is_refused_at_its_place(text: str) -> None:
    """With the form that would be read."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        typed_machines(text, CATALOGUE.gpu)

    assert REFUSED[text] in str(caught.value)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read_again(seed: int) -> None:
    """Drawn machines, in their usual form and with other signs, blanks and letters."""
    draw = random.Random(seed)
    for _ in range(100):
        names = draw.sample(sorted(CATALOGUE.gpus), 4)
        machines = [
            TypedMachine(
                draw.choice([1, 1, 3, 12]),
                tuple(Kind(draw.randint(1, 9), name, draw.choice([1.0, 0.8, 2.5])) for name in draw.sample(names, draw.randint(1, 3))),
            )
            for _ in range(draw.randint(1, 4))
        ]
        text = " + ".join(map(str, machines))
        other = text.upper().replace("X(", draw.choice(["x(", " × (", "*("])).replace(" + ", draw.choice([" + ", "+", " , ", "/"]))

        assert typed_machines(text, CATALOGUE.gpu) == machines
        assert typed_machines(other, CATALOGUE.gpu) == machines


def test_no_text_ends_in_another_error() -> None:
    """Letters of the grammar in any order are machines or a sentence."""
    draw = random.Random(0)
    parts = [*"28x*× ()+,/:=-_µ", "t4", "a100", "3090", "0.8", "*0.8", "rtx ", "and"]
    for _ in range(3000):
        text = "".join(draw.choices(parts, k=draw.randint(1, 12)))
        with contextlib.suppress(ValueError):
            machines = typed_machines(text, CATALOGUE.gpu)
            assert typed_machines(" + ".join(map(str, machines)), CATALOGUE.gpu) == machines
