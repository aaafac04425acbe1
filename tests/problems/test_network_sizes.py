"""The torch networks' numbers of parameters, against formulas and published counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from mpifl.problems.models import networks
from mpifl.problems.models.networks import CharLstm, Cnn, Lstm, Resnet, TorchMlp, Vgg11

torch = pytest.importorskip("torch")

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def built(model: Any, shape: tuple[int, ...], classes: int = 10, vocabulary: int = 0) -> Any:
    with torch.device("meta"):  # shapes without memory
        return model.build(shape, classes, vocabulary)


def size(module: Any) -> int:
    return sum(part.numel() for part in module.parameters())


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


def test_depth_counts_the_layers_with_weights() -> None:
    """Projections of option B are not counted, as in the paper."""
    for depth in (*networks.SMALL, *networks.WIDE):
        weights = [name for name, part in built(Resnet(depth=depth), MNIST).named_parameters() if part.ndim > 1]
        assert len([name for name in weights if ".shortcut." not in name]) == depth
