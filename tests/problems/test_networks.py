"""The torch networks: sizes against formulas and published counts, scores against NumPy, what each refuses."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mpifl.config import FAMILIES
from mpifl.errors import ConfigError
from mpifl.problems.inits import Uniform
from mpifl.problems.models import networks
from mpifl.problems.models.networks import CharLstm, Cnn, Lstm, Resnet, TorchLogistic, TorchMlp, Vgg11
from mpifl.schema import Reader

torch = pytest.importorskip("torch")

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
IMAGES = [Cnn(hidden=32), Resnet(), Resnet(depth=32, norm="batch"), Resnet(norm="none"), Resnet(depth=18),
          Resnet(depth=50), Vgg11(), Vgg11(norm="none", hidden=(24,)), Vgg11(norm="batch")]  # fmt: skip
FLAT = [TorchLogistic(bias=True), TorchMlp(hidden=(9, 7))]
TEXT = [CharLstm(hidden=16), Lstm(embedding=12, hidden=10, dense=6)]


def shown(model: Any) -> str:
    return "-".join(str(getattr(model, key)) for key in ("name", "depth", "norm", "hidden") if hasattr(model, key))


def built(model: Any, shape: tuple[int, ...], classes: int = 10, vocabulary: int = 0) -> Any:
    torch.manual_seed(5)
    return model.build(shape, classes, vocabulary).double()


def size(module: Any) -> int:
    return sum(part.numel() for part in module.parameters())


def pictures(shape: tuple[int, ...], rows: int = 3) -> Any:
    return torch.from_numpy(np.random.default_rng(2).random((rows, *shape)))


def words(vocabulary: int, window: int, rows: int = 3) -> Any:
    return torch.from_numpy(np.random.default_rng(3).integers(0, vocabulary, (rows, window)))


# -- number of parameters ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("widths", "expected"), [((60, 32, 10), 2282), ((784, 128, 10), 101_770), ((784, 128, 26), 103_834)]
)
def test_size_of_feddr_networks(widths: Sequence[int], expected: int) -> None:
    assert sum((a + 1) * b for a, b in itertools.pairwise(widths)) == expected
    assert size(built(TorchMlp(hidden=tuple(widths[1:-1])), (widths[0],), widths[-1])) == expected


def test_size_of_the_cnn_for_femnist() -> None:
    """28 x 28 is pooled twice to 7 x 7."""
    expected = 32 * (25 + 1) + 64 * (32 * 25 + 1) + 2048 * (64 * 7 * 7 + 1) + 62 * (2048 + 1)
    assert size(built(Cnn(), MNIST, 62)) == expected == 6_603_710


def recurrent(inputs: int, hidden: int, layers: int) -> int:
    """Four gates a layer, each with weights for what comes in and for the state, and two biases."""
    return sum(4 * hidden * ((inputs if k == 0 else hidden) + hidden + 2) for k in range(layers))


def test_size_of_the_network_for_shakespeare() -> None:
    """TensorFlow's LSTM has one bias a gate: 2 layers x 4 gates x 256 fewer."""
    module = built(CharLstm(), (80,), 80, 80)
    assert size(module) == 80 * 8 + recurrent(8, 256, 2) + 80 * (256 + 1) == 819_920
    of_tensorflow = 80 * 8 + 1024 * (8 + 256 + 1) + 1024 * (256 + 256 + 1) + 80 * 257
    assert size(module) - of_tensorflow == 2 * 4 * 256


@pytest.mark.parametrize(("classes", "outputs"), [(2, 1), (3, 3)])
def test_size_of_the_network_for_sent140(classes: int, outputs: int) -> None:
    expected = 1000 * 300 + recurrent(300, 100, 2) + 30 * (100 + 1) + outputs * (30 + 1)
    assert size(built(Lstm(), (25,), classes, 1000)) == expected


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
    found = size(built(Resnet(depth=depth), CIFAR))
    assert round(found / 1e6, 2) == millions
    assert found == small_resnet((depth - 2) // 6) == size(built(Resnet(depth=depth, norm="batch"), CIFAR))
    assert size(built(Resnet(depth=depth, norm="none"), MNIST, 62)) == small_resnet((depth - 2) // 6, 1, 62, 1)


@pytest.mark.parametrize(("depth", "expected"), [(18, 11_173_962), (34, 21_282_122), (50, 23_520_842)])
def test_size_of_wide_resnets(depth: int, expected: int) -> None:
    """Counts of torchvision's models for 1000 classes (11,689,512, 21,797,672, 25,557,032), with a 3 x 3 stem of 3
    channels for one of 7 x 7, and 10 classes. 11,173,962 and 23,520,842 are also what users of kuangliu/pytorch-cifar
    report."""
    features = 2048 if depth == 50 else 512
    of_torchvision = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032}[depth]
    assert of_torchvision - 3 * 64 * (49 - 9) - 990 * (features + 1) == expected
    assert size(built(Resnet(depth=depth), CIFAR)) == expected


def test_size_of_vgg11() -> None:
    """Configuration A's eight convolutions: torchvision's 132,863,336 less its three dense layers for 1000 classes."""
    pairs = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
    weights, channels = sum(9 * a * b for a, b in pairs), sum(b for _, b in pairs)
    assert weights + channels == 132_863_336 - 4096 * (512 * 49 + 1) - 4096 * 4097 - 1000 * 4097
    assert size(built(Vgg11(norm="none"), CIFAR)) == weights + channels + 513 * 10
    for norm in ("group", "batch"):
        assert size(built(Vgg11(norm=norm), CIFAR)) == weights + 2 * channels + 513 * 10
    assert size(built(Vgg11(hidden=(20,)), CIFAR)) == weights + 2 * channels + 513 * 20 + 21 * 10


# -- scores ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [MNIST, CIFAR, (2, 8, 8), (1, 9, 13)])
@pytest.mark.parametrize("model", [*IMAGES, *FLAT], ids=shown)
def test_scores_of_images(model: Any, shape: tuple[int, ...]) -> None:
    scores = built(model, shape, 7)(pictures(shape))
    assert scores.shape == (3, 7) and bool(torch.isfinite(scores).all())
    assert len({round(score, 12) for score in scores.flatten().tolist()}) == 21  # they depend on the row and the class


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("model", TEXT, ids=shown)
def test_scores_of_text(model: Any, classes: int) -> None:
    module, x = built(model, (6,), classes, 11), words(11, 6)
    scores = module(x)
    assert scores.shape == (3, classes)
    for at in (0, 5):  # the first token and the last one count
        other = x.clone()
        other[:, at] = (x[:, at] + 1) % 10 + 1
        assert not torch.allclose(module(other), scores, rtol=0, atol=1e-9)


def test_logistic_is_the_same_as_in_numpy() -> None:
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


def test_mlp_by_formula() -> None:
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


def test_two_classes_are_one_logit() -> None:
    """The scores (0, z), whose cross entropy is log(1 + exp(-z)) for label 1 and log(1 + exp(z)) for label 0."""
    scores = built(TEXT[1], (6,), 2, 11)(words(11, 6))
    z = scores[:, 1].detach().numpy()
    assert (scores[:, 0] == 0).all() and len(set(z)) == 3
    for label, sign in ((1, -1), (0, 1)):
        found = torch.nn.functional.cross_entropy(scores, torch.full((3,), label), reduction="none")
        assert found.detach().numpy() == pytest.approx(np.log1p(np.exp(sign * z)), rel=1e-12)


def test_padding_is_not_learnt() -> None:
    module, x = built(TEXT[1], (6,), 2, 11), words(11, 6)
    x[:, 2] = 0
    module(x)[:, 1].sum().backward()
    used = set(x.flatten().tolist())
    norms = module.embedding.weight.grad.norm(dim=1)
    assert {k for k in range(11) if norms[k] > 0} == used - {0}
    assert not module.embedding.weight[0].any()


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


@pytest.mark.parametrize("norm", networks.NORMS)
def test_first_scores_of_vgg_depend_on_the_row(norm: str) -> None:
    """Under PyTorch's own law, whose variance is a sixth of He's, eight convolutions and no norm: 2e-5."""
    scores = built(Vgg11(norm=norm), MNIST)(pictures(MNIST, 16))
    assert scores.std(0).mean() > 0.01


# -- norms -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [Resnet, Vgg11])
@pytest.mark.parametrize("norm", ["group", "none", "batch"])
def test_only_batch_norm_looks_at_other_rows(model: Any, norm: str) -> None:
    module, x = built(model(norm=norm), MNIST).train(), pictures(MNIST)
    together = module(x)
    alone = torch.cat([module(x[k : k + 1]) for k in range(3)])
    assert torch.allclose(together, alone, rtol=1e-9, atol=1e-9) == (norm != "batch")


@pytest.mark.parametrize("model", [Resnet(groups=4), Vgg11(groups=4)], ids=shown)
def test_group_norm_has_mean_0_and_variance_1_in_a_group(model: Any) -> None:
    """On top of these come a factor and a shift, 1 and 0 at first; epsilon is 1e-5."""
    module, seen = built(model, CIFAR), []
    first = next(part for part in module.modules() if isinstance(part, torch.nn.GroupNorm))
    first.register_forward_hook(lambda part, given, result: seen.append((given[0], result)))
    module(pictures(CIFAR))
    before, after = (part.detach().numpy().reshape(3, 4, -1) for part in seen[0])
    assert len({part.num_groups for part in module.modules() if isinstance(part, torch.nn.GroupNorm)}) == 1
    assert after.mean(2) == pytest.approx(np.zeros((3, 4)), abs=1e-12)
    assert after.var(2) == pytest.approx(before.var(2) / (before.var(2) + 1e-5), rel=1e-9)


@pytest.mark.parametrize("model", [*IMAGES, *FLAT, *TEXT], ids=shown)
def test_buffers_are_floats_besides_the_count_of_batches(model: Any) -> None:
    module = built(model, (6,), 2, 11) if model in TEXT else built(model, MNIST)
    integers = {name for name, part in module.state_dict().items() if not part.is_floating_point()}
    batches = {name for name in module.state_dict() if name.endswith("num_batches_tracked")}
    assert integers == batches
    assert bool(batches) == (getattr(model, "norm", "") == "batch")
    assert all(part.requires_grad for part in module.parameters())


# -- what is refused ---------------------------------------------------------------------------------------------------
def test_options_are_lists_in_a_job() -> None:
    assert Reader(TorchMlp, {"hidden": [8, 4], "init": {"name": "zero"}}, FAMILIES).read().hidden == (8, 4)
    with pytest.raises(ConfigError, match=r"channels=7: a list of integers"):
        Reader(Cnn, {"channels": 7}, FAMILIES).read()


@pytest.mark.parametrize(
    ("cls", "options", "key"),
    [
        (TorchMlp, {"hidden": ()}, "hidden"),
        (TorchMlp, {"hidden": (8, 0)}, "hidden[1]"),
        (Cnn, {"channels": ()}, "channels"),
        (Cnn, {"hidden": 0}, "hidden"),
        (CharLstm, {"layers": 0}, "layers"),
        (CharLstm, {"embedding": 0}, "embedding"),
        (Lstm, {"dense": 0}, "dense"),
        (Lstm, {"hidden": True}, "hidden"),
        (Resnet, {"depth": 19}, "depth"),
        (Resnet, {"norm": "layer"}, "norm"),
        (Resnet, {"groups": 32}, "groups"),
        (Resnet, {"groups": 0}, "groups"),
        (Resnet, {"depth": 18, "groups": 48}, "groups"),
        (Vgg11, {"norm": "layer"}, "norm"),
        (Vgg11, {"groups": 128}, "groups"),
        (Vgg11, {"hidden": (-1,)}, "hidden[0]"),
    ],
)
def test_wrong_options(cls: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        cls(**options)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("model", "shape", "vocabulary", "expected"),
    [
        *[(model, (25,), 80, "char-lstm or lstm: these data are text") for model in (Cnn(), *FLAT, Resnet(), Vgg11())],
        *[(model, MNIST, 0, "these data are not text") for model in TEXT],
        *[(model, (64,), 0, "these data are not images") for model in (Cnn(), Resnet(), Vgg11())],
        (Cnn(channels=(2, 2, 2, 2)), (1, 20, 15), 0, "images of at least 16 x 16, not 20 x 15"),
        (Resnet(), (1, 8, 7), 0, "images of at least 8 x 8, not 8 x 7"),
        (Resnet(depth=18, norm="batch"), (1, 8, 8), 0, "images of at least 9 x 9, not 8 x 8"),
        (Vgg11(), (3, 32, 33), 0, "images of at most 32 x 32, not 32 x 33"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit(model: Any, shape: tuple[int, ...], vocabulary: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)) as error:
        model.build(shape, 2, vocabulary)
    assert (error.value.key, error.value.value) == ("problem.model", model.name)


@pytest.mark.parametrize("depth", [*networks.SMALL, *networks.WIDE])
def test_batch_norm_trains_on_one_row_of_the_smallest_image(depth: int) -> None:
    """PyTorch refuses batch norm of a single value a channel."""
    side = 8 if depth in networks.SMALL else 9
    module = built(Resnet(depth=depth, norm="batch"), (1, side, side)).train()
    assert module(pictures((1, side, side), 1)).shape == (1, 10)


def test_depth_counts_the_layers_with_weights() -> None:
    """Projections of option B are not counted, as in the paper."""
    for depth in (*networks.SMALL, *networks.WIDE):
        weights = [name for name, part in built(Resnet(depth=depth), MNIST).named_parameters() if part.ndim > 1]
        assert len([name for name in weights if ".shortcut." not in name]) == depth


def test_torch_is_imported_only_to_build() -> None:
    code = "import sys, mpifl.problems.models.networks as n; n.Resnet(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
