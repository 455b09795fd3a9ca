"""Data from scikit-learn, NumPy archives and torchvision's files: read as they are, or refused in one sentence."""

from __future__ import annotations

import gzip
import lzma
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import cluster, experiment, node, simulate

from hetsim.workloads.data import digits
from hetsim.workloads.data.digits import Digits
from hetsim.workloads.data.npz import NpzArrays
from hetsim.workloads.data.torchvision import CIFAR10, MNIST, FashionMNIST

ONE_NODE = cluster(node(1e-3))


def made(*shape: int, train: int = 8, test: int = 4, **changes: Any) -> dict[str, Any]:
    """Random arrays of samples of this shape, in three classes."""
    rng = np.random.default_rng(0)
    arrays = {"x_train": rng.random((train, *shape), dtype=np.float32), "x_test": rng.random((test, *shape), dtype=np.float32)}
    labels = {"y_train": np.arange(train) % 3, "y_test": np.arange(test) % 3}
    return {**arrays, **labels, **changes}


def saved(folder: Path, arrays: dict[str, Any], name: str = "some.npz") -> Path:
    """A NumPy archive of them."""
    path = folder / name
    np.savez(path.with_name("some.npz"), **arrays)
    if path.suffix == ".xz":
        path.write_bytes(lzma.compress(path.with_name("some.npz").read_bytes()))
    return path


# Digits


def test_the_digits_have_one_fixed_shuffled_split():
    """1437 to train on and 360 to test on, all ten classes in both, the same whatever the seed."""
    tasks = [experiment("workload=digits", seed=seed).load()[0] for seed in (0, 1)]

    arrays = Digits(model="mlp").read()
    assert [len(part) for part in arrays] == [1437, 1437, 360, 360]
    assert set(arrays.y_train) == set(arrays.y_test) == set(range(10))
    assert arrays.y_train[:10].tolist() != sorted(arrays.y_train[:10])
    assert all(
        torch.equal(getattr(tasks[0], name).data, getattr(tasks[1], name).data) for name in ("_x_train", "_y_train", "_x_test", "_y_test")
    )


def test_the_split_is_a_partition_of_what_scikit_learn_carries():
    """Every image once, with its own label."""
    from sklearn.datasets import load_digits

    arrays, bunch = Digits(model="mlp").read(), load_digits()

    ours = sorted((x.tobytes(), int(y)) for x, y in zip([*arrays.x_train, *arrays.x_test], [*arrays.y_train, *arrays.y_test], strict=True))
    theirs = sorted((x.astype(np.float32).tobytes(), int(y)) for x, y in zip(bunch.images, bunch.target, strict=True))
    assert ours == theirs


def test_digits_are_the_same_where_scikit_learn_has_to_find_them(monkeypatch: pytest.MonkeyPatch):
    """The file is read without the library, as long as it lies where it does."""
    arrays = Digits(model="mlp").read()
    monkeypatch.setattr(digits, "find_spec", lambda _: None)

    again = Digits(model="mlp").read()

    assert all(np.array_equal(*both) and both[0].dtype == both[1].dtype for both in zip(arrays, again, strict=True))


# Arrays


@pytest.mark.parametrize("name", ["some.npz", "some.npz.xz"])
def test_an_archive_is_read_packed_or_not(tmp_path: Path, name: str):
    """The same four arrays."""
    arrays = made(5)

    read = NpzArrays(path=str(saved(tmp_path, arrays, name)), model="mlp").read()

    assert [part.tolist() for part in read] == [arrays[part].tolist() for part in ("x_train", "y_train", "x_test", "y_test")]


@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [((5,), (5,)), ((6, 7), (1, 6, 7)), ((6, 7, 3), (3, 6, 7)), ((6, 7, 1), (1, 6, 7))],
    ids=["features", "grey", "colour", "grey with a channel"],
)
def test_images_become_channels_first(tmp_path: Path, shape: tuple[int, ...], channels_first: tuple[int, ...]):
    """n x features, n x height x width and n x height x width x channels."""
    arrays = made(*shape)

    read = NpzArrays(path=str(saved(tmp_path, arrays)), model="mlp").read()

    assert (read.x_train.shape, read.x_test.shape) == ((8, *channels_first), (4, *channels_first))
    assert read.x_train[1].ravel().tolist() == np.moveaxis(arrays["x_train"][1].reshape(*shape[:2], -1), -1, 0).ravel().tolist()


def test_bytes_stay_bytes_and_a_column_of_labels_is_a_row(tmp_path: Path):
    """As CIFAR's archives have them; other numbers become floats."""
    images = np.arange(8 * 4 * 4 * 3).reshape(8, 4, 4, 3) % 256
    arrays = made(x_train=images.astype(np.uint8), x_test=images[:4].astype(np.int64), y_train=np.arange(8, dtype=np.uint8)[:, None])

    read = NpzArrays(path=str(saved(tmp_path, arrays)), model="mlp").read()

    assert (read.x_train.dtype, read.x_test.dtype, read.y_train.dtype) == (np.uint8, np.float32, np.int64)
    assert read.y_train.tolist() == list(range(8))


def test_inputs_are_standardised_by_channel_with_the_training_sets_numbers(tmp_path: Path):
    """Mean zero and deviation one in every channel of the training set; the test set by the same numbers; a constant channel is zero."""
    arrays = made(4, 4, 3, train=40)
    arrays["x_train"] = arrays["x_train"] * [1.0, 50.0, 0.0] + [0.0, 7.0, 3.0]
    arrays["x_test"] = arrays["x_train"][:4] + 1.0
    path = saved(tmp_path, arrays)

    task = experiment("workload=arrays", workload={"path": str(path)}, dtype="float64").load()[0]

    seen: list[np.ndarray] = []
    task.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].numpy().copy()))
    task.evaluate(task.initial())
    train, test = seen
    assert np.abs(train.mean((0, 2, 3))).max() < 1e-6
    assert train.std((0, 2, 3)) == pytest.approx([1, 1, 0], abs=1e-6)
    assert (test - train[:4])[:, 2] == pytest.approx(1.0, abs=1e-5)


def spoilt(path: Path) -> None:
    """Its first member's data are no deflate stream."""
    np.savez_compressed(path, **made(5))
    packed = bytearray(path.read_bytes())
    packed[30 + packed[26] + packed[28]] = 0xFF
    path.write_bytes(packed)


def marked(local: int, central: int, value: int) -> Callable[[Path], None]:
    """One byte in every header of the zip has this value."""

    def write(path: Path) -> None:
        np.savez(path, **made(5))
        packed = bytearray(path.read_bytes())
        for signature, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
            start = packed.find(signature)
            while start >= 0:
                packed[start + offset] = value
                start = packed.find(signature, start + 1)
        path.write_bytes(packed)

    return write


def cut(path: Path) -> None:
    """The last part of the file is missing."""
    np.savez(path, **made(5))
    path.write_bytes(path.read_bytes()[:-100])


MALFORMED: dict[str, Callable[[Path], Any]] = {
    "no archive": lambda path: path.write_text("x_train"),
    "an empty file": lambda path: path.write_bytes(b""),
    "one array": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (), }"),
    "truncated": cut,
    "damaged": spoilt,
    "packed in a way that zipfile does not know": marked(8, 10, 99),
    "encrypted": marked(6, 8, 1),
    "pickled": lambda path: np.savez(path, **made(5, y_train=np.array([{}] * 8, dtype=object))),
    "an array missing": lambda path: np.savez(path, **{name: x for name, x in made(5).items() if name != "y_test"}),
    "labels that are no numbers": lambda path: np.savez(path, **made(5, y_train=np.array(["a"] * 8))),
    "labels that are not whole": lambda path: np.savez(path, **made(5, y_train=np.arange(8) / 2)),
    "negative labels": lambda path: np.savez(path, **made(5, y_test=np.arange(4) - 1)),
    "one-hot labels": lambda path: np.savez(path, **made(5, y_train=np.eye(8, dtype=int))),
    "too few labels": lambda path: np.savez(path, **made(5, y_train=np.arange(7))),
    "too many dimensions": lambda path: np.savez(path, **made(2, 2, 2, 2)),
    "too few dimensions": lambda path: np.savez(path, **made()),
    "no samples": lambda path: np.savez(path, **made(5, train=0)),
    "no test samples": lambda path: np.savez(path, **made(5, test=0)),
    "samples of two shapes": lambda path: np.savez(path, **made(5, x_test=np.zeros((4, 6)))),
    "samples of no size": lambda path: np.savez(path, **made(0)),
    "not a number": lambda path: np.savez(path, **made(5, x_test=np.full((4, 5), np.nan))),
    "infinity": lambda path: np.savez(path, **made(5, x_train=np.full((8, 5), np.inf))),
    "beyond float32": lambda path: np.savez(path, **made(5, x_train=np.full((8, 5), 1e300))),
    "inputs that are no numbers": lambda path: np.savez(path, **made(5, x_train=np.full((8, 5), "a"))),
}


@pytest.mark.parametrize("write", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_archive_is_refused_in_one_sentence(tmp_path: Path, write: Callable[[Path], Any]):
    """A ValueError of one line that names the key and the path."""
    path = tmp_path / "bad.npz"
    write(path)

    with pytest.raises(ValueError, match=r"^workload\.path=") as error:
        experiment("workload=arrays", workload={"path": str(path)}).load()
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_xz_is_refused_in_one_sentence(tmp_path: Path):
    """Also when the damage is in the outer packing."""
    path = saved(tmp_path, made(5), "some.npz.xz")
    path.write_bytes(path.read_bytes()[:-50])

    with pytest.raises(ValueError, match=rf"^workload\.path={path} cannot be read"):
        NpzArrays(path=str(path), model="mlp").read()


@pytest.mark.parametrize("path", ["nowhere.npz", "."])
def test_a_missing_archive_is_refused_before_anything_is_loaded(path: str):
    """As the experiment is built."""
    with pytest.raises(ValueError, match=r"^workload\.path=.* is not a file: give the \.npz"):
        experiment("workload=arrays", workload={"path": path})


def test_a_users_own_arrays_can_be_trained_on(tmp_path: Path):
    """Two separable classes: the loss falls and all test samples come out right."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = rng.standard_normal((200, 3)) + 6.0 * y[:, None]
    np.savez(tmp_path / "own.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])

    keys: dict[str, Any] = {"cluster": ONE_NODE, "batch_size": 30, "budget": {"epochs": 5}}
    run = simulate(experiment("method=ssgd", "workload=arrays", workload={"path": str(tmp_path / "own.npz")}, **keys))

    first, *_, last = (point.evaluation for point in run.simulation.curve.points)
    assert last.train_loss < first.train_loss / 5
    assert last.test_accuracy == 1.0


# torchvision's data sets


def idx(array: np.ndarray[Any, Any]) -> bytes:
    """Bytes in LeCun's format: magic number, sizes, values."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def fake_idx(root: Path, folder: str = "MNIST") -> dict[str, np.ndarray[Any, Any]]:
    """Twelve images of 28 x 28 to train on and five to test on, as torchvision would find them."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (12, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(12) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (5, 28, 28)),
        "t10k-labels-idx1-ubyte": np.arange(5),
    }
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for name, array in arrays.items():
        (raw / name).write_bytes(idx(array))
    return arrays


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_is_read_from_its_own_files(tmp_path: Path, name: str, folder: str):
    """Images with one channel, bytes as they are, and their labels; and they can be trained on."""
    arrays = fake_idx(tmp_path, folder)
    found = experiment(f"workload={name}", data_root=str(tmp_path), cluster=ONE_NODE, batch_size=4, budget={"updates": 1})

    read = found.workload.read()
    run = simulate(found)

    assert read.x_train[:, 0].tolist() == arrays["train-images-idx3-ubyte"].tolist()
    assert read.x_test[:, 0].tolist() == arrays["t10k-images-idx3-ubyte"].tolist()
    assert (read.y_train.tolist(), read.y_test.tolist()) == ([*range(10), 0, 1], list(range(5)))
    assert run.states[-1].num_samples == 4


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_missing_files_are_one_sentence_before_anything_is_loaded(tmp_path: Path, name: str):
    """It names the workload, the file, and both ways to mend it."""
    with pytest.raises(
        ValueError, match=rf"^workload={name} needs {tmp_path}/\S+, which is missing: point data_root .* or add download=true$"
    ):
        experiment(f"workload={name}", data_root=str(tmp_path))


def pack(root: Path, *names: str, folder: str = "MNIST") -> None:
    """Leave these files as they are shipped, or all of them."""
    for path in (root / folder / "raw").iterdir():
        if path.name in names or not names:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_is_read_as_it_is_shipped(tmp_path: Path, name: str, folder: str):
    """Packed by gzip, also where some of the files are unpacked already; nothing is written beside them."""
    fake_idx(tmp_path / "unpacked", folder)
    whole = experiment(f"workload={name}", data_root=str(tmp_path / "unpacked")).workload.read()
    for packed in ((), ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte")):
        root = tmp_path / f"packed {len(packed)}"
        fake_idx(root, folder)
        pack(root, *packed, folder=folder)
        before = sorted(root.rglob("*"))

        read = experiment(f"workload={name}", data_root=str(root)).workload.read()

        assert [part.tolist() for part in read] == [part.tolist() for part in whole]
        assert sorted(root.rglob("*")) == before


def bomb(shape: tuple[int, ...]) -> bytes:
    """A packed file that claims to hold so many images, and holds a few zeros."""
    return gzip.compress(struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape) + bytes(1000))


DAMAGED: dict[str, tuple[bytes, str]] = {
    # what is there in the place of the packed training images: what the sentence says
    "no gzip": (idx(np.zeros((12, 28, 28))), "is damaged (Not a gzipped file"),
    "cut off": (gzip.compress(bytes(range(256)) * 10)[:-20], "holds no bytes in 3 dimensions in the IDX format"),
    "cut off within the images": (
        gzip.compress(idx(np.random.default_rng(0).integers(0, 256, (12, 28, 28))))[:-200],
        "is damaged (Compressed",
    ),
    "empty": (b"", "is damaged (unpack requires a buffer of 4 bytes)"),
    "labels": (gzip.compress(idx(np.zeros(12))), "holds no bytes in 3 dimensions in the IDX format"),
    "another type": (gzip.compress(struct.pack(">4I", 0xD03, 1, 1, 1) + bytes(4)), "holds no bytes in 3 dimensions in the IDX format"),
    "too few images": (bomb((12, 28, 28)), "is damaged (it has 1000 of the 9408 bytes that it claims to hold)"),
    "too many bytes": (bomb((1, 10, 10)), "is damaged (it has more of the 100 bytes that it claims to hold)"),
    "a bomb": (bomb((2**31, 28, 28)), "claim to hold 1683.6 GB, as no real data do: if they are real, gunzip "),
    "beyond 64 bits": (bomb((2**32 - 1, 2**32 - 1, 2**32 - 1)), "as no real data do"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_packed_file_is_one_sentence(tmp_path: Path, what: str):
    """Before memory is taken for what it claims to hold."""
    fake_idx(tmp_path)
    pack(tmp_path)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    contents, sentence = DAMAGED[what]
    path.write_bytes(contents)

    with pytest.raises(ValueError, match=rf"^workload=mnist cannot be read from data_root={tmp_path}: ") as error:
        MNIST(data_root=str(tmp_path), model="lenet").read()
    assert f"{path}" in str(error.value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("length", [0, 3, 12, -1])
def test_a_truncated_file_is_one_sentence(tmp_path: Path, file: str, length: int):
    """Whether its header is cut or its values."""
    fake_idx(tmp_path)
    path = tmp_path / "MNIST/raw" / file
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(ValueError, match=rf"^workload=mnist .*data_root={tmp_path}") as error:
        MNIST(data_root=str(tmp_path), model="lenet").read()
    assert "\n" not in str(error.value)


def test_as_many_labels_as_images(tmp_path: Path):
    """A labels file of another set is refused."""
    fake_idx(tmp_path)
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(np.arange(11)))

    with pytest.raises(ValueError, match=r"has 12 images and 11 labels"):
        MNIST(data_root=str(tmp_path), model="lenet").read()


def test_damaged_cifar_is_one_sentence(tmp_path: Path):
    """All files are there, and none is what it should be."""
    for file in CIFAR10.files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"not a pickle")

    with pytest.raises(ValueError, match=rf"^workload=cifar10 cannot be read from data_root={tmp_path}: ") as error:
        CIFAR10(data_root=str(tmp_path), model="lenet").read()
    assert "\n" not in str(error.value)


def test_a_folder_of_ones_home_is_what_torchvision_takes_it_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Checked and read are the same files, whatever lies in a folder that is called ~ here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    fake_idx(tmp_path / "home" / "data")
    fake_idx(tmp_path / "~" / "data")
    (tmp_path / "home" / "data" / "MNIST" / "processed").mkdir()

    with pytest.raises(ValueError, match=rf"^{tmp_path}/home/data/MNIST/processed is of an old torchvision"):
        MNIST(data_root="~/data", model="lenet").read()


class Evil:
    """Its pickle runs a shell command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_of_cifar_holds_arrays_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever its sum was when it was checked: the file may be another one by the time it is read."""
    import torchvision.datasets.cifar

    arrays = {"data": np.zeros((3, 3072), np.uint8), "labels": [0, 1, 2], "label_names": ["a"]}
    for file in CIFAR10.files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(pickle.dumps(arrays, protocol=2))
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *_: True)
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "_check_integrity", lambda _: True)
    good = CIFAR10(data_root=str(tmp_path), model="lenet")
    assert good.read().x_train.shape == (15, 3, 32, 32)

    (tmp_path / CIFAR10.files[-1]).write_bytes(pickle.dumps({**arrays, "data": Evil(tmp_path / "mark")}))
    with pytest.raises(ValueError, match=r"a file holds \w+\.system, and should hold arrays only"):
        good.read()
    assert not (tmp_path / "mark").exists()


def test_tensors_of_an_old_torchvision_are_not_read(tmp_path: Path):
    """torchvision would take them in the place of the data."""
    fake_idx(tmp_path)
    (tmp_path / "MNIST/processed").mkdir()

    with pytest.raises(ValueError, match=rf"^{tmp_path}/MNIST/processed is of an old torchvision, and would be read instead of"):
        experiment("workload=mnist", data_root=str(tmp_path))


@pytest.mark.parametrize("link", ["MNIST", "MNIST/raw/train-labels-idx1-ubyte", "cifar-10-python.tar.gz", "cifar-10-batches-py"])
def test_a_download_writes_through_no_link(link: str, tmp_path: Path):
    """Somebody else may have put it there."""
    data_set = MNIST if "MNIST" in link else CIFAR10
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "precious")

    with pytest.raises(ValueError, match=rf"^{tmp_path / link} is a link, which a download would write through"):
        data_set(data_root=str(tmp_path), model="lenet", download=True).read()


@pytest.mark.parametrize("data_set", [MNIST, CIFAR10])
def test_a_download_that_fails_leaves_nothing(data_set: type[MNIST], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No empty folders."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    with pytest.raises(ValueError, match="cannot be read from data_root="):
        data_set(data_root=str(tmp_path / "a" / "b"), model="lenet", download=True).read()
    assert not (tmp_path / "a").exists()


def test_each_data_set_reads_its_own_folder():
    """Fashion-MNIST has MNIST's file names in another folder."""
    assert {Path(file).parts[0] for file in MNIST.files} == {"MNIST"}
    assert {Path(file).parts[0] for file in FashionMNIST.files} == {"FashionMNIST"}
