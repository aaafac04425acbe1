"""IDX image sets: small ones in the published layout, damaged ones, downloads, and facts about the real ones."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from mpifl.errors import ConfigError
from mpifl.problems import Data, ProblemConfig, Rows, load
from mpifl.problems.data import DATA, Digits, EmnistLetters, Mnist
from mpifl.problems.data import download as sources
from mpifl.problems.models import Logistic
from mpifl.problems.partitions import NearIid
from tests.problems.conftest import idx_bytes, refusal

IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
Write = Callable[..., Path]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist-letters"])
def test_rows_are_those_of_the_files(image_root: Write, name: str, zipped: bool) -> None:
    letters = name == "emnist-letters"
    root = image_root(name, zipped=zipped, first=int(letters))
    rows = DATA[name]().read(root, False, None)
    images = np.random.default_rng(1).integers(0, 256, (50, 28, 28))
    stored = images.transpose(0, 2, 1) if letters else images
    assert (rows.x == stored.reshape(50, 784)).all() and rows.divisor == 255
    assert rows.y.tolist() == [k % 10 for k in range(50)]  # letters' labels start at 1 in the file
    assert rows.shape == (1, 28, 28) and rows.tokens is None
    assert rows.x_test.shape == (20, 784) and rows.classes == (26 if letters else 10)


def test_numbers_of_numpy_in_a_data_set_of_your_own() -> None:
    """As classes and divisor, of unsigned integers: 51/102 and 102/102; the ranks get the first as JSON."""

    class Pixels(Data):
        def read(self, root: Path, download: bool, clients: int | None) -> Rows:
            x, y = np.array([[51], [102]], np.uint8), np.array([0, 1])
            return Rows(x, y, x[:0], y[:0], classes=y.max() + 1, divisor=x.max())

    config = ProblemConfig(data=Pixels(), clients=1, dtype="float64", model=Logistic())
    problem = load(config)
    assert json.loads(json.dumps(problem.meta))["classes"] == 2
    assert problem.shard(0)[0].tolist() == [[0.5], [1.0]]


DAMAGE: dict[str, Callable[[bytes, bytes], bytes]] = {  # what is made of a file's bytes, and of its content
    "truncated gzip": lambda packed, raw: packed[:-100],
    "wrong checksum": lambda packed, raw: packed[:-8] + b"\0" * 4 + packed[-4:],
    "magic": lambda packed, raw: gzip.compress(b"\1" + raw[1:]),
    "type": lambda packed, raw: gzip.compress(raw[:2] + b"\x0d" + raw[3:]),
    "dimensions": lambda packed, raw: gzip.compress(raw[:3] + b"\7" + raw[4:]),
    "short": lambda packed, raw: gzip.compress(raw[:-1]),
    "long": lambda packed, raw: gzip.compress(raw + b"\0"),
    "empty": lambda packed, raw: b"",
    "header only": lambda packed, raw: raw[:3],
    "huge": lambda packed, raw: gzip.compress(raw[:4] + b"\xff" * 12 + raw[16:]),
}


@pytest.mark.parametrize("file", [IMAGES, LABELS])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_image_and_label_files_are_named(image_root: Write, kind: str, file: str) -> None:
    root = image_root()
    path = root / "mnist" / file
    path.write_bytes(DAMAGE[kind](path.read_bytes(), gzip.decompress(path.read_bytes())))
    with refusal(re.escape(str(path))):
        Mnist().read(root, False, None)


@pytest.mark.parametrize(
    ("file", "array", "text"),
    [
        (LABELS, np.zeros(49), r"it has 49 labels; expected one for each of the 50 images"),
        (LABELS, np.full(50, 10), "labels 0 to 9"),
        (IMAGES, np.zeros((50, 28, 27)), "28 x 28"),
        (IMAGES, np.zeros((0, 28, 28)), "28 x 28"),
    ],
)
def test_wrong_shape_or_label(image_root: Write, file: str, array: np.ndarray, text: str) -> None:
    root = image_root()
    (root / "mnist" / file).write_bytes(gzip.compress(idx_bytes(array)))
    with refusal(text):
        Mnist().read(root, False, None)
    with refusal("labels 1 to 26"):
        EmnistLetters().read(image_root("emnist-letters", first=0), False, None)


def test_root_is_the_environments_unless_given_and_a_missing_file_is_named(
    tmp_path: Path, image_root: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusal(f"data file={tmp_path / 'mnist' / IMAGES}: .*download=true"):
        load(ProblemConfig(data=Mnist(), root=str(tmp_path), clients=2))
    with refusal("data file=~nobody-of-this-name/mnist/"):
        load(ProblemConfig(data=Mnist(), root="~nobody-of-this-name", clients=2))
    monkeypatch.setenv("MPIFL_DATA", str(image_root()))
    assert load(ProblemConfig(data=Mnist(), clients=2)).samples.sum() == 50
    with pytest.raises(ConfigError):
        load(ProblemConfig(data=Mnist(), clients=2, root=str(tmp_path / "other")))
    monkeypatch.delenv("MPIFL_DATA")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert ProblemConfig().settings.folder() == Path("/home/somebody/.cache/mpifl")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}/", folder
        http.shutdown()


def test_downloads_are_kept_only_if_their_checksums_agree(
    image_root: Write, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    addresses = [sources.EMNIST[0], *(address for address, _ in sources.SOURCES.values())]
    assert len(addresses) == 3 and all(address.startswith("https://") for address in addresses)
    checksums = [sources.EMNIST[1], *(each for _, files in sources.SOURCES.values() for each in files.values())]
    assert len(checksums) == 9 and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in checksums)
    address, served = server
    sums = {}
    for path in (image_root() / "mnist").iterdir():
        sums[path.name] = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(served / path.name)
    monkeypatch.setitem(sources.SOURCES, "mnist", (address, sums))
    rows = Mnist().read(tmp_path / "fresh", True, None)
    assert len(rows.x) == 50 and len(list((tmp_path / "fresh" / "mnist").iterdir())) == 4

    monkeypatch.setitem(sources.SOURCES, "mnist", (address, {**sums, LABELS: "sha256:" + "0" * 64}))
    with refusal(LABELS):
        Mnist().read(tmp_path / "other", True, None)
    assert not (tmp_path / "other" / "mnist" / LABELS).exists()
    (served / IMAGES).unlink()
    with refusal("404"):
        Mnist().read(tmp_path / "third", True, None)
    address, served = server
    with zipfile.ZipFile(served / "gzip.zip", "w") as archive:
        for path in (image_root("emnist-letters", first=1) / "emnist-letters").iterdir():
            archive.write(path, f"gzip/{path.name}")
        archive.writestr("gzip/emnist-digits-other.gz", b"not wanted")
    checksum = hashlib.sha256((served / "gzip.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(sources, "EMNIST", (address + "gzip.zip", f"sha256:{checksum}"))
    assert len(EmnistLetters().read(tmp_path / "fresh", True, None).x) == 50
    assert len(list((tmp_path / "fresh" / "emnist-letters").iterdir())) == 4


MNIST_COUNTS = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def read(root: Path, name: str) -> Rows:
    if not (root / name).is_dir():
        pytest.skip(f"no {name} under MPIFL_DATA")
    return DATA[name]().read(root, False, None)


@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "mean", "std"),
    [
        ("mnist", 60000, 10000, 10, 0.1307, 0.3081),
        ("fashion-mnist", 60000, 10000, 10, 0.2860, 0.3530),
        ("emnist-letters", 124800, 20800, 26, 0.1722, 0.3309),
    ],
)
def test_data_sets_have_the_published_sizes_means_and_deviations(
    data_root: Path, name: str, train: int, test: int, classes: int, mean: float, std: float
) -> None:
    rows = read(data_root, name)
    assert rows.x.shape == (train, 784) and rows.x_test.shape == (test, 784) and rows.x.dtype == np.uint8
    assert rows.classes == classes
    assert round(float(rows.x.mean()) / 255, 4) == mean
    assert round(float(rows.x[::5].std()) / 255, 3) == pytest.approx(std, abs=2e-3)
    counts = np.bincount(rows.y, minlength=classes)
    assert counts.tolist() == (MNIST_COUNTS.tolist() if name == "mnist" else [train // classes] * classes)
    if name == "emnist-letters":
        assert np.bincount(rows.y_test).tolist() == [800] * 26
        w = rows.x[rows.y == 22].mean(0).reshape(28, 28)  # a W is its mirror image left to right, not top to bottom
        assert np.corrcoef(w.ravel(), w[:, ::-1].ravel())[0, 1] > 0.7 > np.corrcoef(w.ravel(), w[::-1].ravel())[0, 1]


def test_digits_are_the_images_of_scikit_learn() -> None:
    """The rows are scikit-learn's own 8 x 8 images, shuffled before the split."""
    from sklearn.datasets import load_digits

    rows = Digits().read(Path("nowhere"), False, None)
    assert rows.x.shape == (1497, 64) and rows.x_test.shape == (300, 64) and rows.shape == (1, 8, 8)
    assert rows.x.max() == 16 and rows.divisor == 16
    ours = {row.tobytes() for row in np.concatenate([rows.x, rows.x_test]).reshape(-1, 8, 8)}
    assert ours == {image.astype(np.uint8).tobytes() for image in load_digits().images}
    both = np.bincount(np.concatenate([rows.y, rows.y_test]))
    assert both.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # scikit-learn's count of each digit
    assert np.bincount(rows.y_test, minlength=10).min() > 15


def test_more_clients_than_rows() -> None:
    with refusal(r"problem.clients=1498: there are 1497 training rows; expected at most 1497"):
        load(ProblemConfig(clients=1498))
    with refusal(r"problem.clients=200: client 0 would have no rows; expected fewer clients"):
        load(ProblemConfig(clients=200, partition=NearIid()))
