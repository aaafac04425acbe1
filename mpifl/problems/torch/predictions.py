"""Predicted labels of a module's outputs: of class scores, of one output for two classes, or by a user's function.

What outputs mean is decided by what the loss rewards, as neither their shape nor the loss's name tells. The derivatives
of the loss are taken at outputs that prefer no label:

- Outputs are class scores if the loss falls with the score of a row's own class, and rises with the score of every
  other class (or, as `nll_loss`, depends on none of them).
- One output decides between two labels if the loss of one label falls with it everywhere, and that of the other rises.
  The threshold is 0, or 1/2 where the loss takes probabilities alone.
- A label is ignored (`ignore_index`) if the loss does not depend on its rows' outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
LABELS_AT_ONCE = 256
MAX_OUTPUTS = 2**24  # numbers in the outputs of all labels that are tried: beyond, the lowest and the highest labels
LOGITS = (-2.0, -1.0, -0.25, 0.25, 1.0, 2.0)  # outputs at which a binary loss is looked at
PROBABILITIES = (0.1, 0.5, 0.9)  # those where it takes probabilities alone


@dataclass(frozen=True)
class Prediction:
    """How predicted labels follow from outputs."""

    labels: Callable[[Tensor], Tensor]  # outputs (rows, ...) -> predicted labels, as many as the targets have
    scores: Callable[[Tensor], Tensor] | None = None  # outputs -> (rows, classes), whose softmax are probabilities
    positive: int | None = None  # the label of class 1 where one output decides; None: labels are classes
    ignored: tuple[int, ...] = ()  # labels whose rows do not count

    def count(self, outputs: Tensor, y: Tensor) -> tuple[int, int]:
        """How many targets y are predicted rightly, and how many count."""
        right = self.labels(outputs).reshape(y.shape) == y
        if not self.ignored:
            return int(right.sum()), right.numel()
        counted = self.counted(y)
        return int((right & counted).sum()), int(counted.sum())

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count: bool, in their shape."""
        return ~torch.isin(y, y.new_tensor(self.ignored))

    def classes(self, y: Tensor) -> Tensor:
        """The classes, from 0, of targets."""
        return y if self.positive is None else (y.reshape(-1) == self.positive).long()


CLASS_SCORES = Prediction(lambda outputs: outputs.argmax(1), lambda outputs: outputs)


def find_prediction(
    loss: Loss, outputs: Sequence[Tensor], targets: Sequence[Tensor], values: Tensor,
    predict: Callable[[Tensor], Tensor] | None,
) -> tuple[Prediction | None, str]:  # fmt: skip
    """How outputs predict labels; or None, and why, which is "" where targets are not labels in the first place.

    Args:
        loss: The user's.
        outputs: Some of the module's outputs for each part of the data.
        targets: Their targets.
        values: All targets of all parts, flat.
        predict: The user's own function from outputs to labels.
    """
    shapes = {(part.shape[1:], y.shape[1:], y.dtype) for part, y in zip(outputs, targets, strict=True)}
    whole = not values.is_floating_point()
    binary = all(shape in ((), (1,)) and rest in ((), (1,)) for shape, rest, _ in shapes)
    labelled = whole or (binary and bool(((values == values.round()) & (values.abs() <= 1)).all()))
    if not labelled:
        return (Prediction(predict) if predict else None), ""
    shape, rest = outputs[0].shape[1:], targets[0].shape[1:]
    classes = len(shape) == 1 and shape[0] > 1 and not rest
    if not predict:
        if len(shapes) > 1:
            return None, "the outputs or the targets of the data sets differ in shape" if whole else ""
        if not (classes or binary):
            return None, _why_not(shape)
    probe = _Probe(loss, shape, outputs[0].dtype, rest)
    labels = torch.unique(values)
    ignored = probe.ignored(labels)
    left_out = tuple(int(label) for label in ignored)
    if predict:
        return Prediction(predict, ignored=left_out), ""
    seen = labels[~torch.isin(labels, ignored)]
    if len(seen) and classes and _rewards_own_class(probe, seen):
        scores = torch.log if _takes_probabilities(probe, seen[:LABELS_AT_ONCE]) else CLASS_SCORES.scores
        return Prediction(CLASS_SCORES.labels, scores, ignored=left_out), ""
    if len(seen) and binary:
        for pair in ((0, 1), (-1, 1)):
            if set(seen.tolist()) <= {*pair} and (found := _binary(probe, seen.new_tensor(pair), left_out)):
                return found, ""
    return None, _why_not(shape) if whole else ""


def _why_not(shape: Sequence[int]) -> str:
    text = f"outputs ({', '.join(map(str, ['rows', *shape]))})"
    if len(shape) > 1:
        return f"{text} are not (rows, classes)"
    return f"the loss does not treat {text} as " + (
        f"scores of {shape[0]} classes" if shape and shape[0] > 1 else "a decision between two labels"
    )


class _Probe:
    """Derivatives of a loss by outputs that are all equal."""

    def __init__(self, loss: Loss, shape: Sequence[int], dtype: torch.dtype, rest: Sequence[int]) -> None:
        """shape: of one row's outputs; rest: of its targets."""
        self._loss, self.shape, self._dtype, self._rest = loss, shape, dtype, rest
        self.neutral = 1 / max(2, shape[0] if shape else 1)  # a value that prefers no label, and may be a probability

    def __call__(self, value: float, labels: Tensor) -> Tensor | None:
        """(labels, *shape) where all outputs are `value`, of one row for each label (labels,); None where the loss does
        not take these."""
        outputs = torch.full((len(labels), *self.shape), value, dtype=self._dtype, requires_grad=True)
        targets = labels.reshape(-1, *[1] * len(self._rest)).expand(-1, *self._rest).clone()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                mean = self._loss(outputs, targets)
                (slopes,) = torch.autograd.grad(mean, outputs)
        except Exception:  # whatever a user's code raises
            return None
        return slopes if torch.isfinite(mean) and torch.isfinite(slopes).all() else None

    def ignored(self, labels: Tensor) -> Tensor:
        """Those of the labels on whose rows' outputs the loss does not depend."""
        half = max(4, MAX_OUTPUTS // prod(self.shape)) // 2
        if len(labels) > 2 * half:  # ignored labels are -100, 0 or the last
            labels = torch.cat([labels[:half], labels[-half:]])
        parts = -(-len(labels) // LABELS_AT_ONCE)
        found = [labels[:0]]
        for some in (labels[k::parts] for k in range(parts)):  # a mean needs a label that is not ignored
            if (slopes := self(self.neutral, some)) is not None:
                found.append(some[~slopes.reshape(len(some), -1).any(1)])
        return torch.cat(found)


def _rewards_own_class(probe: _Probe, seen: Tensor) -> bool:
    """Whether outputs (rows, classes) are scores of all their classes. Those that no row has are tried as well, as they
    may be other outputs, such as an uncertainty."""
    classes = torch.arange(probe.shape[0])
    if seen.min() < 0 or seen.max() >= len(classes):
        return False
    unseen = classes[~torch.isin(classes, seen)]
    labels = torch.cat([part[: LABELS_AT_ONCE // 2] for part in (seen, unseen, unseen.flip(0))])
    slopes = probe(probe.neutral, labels)
    if slopes is None:
        return False
    counted = slopes.any(1)  # an ignored label may have no row
    labels, slopes = labels[counted], slopes[counted]
    own, others = slopes.gather(1, labels[:, None]), slopes[classes != labels[:, None]]
    return bool((own < 0).all() and ((others > 0).all() or (others == 0).all()))


def _takes_probabilities(probe: _Probe, labels: Tensor) -> bool:
    """Whether the loss takes no outputs below 0, or clamps them."""
    slopes = probe(-1.0, labels)
    return slopes is None or not slopes.any()


def _binary(probe: _Probe, both: Tensor, ignored: tuple[int, ...]) -> Prediction | None:
    """The prediction of one output for two labels `both`, the lower one first; None where the loss is none for that."""
    probabilities = _takes_probabilities(probe, both)
    slopes = [probe(value, both) for value in (PROBABILITIES if probabilities else LOGITS)]
    found = [each.flatten() for each in slopes if each is not None]
    middle = len(slopes) // 2
    if len(found) < len(slopes) or not all(low >= 0 >= high for low, high in found) or not found[middle].all():
        return None
    negative, positive = map(int, both)

    def labels(outputs: Tensor) -> Tensor:
        return torch.where(outputs.reshape(-1) > (0.5 if probabilities else 0), positive, negative)

    def scores(outputs: Tensor) -> Tensor:
        p = outputs.reshape(-1, 1)
        return torch.cat([1 - p, p], 1).log() if probabilities else torch.cat([torch.zeros_like(p), p], 1)

    return Prediction(labels, scores, positive, ignored)
