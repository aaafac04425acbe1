"""What models use of a job's section `problem`: plain settings, without data set, partition and model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mpifl.config.types import Bounds, Config
from mpifl.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Torch(Config):
    """How torch computes, where the model is a torch module."""

    device: str = "cpu"
    """Where clients compute: cpu; cuda, a GPU of the rank's host (the rank's number there mod their count); cuda:K."""
    autocast: Literal["bfloat16"] | None = None
    """bfloat16: forward passes in bfloat16 where torch holds that to be safe; null: all in problem.dtype."""
    buffers: Literal["averaged", "local"] = "averaged"
    """Running statistics of batch norm: averaged, as entries of the flat vector; or local, each client its own."""
    batched: bool | None = None
    """Clients of a rank with a message at hand are computed in one call, with the same result within rounding; null:
    only under the real clock, as the virtual clock's bits must not depend on the number of ranks."""
    deterministic: bool | None = None
    """Only algorithms that give the same bits each time; null: under the virtual clock and in replays."""
    threads: Annotated[int, Bounds(at_least=1, at_most=1024)] | None = None
    """Threads a rank; null: 1 under the virtual clock (bits may depend on it), else as many as the rank has cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise ConfigError("device", self.device, "no such device", "cpu, cuda or cuda:K")

    def with_defaults(self, repeatable: bool) -> Torch:
        """Nulls replaced by what the clock needs; repeatable: another run must give the same bits. Only `threads` stays
        null, under the real clock."""
        return replace(
            self,
            batched=not repeatable if self.batched is None else self.batched,
            deterministic=repeatable if self.deterministic is None else self.deterministic,
            threads=1 if repeatable and self.threads is None else self.threads,
        )


@dataclass(frozen=True)
class ProblemSettings:
    """What models use of a job's section `problem`; the fields are explained in `ProblemConfig`."""

    clients: int | None = None
    batch_size: int | None = None
    micro_batches: int = 1
    drop_last: bool = False
    l2: float = 0.0
    dtype: str = "float32"
    test_split: float | None = None
    validation_split: float | None = None
    evaluation_rows: int | None = None
    root: str | None = None
    download: bool = False
    torch: Torch | None = None
    entry: str | None = None
    options: Any = None

    def folder(self) -> Path:
        """The data root."""
        from pathlib import Path  # 0.5 MB, which ranks with clients do without

        return Path(os.path.expanduser(self.root or os.environ.get("MPIFL_DATA") or "~/.cache/mpifl"))
