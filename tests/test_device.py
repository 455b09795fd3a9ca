"""Where a task computes: the CPU, of which a backend may always ask to wait until everything is done."""

from __future__ import annotations

import pytest
from worlds import experiment

from hetsim.workloads.device import CPU, Device, device


def test_the_cpu_has_nothing_queued():
    """To synchronise returns at once: every result is computed when its function returns."""
    cpu = device("cpu")

    assert isinstance(cpu, CPU)
    assert cpu.name == "cpu"
    assert cpu.synchronise() is None


def test_an_unknown_device_is_refused():
    """With one sentence."""
    with pytest.raises(ValueError, match="device must be cpu, not 'tpu'"):
        device("tpu")


@pytest.mark.parametrize("workload", ["phantom", "quadratic", "digits"])
def test_every_task_has_a_device(workload: str):
    """So a backend can wait for it before it reads a clock."""
    task, _ = experiment(f"workload={workload}").load()

    assert isinstance(task.device, Device)
    task.device.synchronise()


def test_a_task_keeps_the_device_that_it_was_loaded_on():
    """Vectors and gradients are computed there."""
    here = CPU()
    made = experiment("workload=quadratic")

    assert made.workload.load(seed=0, dtype="float32", device=here).device is here
    assert experiment("workload=digits").workload.load(seed=0, dtype="float32", device=here).device is here
