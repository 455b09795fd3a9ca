"""Every module of hetsim that a command line names is forked in tests; one that was renamed would be started, which takes seconds."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest

import hetsim

PACKAGE = Path(hetsim.__file__).parent
PROGRAMS = {
    f"hetsim.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}".removesuffix(".__main__")
    for path in PACKAGE.rglob("*.py")
    if '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")
}
STARTED = {"hetsim.gradcheck.launched"}
"""What runs a script of the user's."""


@pytest.mark.parametrize("module", sorted(PROGRAMS - STARTED))
def test_a_program_is_forked(module: str) -> None:
    assert forked.is_forked([forked.PYTHON, "-P", "-m", module])


def test_each_name_in_the_list_is_a_program() -> None:
    names = {name for name in forked.MODULES if name.startswith("hetsim")}

    assert {name for name in names if not any(f"{program}.".startswith(name) for program in PROGRAMS)} == set()
