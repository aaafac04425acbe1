"""Deep convolutional networks for small images: residual networks and VGG, with a choice of normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional

from mpifl.problems.torch.modules import dense

Convolution = Callable[[int, int, int, int], nn.Module]  # (input, output channels, kernel's side, stride)


def convolutions(norm: str, groups: int) -> Convolution:
    """Makes convolutions followed by a norm: `group`, `batch` or `none`. They keep the size of the image (but for the
    stride), and have a bias where there is no norm, which has its own."""

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Module:
        bare = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm == "none")
        if norm == "none":
            return bare
        return nn.Sequential(bare, nn.GroupNorm(groups, outputs) if norm == "group" else nn.BatchNorm2d(outputs))

    return convolution


class Shortcut(nn.Module):
    """He et al.'s option A: every `stride`-th pixel, and zeros for the `extra` channels; no parameters."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Block(nn.Module):
    """ReLU of body + shortcut. The body is two 3 x 3 convolutions, or of a bottleneck 1 x 1, 3 x 3, and 1 x 1 with four
    times the width."""

    def __init__(
        self, make: Convolution, inputs: int, width: int, stride: int, bottleneck: bool, projection: bool
    ) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            first, middle = make(inputs, width, 1, 1), make(width, width, 3, stride)
            self.body = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), make(width, outputs, 1, 1))
        else:
            self.body = nn.Sequential(make(inputs, width, 3, stride), nn.ReLU(), make(width, outputs, 3, 1))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = make(inputs, outputs, 1, stride) if projection else Shortcut(outputs - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(
    channels: int,
    classes: int,
    make: Convolution,
    widths: Sequence[int],
    blocks: Sequence[int],
    bottleneck: bool,
    projection: bool,
) -> nn.Sequential:
    """A 3 x 3 stem without pooling, a stage of `blocks[k]` blocks for each of `widths` (all but the first halve the
    image), the mean over the pixels, and a dense layer. `projection`: option B, a 1 x 1 convolution, else option A."""
    stages: list[nn.Module] = []
    inputs = widths[0]
    for width, count in zip(widths, blocks, strict=True):
        for k in range(count):
            stride = 2 if k == 0 and stages else 1
            stages.append(Block(make, inputs, width, stride, bottleneck, projection))
            inputs = 4 * width if bottleneck else width
    stem = [make(channels, widths[0], 3, 1), nn.ReLU()]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # configuration A: convolutions between poolings


def vgg11(shape: tuple[int, int, int], hidden: Sequence[int], classes: int, make: Convolution) -> nn.Sequential:
    """Configuration A of VGG on images of at most 32 x 32, padded with zeros around them to that size, so that one
    pixel with 512 channels is left for the dense layers. Shape: (channels, height, width).

    Convolutions begin with the normal law of He et al., arXiv 1502.01852; under PyTorch's own the scores of eleven
    layers without shortcuts hardly depend on the rows.
    """
    channels, height, width = shape
    top, left = (32 - height) // 2, (32 - width) // 2
    layers: list[nn.Module] = [nn.ZeroPad2d((left, 32 - width - left, top, 32 - height - top))]
    for stage in VGG11:
        for outputs in stage:
            layers += [make(channels, outputs, 3, 1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    for part in nn.Sequential(*layers).modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return nn.Sequential(*layers, nn.Flatten(), *dense(channels, hidden, classes))
