"""Steps and all-reduces of boxes of GPUs that others have published, beside what is simulated: the table in docs/reference/cluster.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import pages
import pytest
from worlds import experiment, simulate

from hetsim.cluster.network.collectives import Collectives
from hetsim.cluster.parse.cluster import parse_cluster


class Point(NamedTuple):
    """What was measured: seconds, or samples per second of a batch."""

    what: str
    machine: dict[str, Any]
    measured: float
    unit: str
    source: str
    parameters: float
    """The size of the model, or of the reduced vector if `per_gpu` is 0."""
    per_gpu: int = 0
    nbytes: int = 4
    algorithm: str = "auto"


GUIDE, NCCL_TESTS = "https://github.com/modal-labs/multinode-training-guide", "https://github.com/NVIDIA/nccl-tests/issues/22"
HOROVOD = "https://github.com/horovod/horovod/issues"
H100 = {"inside": "450 GB/s", "network": "8 x 400 Gbit/s"}
V100 = {"gpus": {"count": 8, "seconds_per_sample": "5.222 ms"}, "inside": "150 GB/s", "network": "10 Gbit/s", "count": 2}
RESNET101 = {"seconds_per_sample": 1 / 202.78, "count": 8}
SDXL = {"count": 2, "seconds_per_sample": 1.27 / 4}

POINTS = [
    Point("nanoGPT of 124 M, 8 boxes of 8 H100", {**H100, "count": 8, "gpus": {"count": 8, "seconds_per_sample": "27 ms"}},
          30e-3, "ms", f"{GUIDE}/pull/27", 124e6, 1),
    Point("nanoGPT of 124 M, 2 boxes of 8 H100", {**H100, "count": 2, "gpus": {"count": 8, "seconds_per_sample": "112 ms"}},
          115e-3, "ms", f"{GUIDE}/pull/27", 124e6, 1),
    Point("all-reduce of 4 GB, 2 boxes of 8 H100", {**H100, "count": 2, "gpus": {"count": 8, "seconds_per_sample": 1}},
          4 / 239.742, "ms", f"{GUIDE}/blob/50d02154/benchmark/README.md", 1e9),
    Point("all-reduce of 1 GiB by a tree, 2 boxes of 8 V100, 60 Gbit/s", {**V100, "network": "60 Gbit/s"},
          134e-3, "ms", NCCL_TESTS, 2**28),
    Point("the same by a ring", {**V100, "network": "60 Gbit/s"}, 268e-3, "ms", NCCL_TESTS, 2**28, algorithm="ring"),
    Point("VGG16, 2 boxes of 8 V100, 10 Gbit/s, rings", V100, 546.9, "images/s", f"{HOROVOD}/2581", 138.36e6, 32, algorithm="ring"),
    Point("ResNet-101, 2 boxes of 8 V100 by PCIe 3, 40 Gbit/s, rings",
          {"count": 2, "gpus": RESNET101, "inside": "12 GB/s", "network": "40 Gbit/s"},
          2379.56, "images/s", f"{HOROVOD}/416", 44.55e6, 64, algorithm="ring"),
    Point("ResNet-101, 4 V100 by PCIe 3", {"gpus": {**RESNET101, "count": 4}, "inside": "12 GB/s", "network": "40 Gbit/s"},
          650.92, "images/s", f"{HOROVOD}/416", 44.55e6, 64),
    Point("SDXL in bfloat16, 2 H100 by PCIe, 7 GB/s", {"gpus": SDXL, "inside": "7 GB/s", "network": "10 Gbit/s"},
          2.07, "s", "https://github.com/kohya-ss/sd-scripts/issues/1434", 2.567e9, 4, nbytes=2),
]  # fmt: skip
SCALES = {"ms": 1e3, "s": 1.0, "images/s": 1.0}


def said(point: Point) -> float:
    """A step of plain DDP, or an all-reduce."""
    described = {"name": "boxes", "machines": [point.machine], "network": {"all_reduce": point.algorithm}}
    if not point.per_gpu:
        return Collectives(parse_cluster(described)).all_reduce_seconds(round(point.nbytes * point.parameters))
    num = point.machine["gpus"]["count"] * point.machine.get("count", 1)
    size = {"num_parameters": round(point.parameters), "bytes_per_parameter": point.nbytes}
    batch = point.per_gpu * num
    made = experiment("method=ddp", "workload=phantom", workload=size, cluster=described, batch_size=batch, budget={"updates": 1})
    step = simulate(made).seconds[0]
    return batch / step if point.unit == "images/s" else step


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.what)
def test_a_published_point_is_in_the_table_with_what_is_said_of_it(point: Point) -> None:
    """And with its error."""
    simulated, scale = said(point), SCALES[point.unit]
    error = 100 * (simulated / point.measured - 1)

    row = f"| {point.what} | {scale * point.measured:.4g} {point.unit} | {scale * simulated:.4g} {point.unit} | {error:+.0f} % | "

    assert row in pages.text("cluster.md"), row
    assert point.source in pages.text("cluster.md")
