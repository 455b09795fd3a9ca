"""Build the tables of `hetsim/catalogue/` from published measurements, and compare laws for what nobody measured.

    python benchmarks/catalogue.py FOLDER    rewrites measured.csv; FOLDER contains the sources' files as CSV
    python benchmarks/catalogue.py           prints the leave-one-out errors of four laws, and of lines

Only figures are shipped. Some of Lambda's are left out:

- GNMT, Tacotron2 and WaveGlow, as their throughputs count tokens, frames or audio samples, and no length of a sequence is published;
- Mask R-CNN, and BERT in the older container, as their batch sizes are not published.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from hetsim.catalogue import curves, estimates, tables

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


def _timm(name: str) -> str:
    return TIMM_NAMES.get(name, name.replace("_", "-"))


def write(folder: Path) -> None:
    """Write measured.csv, and append to models.csv the models whose sizes are in the sources' files."""
    rows = sorted({*rows_of_sia(folder), *rows_of_lambda(folder), *rows_of_others(folder)})
    shown = [(*row[:4], f"{row[4]:.5g}", *row[5:]) for row in rows]
    _write(MEASURED, tables.COLUMNS["measured"], shown)
    models = MEASURED.with_name("models.csv")
    aliases = {row["name"]: row["aliases"] for row in read(models)}
    known = [tuple(row.values()) for row in read(models) if not row["parameters_from"].startswith(("PyTorch Image", "LLM"))]
    sizes = {
        f"mpt-{row['Model']}": int(row["NumParams"]) for row in read(folder / "llm_foundry_mpt_training.csv") if row["SeqLen (T)"] == "2048"
    }
    found = {row[1] for row in rows}
    known += [
        (name, name.upper(), aliases.get(name, ""), "a sequence of 2048 tokens", size, "LLM Foundry")
        for name, size in sorted(sizes.items(), key=lambda each: each[1])
        if name in found
    ]
    for row in read(folder / "timm_train_rtx3090.csv"):
        if row["model"] in TIMM and _timm(row["model"]) not in {each[0] for each in known}:
            image = f"an image of {row['train_img_size']} × {row['train_img_size']}"
            name, size = _timm(row["model"]), round(float(row["param_count"]) * 1e6)
            known.append((name, f"{row['model']} of timm", aliases.get(name, ""), image, size, "PyTorch Image Models"))
    _write(models, tables.COLUMNS["models"], known)


def _write(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def compare() -> None:
    """Print the leave-one-out errors of laws."""
    catalogue = tables.shipped_catalogue()
    for name, effects in estimates.LAWS.items():
        errors = list(estimates.Law(catalogue.rows, catalogue.sources, effects).left_out_errors.values())
        median, most = np.quantile(errors, [0.5, estimates.COVERED])
        print(f"{name:30} {len(errors)} pairs, median {median:.1%}, {estimates.COVERED:.0%} within {most:.1%}")
    errors = curves.leave_one_out_errors(catalogue.rows)
    median, most = np.quantile(errors, [0.5, estimates.COVERED])
    print(f"{'other batch sizes, on a line':30} {len(errors)} points, median {median:.1%}, {estimates.COVERED:.0%} within {most:.1%}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write(Path(sys.argv[1]))
    compare()
