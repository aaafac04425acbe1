"""Networks for torch by name. Nothing here imports torch before a network is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from mpifl.config.types import PositiveInt
from mpifl.errors import ConfigError
from mpifl.problems.inits import Uniform
from mpifl.problems.models.network import Network
from mpifl.problems.problem import Init

if TYPE_CHECKING:
    from torch.nn import Module

# He et al. section 4.2, for CIFAR-10: basic blocks and option A; then table 1, for ImageNet: option B
SMALL_BLOCKS = {20: (3, 3, 3), 32: (5, 5, 5), 44: (7, 7, 7), 56: (9, 9, 9)}  # blocks with 16, 32, 64 channels
WIDE_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}  # blocks with 64, 128, 256, 512; 50: bottlenecks


@dataclass(frozen=True)
class TorchLogistic(Network):
    """`logistic` in torch: the same flat vector, W (features, classes) row by row, then b (classes,)."""

    init: Init | None = Uniform()
    """Law of the initial entries, as in `logistic`; null: uniform up to 1/sqrt(features), as PyTorch's dense layer."""
    name: str = "torch-logistic"
    bias: bool = False
    """Whether there is a bias b."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.modules import Logistic

        return Logistic(prod(numbers(self.name, shape, vocabulary)), classes, self.bias)


@dataclass(frozen=True)
class TorchMlp(Network):
    """Dense layers with ReLU between them; with hidden [128] FedDR's network for FEMNIST and MNIST."""

    name: str = "torch-mlp"
    hidden: tuple[PositiveInt, ...] = (128,)
    """Units of each hidden layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_empty("hidden", self.hidden)

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.modules import mlp

        return mlp(numbers(self.name, shape, vocabulary), self.hidden, classes)


@dataclass(frozen=True)
class Cnn(Network):
    """LEAF's CNN for FEMNIST: 5 x 5 convolutions that keep the size, each with ReLU and 2 x 2 max pooling; two dense
    layers."""

    name: str = "cnn"
    channels: tuple[PositiveInt, ...] = (32, 64)
    """Output channels of each convolution."""
    hidden: PositiveInt = 2048
    """Units of the first dense layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_empty("channels", self.channels)

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.modules import cnn

        return cnn(image(self.name, shape, vocabulary, 2 ** len(self.channels)), self.channels, self.hidden, classes)


@dataclass(frozen=True)
class CharLstm(Network):
    """LEAF's network for Shakespeare, the next character of a text: embedding, LSTM layers, and a dense layer on the
    last output. Two biases a gate, as PyTorch has it (TensorFlow has one, and adds 1 to that of the forget gate)."""

    name: str = "char-lstm"
    embedding: PositiveInt = 8
    """Length of a character's vector."""
    hidden: PositiveInt = 256
    """Units of each LSTM layer."""
    layers: PositiveInt = 2
    """LSTM layers."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.modules import char_lstm

        return char_lstm(text(self.name, vocabulary), self.embedding, self.hidden, self.layers, classes)


@dataclass(frozen=True)
class Lstm(Network):
    """FedProx's and FedDANE's network for Sent140: embedding, LSTM layers, and two dense layers on the last output, of
    which the second has one unit (a logit) where there are two classes. The embedding is learnt from its initial
    values; theirs are fixed GloVe vectors. Token 0 is padding: its vector has no gradient."""

    name: str = "lstm"
    embedding: PositiveInt = 300
    """Length of a word's vector."""
    hidden: PositiveInt = 100
    """Units of each LSTM layer."""
    layers: PositiveInt = 2
    """LSTM layers."""
    dense: PositiveInt = 30
    """Units of the first dense layer; it has no activation, as in their code."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.modules import lstm

        return lstm(text(self.name, vocabulary), self.embedding, self.hidden, self.layers, self.dense, classes)


@dataclass(frozen=True)
class Normed(Network):
    """What convolutional networks with a norm share."""

    norm: Literal["group", "batch", "none"] = "group"
    """After each convolution: group (Wu & He, arXiv 1803.08494), which takes a row by itself; batch, whose statistics
    of a batch differ from client to client where the labels do; none."""
    groups: PositiveInt = 8
    """Groups of the channels in group norm; must divide the first layer's channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first() % self.groups:
            raise ConfigError(
                "groups", self.groups, f"the first layer has {self.first()} channels", f"a divisor of {self.first()}"
            )

    def first(self) -> int:
        """Channels of the first layer; they divide those of all others."""
        return 64


@dataclass(frozen=True)
class Resnet(Normed):
    """Residual network (He et al., arXiv 1512.03385) for small images: the first convolution is 3 x 3 without pooling.
    20 to 56 have three stages of 16, 32, 64 channels and shortcuts without parameters (option A); 18, 34 and 50 four
    of 64 to 512 and 1 x 1 convolutions where a shortcut changes the shape (option B). 50 has bottleneck blocks, with
    the stride in their 3 x 3 convolution, as torchvision. Without a norm they learn slowly, if at all."""

    name: str = "resnet"
    depth: Literal[20, 32, 44, 56, 18, 34, 50] = 20
    """Layers with weights: 20, 32, 44 or 56; 18, 34 or 50."""

    def first(self) -> int:
        return 16 if self.depth in SMALL_BLOCKS else 64

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.deep import convolutions, resnet

        wide = self.depth in WIDE_BLOCKS
        least = 9 if wide and self.norm == "batch" else 8  # 8 end as one pixel: a batch of one row has no variance
        channels, _, _ = image(self.name, shape, vocabulary, least)
        blocks = WIDE_BLOCKS[self.depth] if wide else SMALL_BLOCKS[self.depth]
        stages = [self.first() * 2**k for k in range(len(blocks))]
        make = convolutions(self.norm, self.groups)
        return resnet(channels, classes, make, stages, blocks, bottleneck=self.depth == 50, projection=wide)


@dataclass(frozen=True)
class Vgg11(Normed):
    """Configuration A of VGG (Simonyan & Zisserman, arXiv 1409.1556) for images of up to 32 x 32, with one dense layer;
    smaller images are padded with zeros. Convolutions begin with He's initialisation."""

    name: str = "vgg11"
    hidden: tuple[PositiveInt, ...] = ()
    """Units of dense layers, each with a ReLU, before the last; VGG has 4096 and 4096, with dropout."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Module:
        from mpifl.problems.torch.deep import convolutions, vgg11

        size = image(self.name, shape, vocabulary, 1)
        if max(size[1:]) > 32:
            raise ConfigError("problem.model", self.name, f"the images are {size[1]} x {size[2]}", "at most 32 x 32")
        return vgg11(size, self.hidden, classes, convolutions(self.norm, self.groups))


def check_not_empty(field: str, widths: Sequence[int]) -> None:
    """Raises ConfigError where there is no layer."""
    if not widths:
        raise ConfigError(field, list(widths), "no layers", "a list of at least 1 integer")


def numbers(name: str, shape: tuple[int, ...], vocabulary: int) -> tuple[int, ...]:
    """The shape of rows of numbers; ConfigError for text."""
    if vocabulary:
        raise ConfigError("problem.model", name, "these data are text", "char-lstm or lstm")
    return shape


def image(name: str, shape: tuple[int, ...], vocabulary: int, least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image of at least `least` x `least`; ConfigError for other rows."""
    numbers(name, shape, vocabulary)
    if len(shape) != 3:
        raise ConfigError("problem.model", name, "these data are not images", "a model for rows of numbers")
    channels, height, width = shape
    if min(height, width) < least:
        raise ConfigError("problem.model", name, f"the images are {height} x {width}", f"at least {least} x {least}")
    return channels, height, width


def text(name: str, vocabulary: int) -> int:
    """The vocabulary of rows of tokens; ConfigError for other rows."""
    if not vocabulary:
        raise ConfigError("problem.model", name, "these data are not text", "a model for rows of numbers")
    return vocabulary
