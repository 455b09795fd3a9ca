"""Build the table of `hetsim/catalogue/` from published measurements, and measure the errors of what nobody measured.

    python benchmarks/catalogue.py FOLDER    rewrites measured.csv; FOLDER contains the sources' files as CSV
    python benchmarks/catalogue.py           prints the errors of estimates and between programs

Only figures are shipped. Some are left out:

- Lambda's GNMT, Tacotron2 and WaveGlow: their throughputs count tokens, frames or audio samples, and no length of a sequence is published;
- Lambda's Mask R-CNN, and BERT in the older container: their batch sizes are not published;
- steps above the peak of the GPU's data sheet: VGG-16 and ResNet-18, whose 3 × 3 filters take fewer products in cuDNN's fast convolutions,
  on cards that clock above their rating. An estimate from them would promise what no other model reaches.

`published_steps.csv` has published steps that are not in the catalogue, so that it can be compared with them.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetsim.catalogue import curves, estimates, shown, tables, times
from hetsim.catalogue.times import Choice
from hetsim.cluster.compute_times import interpolate

MEASURED = Path(tables.__file__).with_name("measured.csv")
SIA_GPUS = {"aws": "t4", "azure": "v100-32gb", "rtx": "rtx2080ti", "dgx": "a100-40gb", "dgx-ext": "a100-40gb", "quad": "rtx6000"}
SIA_MODELS = {
    "imagenet": ("resnet50", "amp"),
    "cifar10": ("resnet18-cifar", "fp32"),
    "bert": ("bert-base", "fp32"),
    "yolov3": ("yolov3", "amp"),
    "deepspeech2": ("deepspeech2", "fp32"),
    "ncf": ("ncf-1m", "fp32"),
}
"""Precisions as the applications of petuum/adaptdl call Apex."""
LAMBDA_MODELS = {
    "resnet50": ("resnet50", 1),
    "ssd": ("ssd300", 1),
    "ncf": ("ncf", 1),
    "bert_base_squad": ("bert-base", 1),
    "bert_large_squad": ("bert-large", 1),
    "transformerxlbase": ("transformerxl-base", 192),
    "transformerxllarge": ("transformerxl-large", 384),
}
"""The model, and what the throughput counts of one sample."""
LAMBDA_GPUS = {
    "1080Ti": "gtx1080ti",
    "2070MaxQ": "rtx2070-maxq",
    "2080MaxQ": "rtx2080-maxq",
    "2080SuperMaxQ": "rtx2080super-maxq",
    "2080Ti": "rtx2080ti",
    "3070": "rtx3070",
    "3080": "rtx3080",
    "3080Max-Q": "rtx3080-maxq",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "A100_40GB_SXM4": "a100-40gb",
    "A100_SXM4": "a100-40gb",
    "A100_p4": "a100-40gb",
    "A100_PCIe": "a100-40gb-pcie",
    "A100_40GB_PCIe": "a100-40gb-pcie",
    "A100_80GB_PCIe": "a100-80gb-pcie",
    "A100_80GB_SXM4": "a100-80gb",
    "A10": "a10",
    "A40": "a40",
    "A4000": "rtx-a4000",
    "A4500": "rtx-a4500",
    "A5000": "rtx-a5000",
    "A5500": "rtx-a5500",
    "A6000": "rtx-a6000",
    "AdaA6000": "rtx6000-ada",
    "H100_80GB_PCIe5": "h100-80gb-pcie",
    "H100_80GB_PCIe": "h100-80gb-pcie",
    "H100_80GB_SXM5": "h100-80gb",
    "1xQuadroRTX6000": "rtx6000",
    "QuadroRTX5000": "rtx5000",
    "QuadroRTX6000": "rtx6000",
    "QuadroRTX8000": "rtx8000",
    "TitanRTX": "titanrtx",
    "V100": "v100-32gb",
    "V100_16GB": "v100-16gb",
    "p3.2xlarge": "v100-16gb",
}
"""By the name of a system without its owner and `_v1`. The batch sizes of `V100` need 32 GB."""
GAVEL_MODELS = {
    "ResNet-18": "resnet18-cifar",
    "ResNet-50": "resnet50",
    "Transformer": "transformer-multi30k",
    "LM": "lstm-wikitext2",
    "Recommendation": "recoder-ml20m",
}
GAVEL_GPUS = {"k80": "k80", "p100": "p100", "v100": "v100-16gb"}
NEUSIGHT_GPUS = {
    "NVIDIA_A100_80GB_PCIe": "a100-80gb-pcie",
    "NVIDIA_H100_80GB_HBM3": "h100-80gb",
    "NVIDIA_L4": "l4",
    "Tesla_V100-PCIE-32GB": "v100-32gb-pcie",
    **{f"AMD_Instinct_MI{number}": f"mi{number}" for number in (100, 210, 250)},
}
NEUSIGHT_MODELS = {
    "bert_large": "bert-large-512",
    "gpt2_large": "gpt2-large",
    "gpt3_xl": "gpt3-xl",
    "gpt3_27": "gpt3-2.7b",
    "opt_13": "opt-1.3b",
}
CNN_GPUS = {
    "GTX 1080 Ti": "gtx1080ti",
    "RTX 2080 Ti": "rtx2080ti",
    "RTX 3090": "rtx3090",
    "TITAN RTX": "titanrtx",
    "A100-SXM4-40GB": "a100-40gb",
}
CNN_MODELS = {"resnet18": "resnet18-imagenet", **{name: name for name in ("resnet50", "resnet101", "densenet121", "vgg16")}}
CNN_PRECISIONS = {"float": "fp32", "half": "fp16"}
TIMM = (
    *("efficientnet_b0", "mobilenetv3_large_100", "resnet18", "resnet50", "resnet101", "densenet121", "vgg16", "regnety_032"),
    *("vit_small_patch16_224", "vit_base_patch16_224", "swin_base_patch4_window7_224", "convnext_base"),
)
TIMM_NAMES = {"resnet18": "resnet18-imagenet", "efficientnet_b0": "efficientnet-b0"}

Row = tuple[str, str, str, int, float, str, str]
"""As the columns of measured.csv."""


def read(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file, which may be compressed."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def rows_of_sia(folder: Path) -> Iterator[Row]:
    """Steps of one GPU."""
    for name in ("sia_step_times.csv.gz", "sia_calibration_a100_rtx6000.csv"):
        for row in read(folder / name):
            if row["kind"] == "placements" and row["placement"] == "1" and row["app"] in SIA_MODELS:
                model = SIA_MODELS[row["app"]]
                yield SIA_GPUS[row["gpu"]], *model, int(row["local_bsz"]), float(row["step_time"]), "sia", row["gpu"]


def rows_of_lambda(folder: Path) -> Iterator[Row]:
    """Steps of one GPU at the largest batch."""
    for row in read(folder / "lambda_one_and_two_gpus.csv"):
        found = re.fullmatch(r"(?:(?:LambdaCloud|1cc|Dell|DellTexas|RAIDZ1|SMC)_)?(.*?)(_v1)?", row["system"])
        batch = re.search(r"\d+$", row["batch_argument"] or row["global_batch"])
        if row["gpus"] != "1" or found is None or found[1] not in LAMBDA_GPUS or row["model"] not in LAMBDA_MODELS or batch is None:
            continue
        model, counted = LAMBDA_MODELS[row["model"]]
        seconds = int(batch[0]) * counted / float(row["throughput"])
        source = "lambda-v1" if found[2] else "lambda"
        yield LAMBDA_GPUS[found[1]], model, row["precision"].lower(), int(batch[0]), seconds, source, row["system"]


def rows_of_others(folder: Path) -> Iterator[Row]:
    """Gavel's and NeuSight's steps of one GPU, MPT's of eight and timm's."""
    for row in read(folder / "gavel_throughputs.csv"):
        job = re.fullmatch(r"(.*) \(batch size (\d+)\)", row["job"])
        if row["scale_factor"] == "1" and row["gpu"] in GAVEL_GPUS and job is not None and float(row["steps_per_second"]):
            model, batch = GAVEL_MODELS[job[1]], int(job[2])
            yield GAVEL_GPUS[row["gpu"]], model, "fp32", batch, 1 / float(row["steps_per_second"]), "gavel", row["gpu"]
    for row in read(folder / "neusight_measured.csv"):
        if row["mode"] == "train" and not row["option"] and row["model"] in NEUSIGHT_MODELS:
            model, batch = NEUSIGHT_MODELS[row["model"]], int(row["batch"])
            yield NEUSIGHT_GPUS[row["device"]], model, "fp32", batch, float(row["e2e_ms"]) / 1000, "neusight", row["device"]
    for row in read(folder / "llm_foundry_mpt_training.csv"):
        if row["# GPUs"] == "8" and row["SeqLen (T)"] == "2048" and "bf16" in row["Precision"]:
            gpu, batch = row["GPU"].replace("_", "-"), int(row["MicroBatchSize"])
            yield gpu, f"mpt-{row['Model']}", "amp", batch, 8 * batch / float(row["Throughput (S/s)"]), "mpt", f"8 {row['GPU']}"
    for row in read(folder / "timm_train_rtx3090.csv"):
        if row["model"] in TIMM:
            batch = int(row["train_batch_size"])
            yield "rtx3090", _timm(row["model"]), "amp", batch, batch / float(row["train_samples_per_sec"]), "timm", row["model"]


def rows_of_cnn(folder: Path) -> Iterator[Row]:
    """Steps of torchvision's CNNs on one GPU."""
    for row in read(folder / "cnn_steps.csv"):
        gpu, model, precision = CNN_GPUS.get(row["device"]), CNN_MODELS.get(row["model"]), CNN_PRECISIONS.get(row["precision"])
        if row["gpus"] == "1" and gpu and model and precision:
            yield gpu, model, precision, int(row["batch_per_gpu"]), float(row["median_ms"]) / 1000, "cnn", row["folder"]


def _timm(name: str) -> str:
    return TIMM_NAMES.get(name, name.replace("_", "-"))


def write(folder: Path) -> None:
    """Write measured.csv without rows above the peak of their GPU."""
    shipped = tables.shipped_catalogue()
    rows = sorted({*rows_of_sia(folder), *rows_of_lambda(folder), *rows_of_others(folder), *rows_of_cnn(folder)})
    steps = [tables.MeasuredStep(*row[:4], float(f"{row[4]:.5g}"), *row[5:]) for row in rows]
    with MEASURED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(tables.COLUMNS["measured"])
        for step in steps:
            if shipped.peak_share(step) <= 1:
                writer.writerow(vars(step).values())
            else:
                print(f"left out, above its peak: {step}")


CAUSES = {
    ("cnn", "lambda"): "12 images instead of 100 to 768, and torchvision's model without a loader",
    ("cnn", "lambda-v1"): "12 images instead of 224 to 720, and torchvision's model without a loader",
    ("gavel", "sia"): "the host of sia's V100: 88 ms of each step do not depend on the batch, against 28 ms",
    ("lambda", "lambda"): "a batch of one against 16 to 48; other hosts",
    ("lambda", "lambda-v1"): "an older container, in which Transformer-XL in 16 bit takes up to twice as long on Volta and Turing",
    ("lambda", "sia"): "AdaptDL's loop with Apex O1, whose fixed part is 120 ms, instead of NVIDIA's example",
    ("lambda", "timm"): "channels last in timm",
    ("lambda-v1", "lambda-v1"): "other hosts and clocks of the same GPU; NCF is bound by memory and by the host",
    ("lambda-v1", "sia"): "AdaptDL's loop with Apex O1, whose fixed part is 120 ms, instead of NVIDIA's example",
    ("lambda-v1", "timm"): "channels last in timm",
}
"""Why two sources differ on one chip by more than `ALIKE`."""
ALIKE = 1.25


def series_cells() -> list[list[str]]:
    """The heads, and a row for each pair of series that differs by more than `ALIKE` on a chip, at one batch size and by card factors."""
    catalogue = tables.shipped_catalogue()
    law = estimates.Law(catalogue)
    cards: dict[tuple[str, str, str], dict[tuple[str, str], list[tables.MeasuredStep]]] = {}
    for row in catalogue.rows:
        cards.setdefault((catalogue.gpus[row.gpu].die, *row.series[1:]), {}).setdefault((row.source, row.gpu), []).append(row)
    factors: dict[tuple[str, str, str, str], list[float]] = {}
    for (_, model, precision), of_chip in cards.items():
        for ((source, gpu), rows), ((other, card), others) in itertools.combinations(sorted(of_chip.items()), 2):
            step, like = min(itertools.product(rows, others), key=lambda pair: abs(math.log(pair[0].batch / pair[1].batch)))
            slope = curves.seconds_per_sample(step.batch, step.seconds, law.fixed.seconds(source, model))
            moved = step.seconds + slope * (like.batch - step.batch)
            factor = moved / like.seconds / law.card_factors[gpu] * law.card_factors[card]
            factors.setdefault((source, other, model, precision), []).append(factor)
    cells = [["programs", "model", "precision", "comparisons", "median factor", "range", "cause"]]
    for (source, other, model, precision), found in sorted(factors.items()):
        if max(max(found), 1 / min(found)) > ALIKE:
            extremes = f"{min(found):.2f} to {max(found):.2f}"
            numbers = [str(len(found)), f"{statistics.median(found):.2f}", extremes]
            cells.append([f"{source} / {other}", model, precision, *numbers, CAUSES[source, other]])
    return cells


def card_cells() -> list[list[str]]:
    """The heads, and a row for each card whose seconds differ from those of another card of its chip."""
    catalogue = tables.shipped_catalogue()
    factors = estimates.Law(catalogue).card_factors
    dies = [gpu.die for gpu in catalogue.gpus.values()]
    cards = [[gpu.die, gpu.name, f"{factors[gpu.name]:.2f}"] for gpu in catalogue.gpus.values() if dies.count(gpu.die) > 1]
    return [["chip", "GPU", "seconds, relative to the card of the chip with most rows"], *sorted(cards)]


class Comparison(NamedTuple):
    """A step of one source, and the seconds that the other sources predict."""

    source: str
    gpu: str
    model: str
    precision: str
    batch: int
    seconds: float
    predicted: float
    near: bool
    """Whether the batch is near a measured one, or near the usual one of an estimate's series."""


@cache
def published() -> list[Comparison]:
    """Published steps that are not in the catalogue, compared with it."""
    choice, steps = Choice(tables.shipped_catalogue()), []
    for row in read(Path(__file__).with_name("published_steps.csv")):
        batch, rate = int(row["batch"]), float(row["samples_per_second"])
        steps.append(tables.MeasuredStep(row["gpu"], row["model"], row["precision"], batch, batch / rate, row["source"], row["url"]))
    return [compared(choice, step) for step in steps]


@cache
def left_out_sources() -> list[Comparison]:
    """Each family of sources compared with the catalogue without it, where another family measured the model in this precision."""
    catalogue = tables.shipped_catalogue()
    comparisons = []
    for family in sorted({source.family for source in catalogue.sources.values()}):
        mine = [row for row in catalogue.rows if catalogue.sources[row.source].family == family]
        rest = replace(catalogue, rows=tuple(row for row in catalogue.rows if catalogue.sources[row.source].family != family))
        models = {row.series[1:] for row in rest.rows}
        gpus = {row.gpu for row in rest.rows}
        comparisons += [compared(Choice(rest), row) for row in mine if row.series[1:] in models and row.gpu in gpus]
    return comparisons


def compared(choice: Choice, row: tables.MeasuredStep) -> Comparison:
    """A step compared with a catalogue that does not have it."""
    (known,) = choice.times([row.gpu], row.model, row.precision)
    last = known.largest_measured or choice.law.usual_batch[known.series]
    first = known.table[0][0] if known.num_measured > 1 else last
    near = max(row.batch / last, first / row.batch) <= curves.NEAR
    return Comparison(row.source, row.gpu, *row.series[1:], row.batch, row.seconds, interpolate(known.table, row.batch), near)


def covered(comparisons: Sequence[Comparison]) -> float:
    """The share of comparisons within the interval of their kind. Each source counts once for a GPU, model and precision."""
    groups: dict[tuple[str, ...], list[bool]] = {}
    for step in comparisons:
        least, most = times.NEAR_RANGE if step.near else times.FAR_RANGE
        groups.setdefault(step[:4], []).append(least <= step.seconds / step.predicted <= most)
    return statistics.mean(statistics.mean(group) for group in groups.values())


def source_cells() -> list[list[str]]:
    """The heads, and a row for steps near and far from the measured batch sizes: how other sources differ."""
    comparisons = [*published(), *left_out_sources()]
    cells = [["batch size", "sources × GPUs × models", "range of nine of ten", "interval that is printed", "covered"]]
    for name, near, interval in (("near a measured one", True, times.NEAR_RANGE), ("far from the measured ones", False, times.FAR_RANGE)):
        of_kind = [step for step in comparisons if step.near == near]
        groups: dict[tuple[str, ...], list[float]] = {}
        for step in of_kind:
            groups.setdefault(step[:4], []).append(step.seconds / step.predicted)
        low, high = np.quantile([statistics.geometric_mean(group) for group in groups.values()], [0.05, 0.95])
        cells.append(
            [name, str(len(groups)), f"{low:.2f} to {high:.2f}", f"{interval[0]:g} to {interval[1]:g}", f"{100 * covered(of_kind):.0f} %"]
        )
    return cells


def published_cells() -> list[list[str]]:
    """The heads, and a row for each published step that is not in the catalogue."""
    cells = [["GPU", "model", "precision", "batch", "published samples/s", "said samples/s", "said / published", "source"]]
    urls = {row["source"] + row["gpu"] + row["model"]: row["url"] for row in read(Path(__file__).with_name("published_steps.csv"))}
    for step in published():
        rates = step.batch / step.seconds, step.batch / step.predicted
        link = f"[{step.source}]({urls[step.source + step.gpu + step.model]})"
        cells.append(
            [step.gpu, step.model, step.precision, str(step.batch), *(f"{rate:.4g}" for rate in rates), f"{rates[1] / rates[0]:.2f}", link]
        )
    return cells


def error_cells() -> list[list[str]]:
    """The heads, and the errors of estimates."""
    law = estimates.Law(tables.shipped_catalogue())
    kinds = {
        "a pair of chip and model": [*law.left_out_errors.values()],
        "a card of a chip that the same program measured": law.twin_errors,
        "another batch size, of a model with measured curves": law.fixed.left_out_errors(without_model=False),
        "another batch size, of a model without": law.fixed.left_out_errors(without_model=True),
    }
    cells = [["left out", "number", "median error", "eight of ten are within"]]
    for name, errors in kinds.items():
        cells.append([name, str(len(errors)), *(f"{100 * float(np.quantile(errors, q)):.0f} %" for q in (0.5, estimates.COVERED))])
    return cells


def compare() -> None:
    """Print the errors of estimates and between programs."""
    for cells in (error_cells(), card_cells(), series_cells(), published_cells(), source_cells()):
        print("", *shown.align_columns(cells), sep="\n")
    print(
        f"\n{covered(left_out_sources()):.0%} of left-out sources and {covered(published()):.0%} of published steps are in their interval"
    )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write(Path(sys.argv[1]))
    compare()
