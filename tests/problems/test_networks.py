"""The torch networks: scores against NumPy and torchvision, what norms average over, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy.signal import correlate2d

from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader
from mpifl.errors import ConfigError
from mpifl.problems.inits import Uniform
from mpifl.problems.models import networks
from mpifl.problems.models.networks import CharLstm, Cnn, Lstm, Resnet, TorchLogistic, TorchMlp, Vgg11
from tests.problems.conftest import refusal
from tests.tiers import long

torch = pytest.importorskip("torch")

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
IMAGES = [Cnn(hidden=32), Resnet(), Resnet(depth=32, norm="batch"), Resnet(norm="none"), Resnet(depth=18),
          Resnet(depth=50), Vgg11(), Vgg11(norm="none", hidden=(24,)), Vgg11(norm="batch")]  # fmt: skip
FLAT = [TorchLogistic(bias=True), TorchMlp(hidden=(9, 7))]
# Parameters of the eight convolutions of configuration A, with a factor and a shift a channel from the norm.
PAIRS = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
VGG = sum(9 * a * b + 2 * b for a, b in PAIRS)
TEXT = [CharLstm(hidden=16), Lstm(embedding=12, hidden=10, dense=6)]


def shown(model: Any) -> str:
    return "-".join(str(getattr(model, key)) for key in ("name", "depth", "norm", "hidden") if hasattr(model, key))


def built(model: Any, shape: tuple[int, ...], classes: int = 10, vocabulary: int = 0) -> Any:
    torch.manual_seed(5)
    return model.build(shape, classes, vocabulary).double()


def pictures(shape: tuple[int, ...], rows: int = 3) -> Any:
    return torch.from_numpy(np.random.default_rng(2).random((rows, *shape)))


def words(vocabulary: int, window: int, rows: int = 3) -> Any:
    return torch.from_numpy(np.random.default_rng(3).integers(0, vocabulary, (rows, window)))


# -- scores ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [long(MNIST), long(CIFAR), long((2, 8, 8)), (1, 9, 13)])
@pytest.mark.parametrize("model", [*IMAGES, *FLAT], ids=shown)
def test_scores_of_images(model: Any, shape: tuple[int, ...]) -> None:
    scores = built(model, shape, 7)(pictures(shape))
    assert scores.shape == (3, 7) and bool(torch.isfinite(scores).all())
    assert len({round(score, 12) for score in scores.flatten().tolist()}) == 21  # they depend on the row and the class


def test_logistic_and_mlp_by_formula() -> None:
    rng = np.random.default_rng(0)
    x, (w, b) = rng.random((4, 1, 3, 5)), (rng.standard_normal((15, 6)), rng.standard_normal(6))
    module = built(TorchLogistic(bias=True), (1, 3, 5), 6)
    assert [(name, tuple(part.shape)) for name, part in module.named_parameters()] == [("W", (15, 6)), ("b", (6,))]
    flat = np.concatenate([w.ravel(), b])
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat), module.parameters())
    found = module(torch.from_numpy(x)).detach().numpy()
    assert found == pytest.approx(x.reshape(4, 15) @ w + b, rel=1e-14)
    assert [name for name, _ in built(TorchLogistic(), (15,)).named_parameters()] == ["W"]
    assert TorchLogistic().init == Uniform(half_width=0.5)  # as `logistic` begins
    module, x = built(TorchMlp(hidden=(5, 4)), (6,), 3), pictures((6,))
    w1, b1, w2, b2, w3, b3 = (part.detach().numpy() for part in module.parameters())
    first = np.maximum(x.numpy() @ w1.T + b1, 0)
    expected = np.maximum(first @ w2.T + b2, 0) @ w3.T + b3
    assert module(x).detach().numpy() == pytest.approx(expected, rel=1e-13)


def lstm_by_formula(state: dict[str, np.ndarray], x: np.ndarray, layers: int) -> np.ndarray:
    """The top layer's last output: with gates i, f, g, o, c = f c + i g and h = o tanh(c) (Hochreiter & Schmidhuber
    with forget gates)."""
    steps = list(state["embedding.weight"][x].swapaxes(0, 1))
    for k in range(layers):
        hidden = state[f"lstm.weight_hh_l{k}"].shape[1]
        h = c = np.zeros((len(x), hidden))
        for t, step in enumerate(steps):
            sums = step @ state[f"lstm.weight_ih_l{k}"].T + h @ state[f"lstm.weight_hh_l{k}"].T
            sums += state[f"lstm.bias_ih_l{k}"] + state[f"lstm.bias_hh_l{k}"]
            i, f, g, o = np.split(sums, 4, axis=1)
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = np.tanh(c) / (1 + np.exp(-o))
            steps[t] = h
    return steps[-1]


def test_lstms_by_formula() -> None:
    x = words(9, 5)
    for model in TEXT:
        module = built(model, (5,), 4, 9)
        state = {name: part.detach().numpy() for name, part in module.named_parameters()}
        last = lstm_by_formula(state, x.numpy(), 2)
        for head in ("head", "head.0", "head.1"):
            if f"{head}.weight" in state:
                last = last @ state[f"{head}.weight"].T + state[f"{head}.bias"]
        assert module(x).detach().numpy() == pytest.approx(last, rel=1e-12)


def test_two_classes_are_one_logit_and_padding_is_not_learnt() -> None:
    """The scores (0, z), whose cross entropy is log(1 + exp(-z)) for label 1 and log(1 + exp(z)) for label 0."""
    scores = built(TEXT[1], (6,), 2, 11)(words(11, 6))
    z = scores[:, 1].detach().numpy()
    assert (scores[:, 0] == 0).all() and len(set(z)) == 3
    for label, sign in ((1, -1), (0, 1)):
        found = torch.nn.functional.cross_entropy(scores, torch.full((3,), label), reduction="none")
        assert found.detach().numpy() == pytest.approx(np.log1p(np.exp(sign * z)), rel=1e-12)
    module, x = built(TEXT[1], (6,), 2, 11), words(11, 6)
    x[:, 2] = 0
    module(x)[:, 1].sum().backward()
    used = set(x.flatten().tolist())
    norms = module.embedding.weight.grad.norm(dim=1)
    assert {k for k in range(11) if norms[k] > 0} == used - {0}
    assert not module.embedding.weight[0].any()


@pytest.mark.parametrize("model", TEXT, ids=shown)
def test_lstm_under_autocast(model: Any) -> None:
    """Only its dense layers are in bfloat16, whose numbers have 8 bits; gradients are float32."""
    module, x = built(model, (6,), 2, 11).float(), words(11, 6)
    with torch.autocast("cpu", torch.bfloat16):
        scores = module(x)
    assert scores.dtype == torch.bfloat16
    assert torch.allclose(scores.float(), module(x), atol=0.02)
    scores.float().sum().backward()
    assert {part.grad.dtype for part in module.parameters()} == {torch.float32}


def filled(module: Any) -> Any:
    """Parameters by a formula: cos(k^2 mod 1009) at place k of the flat vector, scaled as He's law for weights, and
    1 + cos/10 for biases and norms."""
    k = 0
    for part in module.parameters():
        place = torch.arange(k, k := k + part.numel(), dtype=torch.float64)
        values = torch.cos(place**2 % 1009).reshape(part.shape)
        part.data = values * (2 / part[0].numel()) ** 0.5 if part.ndim > 1 else 1 + values / 10
    return module


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        long(Resnet(depth=18), [-3.044144125071371, 2.9576895937187766, -1.4798553686063303]),
        (Resnet(depth=18, norm="batch"), [-1.7892179029139779, 2.360288018872189, -2.619403650038058]),
        long(Resnet(depth=34), [-3.104139891519678, 3.436572083964548, -3.7084420653761114]),
        (Resnet(depth=50), [-0.6059409706384744, -0.07228802123129285, -1.5398096894105362]),
        long(Resnet(depth=50, norm="batch"), [-0.5971594623434047, -1.0453627873122324, -1.4176074474210352]),
        (Vgg11(norm="none"), [-0.023129542556433402, 1.2827600299625614, -0.028657283593798044]),
    ],
    ids=shown,
)
def test_scores_of_torchvision(model: Any, expected: list[float]) -> None:
    """What torchvision 0.28 gives for the first of two rows: its resnet18, resnet34, resnet50 with a 3 x 3 stem without
    pooling, with GroupNorm(8, channels) or BatchNorm2d; and the convolutions of its vgg11 with a dense layer."""
    x = torch.sin(torch.arange(2 * 3 * 32 * 32, dtype=torch.float64)).reshape(2, *CIFAR)
    with torch.no_grad():
        assert filled(built(model, CIFAR))(x)[0, :3].tolist() == pytest.approx(expected, rel=1e-9)


def test_cnn_by_formula() -> None:
    module, x = built(Cnn(channels=(2, 3), hidden=4), (2, 9, 8)), pictures((2, 9, 8))
    k1, c1, k2, c2, w1, b1, w2, b2 = (part.detach().numpy() for part in module.parameters())
    maps = x.numpy()
    for kernels, bias in ((k1, c1), (k2, c2)):
        sums = [[sum(map(correlated, row, kernel)) for kernel in kernels] for row in maps]
        maps = np.maximum(np.array(sums) + bias[:, None, None], 0)
        height, width = (side // 2 for side in maps.shape[2:])
        cells = maps[:, :, : 2 * height, : 2 * width].reshape(*maps.shape[:2], height, 2, width, 2)
        maps = cells.max((3, 5))
    expected = np.maximum(maps.reshape(3, -1) @ w1.T + b1, 0) @ w2.T + b2
    assert module(x).detach().numpy() == pytest.approx(expected, rel=1e-12)


def correlated(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return correlate2d(image, kernel, mode="same")


def test_images_smaller_than_vgg_get_zeros_around_them() -> None:
    x, found = pictures((1, 28, 20)), built(Vgg11(), (1, 28, 20))
    around = torch.zeros(3, 1, 32, 32, dtype=torch.float64)
    around[:, :, 2:30, 6:26] = x
    assert torch.equal(found(x), built(Vgg11(), (1, 32, 32))(around))


def test_shortcuts_of_option_a() -> None:
    """With all convolutions zero a network without norms is its stem, every fourth pixel, and 48 zero channels."""
    module, x = built(Resnet(norm="none"), (1, 9, 8)), pictures((1, 9, 8))
    stem, last = module[0], module[-1]
    for name, part in module.named_parameters():
        if ".body." in name:
            torch.nn.init.zeros_(part)
    features = torch.relu(stem(x))[:, :, ::4, ::4].mean((2, 3))
    expected = features @ last.weight[:, :16].T + last.bias
    assert torch.allclose(module(x), expected, rtol=1e-12)


# -- norms -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", [*networks.SMALL_BLOCKS, *networks.WIDE_BLOCKS])
def test_batch_norm_trains_on_one_row_of_the_smallest_image(depth: int) -> None:
    """PyTorch refuses batch norm of a single value a channel."""
    side = 8 if depth in networks.SMALL_BLOCKS else 9
    module = built(Resnet(depth=depth, norm="batch"), (1, side, side)).train()
    assert module(pictures((1, side, side), 1)).shape == (1, 10)


@pytest.mark.parametrize("model", [*IMAGES, *FLAT, *TEXT], ids=shown)
def test_buffers_are_floats_besides_the_count_of_batches(model: Any) -> None:
    module = built(model, (6,), 2, 11) if model in TEXT else built(model, MNIST)
    integers = {name for name, part in module.state_dict().items() if not part.is_floating_point()}
    batches = {name for name in module.state_dict() if name.endswith("num_batches_tracked")}
    assert integers == batches
    assert bool(batches) == (getattr(model, "norm", "") == "batch")
    assert all(part.requires_grad for part in module.parameters())


# -- numbers of parameters, against formulas and published counts ------------------------------------------------------
def size(model: Any, shape: tuple[int, ...], classes: int = 10, vocabulary: int = 0) -> int:
    with torch.device("meta"):  # shapes without memory
        return sum(part.numel() for part in model.build(shape, classes, vocabulary).parameters())


def lstm_size(inputs: int, hidden: int) -> int:
    """Two layers of four gates, each with weights for what comes in and for the state, and two biases."""
    return sum(4 * hidden * (rows + hidden + 2) for rows in (inputs, hidden))


@pytest.mark.parametrize(
    ("model", "shape", "classes", "vocabulary", "expected"),
    [
        (TorchMlp(hidden=(128,)), (784,), 26, 0, 785 * 128 + 129 * 26),  # FedDR's
        # FEMNIST: 28 x 28 is pooled twice to 7 x 7
        (Cnn(), MNIST, 62, 0, 32 * (25 + 1) + 64 * (32 * 25 + 1) + 2048 * (64 * 7 * 7 + 1) + 62 * (2048 + 1)),
        (CharLstm(), (80,), 80, 80, 80 * 8 + lstm_size(8, 256) + 80 * (256 + 1)),  # Shakespeare
        (Lstm(), (25,), 2, 1000, 1000 * 300 + lstm_size(300, 100) + 30 * (100 + 1) + 1 * (30 + 1)),  # Sent140
        (Lstm(), (25,), 3, 1000, 1000 * 300 + lstm_size(300, 100) + 30 * (100 + 1) + 3 * (30 + 1)),
        # torchvision's counts for 1000 classes, with a 3 x 3 stem of 3 channels for one of 7 x 7, and 10 classes
        (Resnet(depth=34), CIFAR, 10, 0, 21_797_672 - 3 * 64 * (49 - 9) - 990 * (512 + 1)),
        (Resnet(depth=50), CIFAR, 10, 0, 25_557_032 - 3 * 64 * (49 - 9) - 990 * (2048 + 1)),
        (Vgg11(norm="batch"), CIFAR, 10, 0, VGG + 513 * 10),
        (Vgg11(hidden=(20,)), CIFAR, 10, 0, VGG + 513 * 20 + 21 * 10),
    ],
    ids=lambda value: shown(value) if hasattr(value, "name") else None,
)  # fmt: skip
def test_networks_have_the_expected_numbers_of_parameters(
    model: Any, shape: tuple[int, ...], classes: int, vocabulary: int, expected: int
) -> None:
    assert size(model, shape, classes, vocabulary) == expected


def small_resnet(n: int, channels: int = 3, classes: int = 10, of_norm: int = 2) -> int:
    """He et al. section 4.2: a stem and 3 x 2n convolutions, of which the first of a stage is from half the channels;
    `of_norm` parameters a channel."""
    convolutions = 9 * channels * 16
    for width, before in ((16, 16), (32, 16), (64, 32)):
        convolutions += 9 * (before * width + (2 * n - 1) * width**2)
    return convolutions + of_norm * (16 + 2 * n * (16 + 32 + 64)) + (64 + 1) * classes


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_size_of_small_resnets(depth: int, millions: float) -> None:
    """He et al., arXiv 1512.03385, table 6; option A has no parameters in its shortcuts."""
    found = size(Resnet(depth=depth), CIFAR)
    assert round(found / 1e6, 2) == millions
    assert found == small_resnet((depth - 2) // 6) == size(Resnet(depth=depth, norm="batch"), CIFAR)
    assert size(Resnet(depth=depth, norm="none"), MNIST, 62) == small_resnet((depth - 2) // 6, 1, 62, 1)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cls", "options", "key"),
    [
        (TorchMlp, {"hidden": ()}, "hidden"),
        (Cnn, {"channels": ()}, "channels"),
        (Resnet, {"depth": 19}, "depth"),
        (Resnet, {"groups": 32}, "groups"),
        (Resnet, {"depth": 18, "groups": 48}, "groups"),
        (Vgg11, {"groups": 128}, "groups"),
    ],
)
def test_wrong_options_of_networks_are_refused(cls: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        cls(**options)
    assert error.value.key == key
    with refusal(r"channels=7: not valid; expected a list of integers of at least 1"):
        Reader(Cnn, {"channels": 7}, FAMILIES).read()


@pytest.mark.parametrize(
    ("models", "shape", "vocabulary", "expected"),
    [
        ([Cnn(), *FLAT, Resnet(), Vgg11()], (25,), 80, "these data are text; expected char-lstm or lstm"),
        (TEXT, MNIST, 0, "these data are not text"),
        ([Cnn(), Resnet(), Vgg11()], (64,), 0, "these data are not images"),
        ([Cnn(channels=(2, 2, 2, 2))], (1, 20, 15), 0, "the images are 20 x 15; expected at least 16 x 16"),
        ([Resnet()], (1, 8, 7), 0, "the images are 8 x 7; expected at least 8 x 8"),
        ([Resnet(depth=18, norm="batch")], (1, 8, 8), 0, "the images are 8 x 8; expected at least 9 x 9"),
        ([Vgg11()], (3, 32, 33), 0, "the images are 32 x 33; expected at most 32 x 32"),
    ],
)
def test_rows_that_do_not_fit(models: list[Any], shape: tuple[int, ...], vocabulary: int, expected: str) -> None:
    for model in models:
        with refusal(re.escape(expected)) as error:
            model.build(shape, 2, vocabulary)
        assert (error.value.key, error.value.value) == ("problem.model", model.name)
