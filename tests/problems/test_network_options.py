"""Options of the torch networks, and rows that do not fit: what is refused, and with which words."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from mpifl.config.registry import FAMILIES
from mpifl.config.schema import Reader
from mpifl.errors import ConfigError
from mpifl.problems.models.networks import CharLstm, Cnn, Lstm, Resnet, TorchLogistic, TorchMlp, Vgg11

MNIST = (1, 28, 28)
FLAT, TEXT = [TorchLogistic(), TorchMlp()], [CharLstm(), Lstm()]


def test_options_are_lists_in_a_job() -> None:
    assert Reader(TorchMlp, {"hidden": [8, 4], "init": {"name": "zero"}}, FAMILIES).read().hidden == (8, 4)
    with pytest.raises(ConfigError, match=r"channels=7: not valid; expected a list of integers of at least 1"):
        Reader(Cnn, {"channels": 7}, FAMILIES).read()


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
def test_wrong_options(cls: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        cls(**options)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("model", "shape", "vocabulary", "expected"),
    [
        *[
            (model, (25,), 80, "these data are text; expected char-lstm or lstm")
            for model in (Cnn(), *FLAT, Resnet(), Vgg11())
        ],
        *[(model, MNIST, 0, "these data are not text") for model in TEXT],
        *[(model, (64,), 0, "these data are not images") for model in (Cnn(), Resnet(), Vgg11())],
        (Cnn(channels=(2, 2, 2, 2)), (1, 20, 15), 0, "the images are 20 x 15; expected at least 16 x 16"),
        (Resnet(), (1, 8, 7), 0, "the images are 8 x 7; expected at least 8 x 8"),
        (Resnet(depth=18, norm="batch"), (1, 8, 8), 0, "the images are 8 x 8; expected at least 9 x 9"),
        (Vgg11(), (3, 32, 33), 0, "the images are 32 x 33; expected at most 32 x 32"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit(model: Any, shape: tuple[int, ...], vocabulary: int, expected: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=re.escape(expected)) as error:
        model.build(shape, 2, vocabulary)
    assert (error.value.key, error.value.value) == ("problem.model", model.name)


def test_torch_is_imported_only_to_build() -> None:
    code = "import sys, mpifl.problems.models.networks as n; n.Resnet(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
