"""Names of GPUs and models as people, drivers and other programs write them: each is the card itself, or unknown."""

from __future__ import annotations

import pytest

from hetsim.catalogue.tables import shipped_catalogue
from hetsim.cli.catalogue import answered

GPUS = {
    "t4": ("T4", "Tesla T4", "NVIDIA T4", "tesla-t4", "Tesla_T4"),
    "k80": ("Tesla K80", "NVIDIA Tesla K80"),
    "p100": ("P100-PCIE", "Tesla P100-PCIE-16GB"),
    "v100-16gb": ("v100", "Tesla V100-SXM2-16GB", "V100 16GB"),
    "v100-32gb": ("Tesla V100-SXM2-32GB", "v100 32 GB"),
    "v100-32gb-pcie": ("Tesla V100-PCIE-32GB", "V100 PCIe"),
    "l4": ("NVIDIA L4",),
    "a10": ("NVIDIA A10",),
    "a40": ("NVIDIA A40",),
    "a100-40gb": ("a100", "A100", "NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "a100 sxm"),
    "a100-40gb-pcie": ("NVIDIA A100-PCIE-40GB", "a100 pcie"),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", "a100 80gb", "A100-80", "a100_80g"),
    "a100-80gb-pcie": ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
    "h100-80gb": ("h100", "h100-sxm", "NVIDIA H100 80GB HBM3"),
    "h100-80gb-pcie": ("NVIDIA H100 PCIe",),
    "gtx1080ti": ("1080ti", "1080 Ti", "NVIDIA GeForce GTX 1080 Ti"),
    "rtx2080ti": ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
    "rtx2080-maxq": ("NVIDIA GeForce RTX 2080 with Max-Q Design",),
    "rtx2080super-maxq": ("NVIDIA GeForce RTX 2080 Super with Max-Q Design",),
    "rtx3080": ("NVIDIA GeForce RTX 3080", "rtx 3080 10GB"),
    "rtx3090": ("rtx 3090", "RTX3090", "3090", "3090 24GB"),
    "rtx4090": ("NVIDIA GeForce RTX 4090", "RTX 4090", "rtx-4090", "GeForce RTX 4090"),
    "titanrtx": ("NVIDIA TITAN RTX", "Titan RTX"),
    "rtx6000": ("Quadro RTX 6000", "RTX 6000"),
    "rtx8000": ("Quadro RTX 8000",),
    "rtx6000-ada": ("NVIDIA RTX 6000 Ada Generation", "6000 Ada"),
    "rtx-a4000": ("NVIDIA RTX A4000", "A4000"),
    "rtx-a6000": ("NVIDIA RTX A6000", "RTX A6000"),
    "mi100": ("AMD Instinct MI100",),
}
ANOTHER_CHIP = (
    *("L40S", "NVIDIA L40S", "L40", "3060", "RTX 3060", "b200", "NVIDIA B200", "A30", "NVIDIA A30", "M2 Max", "rtx5090", "RTX 5000 Ada"),
    *("NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A10G", "H200", "GH200"),
    *("RTX 2080", "TITAN Xp", "Quadro P6000", "P40", "A2", "A16", "MI300X", "MI250X", "GTX 1080", "gpu", "t44", "a1000", "MX150", "V1000"),
)
VARIANTS = {
    "Tesla V100-PCIE-16GB": "v100-16gb, v100-32gb, v100-32gb-pcie",
    "NVIDIA A100-SXM-64GB": "a100-40gb, a100-40gb-pcie, a100-80gb, a100-80gb-pcie",
    "RTX 3080 12GB": "rtx3080",
}
MODELS = {
    "resnet50": ("ResNet-50", "resnet_50", "timm/resnet50.a1_in1k", "microsoft/resnet-50"),
    "resnet18-imagenet": ("resnet18",),
    "resnet101": ("microsoft/resnet-101",),
    "vit-base-patch16-224": (
        "vit-base",
        "vit-b-16",
        "vit_b_16",
        "ViT-B/16",
        "google/vit-base-patch16-224",
        "vit_base_patch16_224.augreg_in21k",
    ),
    "vit-small-patch16-224": ("vit_small_patch16_224",),
    "swin-base-patch4-window7-224": ("swin_b", "microsoft/swin-base-patch4-window7-224"),
    "convnext-base": ("convnext_base", "facebook/convnext-base-224"),
    "regnety-032": ("regnety_032", "regnet_y_3_2gf"),
    "mobilenetv3-large-100": ("mobilenet_v3_large", "mobilenetv3_large_100"),
    "efficientnet-b0": ("efficientnet_b0",),
    "densenet121": ("DenseNet-121",),
    "vgg16": ("VGG16", "vgg-16"),
    "bert-base": ("bert-base-uncased", "google-bert/bert-base-uncased"),
    "bert-large": ("bert-large-uncased",),
    "gpt2-large": ("openai-community/gpt2-large", "GPT-2 large"),
    "opt-1.3b": ("facebook/opt-1.3b",),
    "mpt-7b": ("mosaicml/mpt-7b", "MPT 7B"),
}
OTHER_MODELS = (
    "resnet34",
    "resnet152",
    "vit-large",
    "vit_b_32",
    "swin_t",
    "opt-13b",
    "opt-125m",
    "bert-tiny",
    "alexnet",
    "llama-7b",
    "gpt4",
)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in GPUS.items() for text in (name, *texts)])
def test_a_gpu_has_the_name_that_people_write(name: str, text: str) -> None:
    """Drivers' names, series with and without spaces, memory and link in any order and letters of either case."""
    assert shipped_catalogue().gpu(text).name == name


@pytest.mark.parametrize(
    "text", ["a100-40gb-mig-3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "a100_3g.20gb"]
)
def test_a_slice_has_the_name_of_its_gpu_and_profile(text: str) -> None:
    """As nvidia-smi, Kubernetes and SLURM write it. It has half of the memory for three sevenths of the multiprocessors."""
    gpu = shipped_catalogue().gpu(text)

    assert (gpu.name, gpu.part_of, gpu.sevenths, gpu.memory_bytes) == ("a100-40gb-mig-3g.20gb", "a100-40gb", 3, 20e9)
    assert shipped_catalogue().gpu("a100-80gb mig 1g.20gb").memory_bytes == 20e9


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a100-40gb-mig-5g.20gb", "a100-40gb has no MIG slice 5g.20gb: take one of 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"),
        ("t4 MIG 1g.5gb", "t4 has no MIG slices"),
        ("b200-mig-1g.23gb", "'b200' is no GPU of the catalogue"),
    ],
)
def test_another_slice_is_refused(text: str, sentence: str) -> None:
    """With the slices that the GPU has."""
    with pytest.raises(ValueError, match=sentence):
        shipped_catalogue().gpu(text)


@pytest.mark.parametrize("text", ANOTHER_CHIP)
def test_another_chip_is_unknown_and_no_card_is_suggested(text: str) -> None:
    """The sentence has the three numbers that describe it, and no card's name."""
    with pytest.raises(ValueError, match="is no GPU of the catalogue: describe another GPU by seconds_per_sample, max_samples") as caught:
        shipped_catalogue().gpu(text)

    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("text", VARIANTS)
def test_another_memory_or_link_lists_the_cards_of_the_chip(text: str) -> None:
    """And all of them."""
    with pytest.raises(ValueError, match=f"is no GPU of the catalogue, which has {VARIANTS[text]}: describe"):
        shipped_catalogue().gpu(text)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MODELS.items() for text in (name, *texts)])
def test_a_model_has_the_names_of_torchvision_timm_and_the_hub(name: str, text: str) -> None:
    """Separators, owners and tags of weights are no difference."""
    assert shipped_catalogue().model(text).name == name


@pytest.mark.parametrize("text", OTHER_MODELS)
def test_another_size_is_no_hint(text: str) -> None:
    """A ResNet of another depth, a GPT of another size, another family."""
    with pytest.raises(ValueError, match="is no model of the catalogue") as caught:
        shipped_catalogue().model(text)

    assert "did you mean" not in str(caught.value)


def test_a_misspelt_model_has_its_hint() -> None:
    """The same numbers and size, in a family of nearly the same letters. A name that goes on is listed, not suggested."""
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        shipped_catalogue().model("resnt50")
    with pytest.raises(ValueError, match="'gpt2' is no model of the catalogue, which has gpt2-large: "):
        shipped_catalogue().model("gpt2")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("a100 resnet50 bf16", "'bf16' is no GPU, model or precision of the catalogue; did you mean 'amp'?"),
        ("t4 resnt50", "'resnt50' is no model of the catalogue; did you mean 'resnet50'?"),
        ("L40S resnet50", "nothing in the catalogue matches 'L40S'"),
        ("V100-PCIE-16GB resnet50", "'V100-PCIE-16GB' is no GPU of the catalogue, which has v100-16gb"),
        ("a100 resnet50 quadro", "nothing in the catalogue matches a100 resnet50 quadro together: leave out quadro"),
    ],
)
def test_the_wrong_word_is_said(words: str, sentence: str) -> None:
    """Among several."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        [*answered(shipped_catalogue(), words.split())]

    assert sentence in str(caught.value)


@pytest.mark.parametrize("words", ["Tesla T4 resnet50 amp", "NVIDIA T4 ResNet-50", "t4 amp resnet50"])
def test_a_name_may_have_several_words(words: str) -> None:
    """As the driver prints it."""
    assert next(answered(shipped_catalogue(), words.split())).startswith("t4 with resnet50 in amp: measured")
