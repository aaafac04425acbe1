"""Flower's clients as they stand: what a `client_fn` makes trains and evaluates in a job of mpifl.

    from mpifl.adapters import flower

    def clients():
        return flower.clients(client_fn, 10)

as `problem.entry`. A `NumPyClient` is used by its public interface: `get_parameters`, `fit` and `evaluate`. Its arrays
are one vector; those of integers, such as counts of batches, travel as floats and are rounded for the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpifl.errors import ConfigError

VERSIONS = ((1, 42), (1, 43))  # from the first one on, below the second one

try:
    import flwr
    from flwr import common
except ImportError as error:
    text = "it is not installed, and mpifl.adapters.flower needs it"
    raise ConfigError("flwr", str(error), text, remedy="pip install 'mpifl[flower]'") from error
if not VERSIONS[0] <= tuple(map(int, flwr.__version__.split(".")[:2])) < VERSIONS[1]:
    (low, first), (high, last) = VERSIONS
    wrong = "mpifl.adapters.flower is for other versions"
    raise ConfigError("flwr", flwr.__version__, wrong, f">={low}.{first},<{high}.{last}")


def clients(
    client_fn: Callable[[Any], Any],
    number: int,
    *,
    initial: Sequence[np.ndarray] | None = None,
    samples: Sequence[int] | None = None,
    config: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> tuple[dict[str, np.ndarray], FlowerClients]:
    """The first model and the clients of a Flower app, for `problem.entry`.

    Args:
        client_fn: As a ClientApp takes it; client k has the partition-id k of `number`.
        number: The number of clients n.
        initial: The first model; None: what client 0's `get_parameters` returns.
        samples: The rows of each client, for methods that weight by them; None: all are equal.
        config: What `fit` and `evaluate` get, beside server_round, local_steps or local_epochs, and step_size.
        run_config: That of the app.
    """
    made = FlowerClients(client_fn, number, samples, dict(config or {}), dict(run_config or {}))
    made.like = [np.asarray(array) for array in (made.first_model() if initial is None else initial)]
    floating = {array.dtype for array in made.like if array.dtype.kind == "f"}
    dtype = np.float64 if floating == {np.dtype(np.float64)} else np.float32
    return {str(k): array.astype(dtype) for k, array in enumerate(made.like)}, made


class FlowerClients(Sequence["FlowerClient"]):
    """The clients of an app; one is made when it is asked for."""

    like: list[np.ndarray]  # arrays of the shapes and types that the clients take

    def __init__(
        self, client_fn: Callable[[Any], Any], number: int, samples: Sequence[int] | None,
        config: dict[str, Any], run_config: dict[str, Any],
    ) -> None:  # fmt: skip
        self._client_fn, self._number, self._samples = client_fn, number, samples
        self._config, self._run_config = config, run_config

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, k: Any) -> Any:
        samples = 1 if self._samples is None else self._samples[k]
        return FlowerClient(self._make(k), self.like, samples, self._config)

    def _make(self, k: int) -> Any:
        node = {"partition-id": k, "num-partitions": self._number}
        context = common.Context(
            run_id=0, node_id=k, node_config=node, state=common.RecordDict(), run_config=self._run_config
        )
        return self._client_fn(context).to_client()

    def first_model(self) -> list[np.ndarray]:
        """What client 0's `get_parameters` returns. Raises ConfigError."""
        found = self._make(0).get_parameters(common.GetParametersIns({}))
        arrays: list[np.ndarray] = common.parameters_to_ndarrays(found.parameters)
        if not arrays:
            wrong = "client 0 has no get_parameters"
            raise ConfigError("initial", None, wrong, "the arrays of the first model: clients(..., initial=[...])")
        return arrays


class FlowerClient:
    """A Flower client with the interface of `mpifl.problems.own_training`."""

    def __init__(self, client: Any, like: Sequence[np.ndarray], samples: int, config: dict[str, Any]) -> None:
        self.samples, self._client, self._like, self._config = samples, client, like, config

    def fit(self, x: dict[str, np.ndarray], contact: Any) -> tuple[dict[str, np.ndarray], int]:
        """The client's arrays after its `fit`; the steps are its metric `local_steps`, else 1."""
        asked = {"local_steps": contact.steps, "local_epochs": contact.epochs, "step_size": contact.step_size}
        known = {key: value for key, value in asked.items() if value is not None}
        config = {"server_round": contact.round + 1, **known, **self._config}
        found = self._client.fit(common.FitIns(self._parameters(x), config))
        if found.status.code != common.Code.OK:
            raise RuntimeError(f"the Flower client's fit: {found.status.code.name} {found.status.message}")
        arrays = common.parameters_to_ndarrays(found.parameters)
        y = {str(k): array.astype(x["0"].dtype) for k, array in enumerate(arrays)}
        return y, int(found.metrics.get("local_steps", 1))

    def evaluate(self, x: dict[str, np.ndarray]) -> dict[str, float]:
        """The loss, the number of rows, and the metric `accuracy` of its `evaluate`, if it has one."""
        found = self._client.evaluate(common.EvaluateIns(self._parameters(x), dict(self._config)))
        if found.status.code != common.Code.OK:
            return {}
        accuracy = {"test_accuracy": found.metrics["accuracy"]} if "accuracy" in found.metrics else {}
        return {"test_loss": found.loss, "rows": found.num_examples, **accuracy}

    def _parameters(self, x: dict[str, np.ndarray]) -> Any:
        pairs = zip(x.values(), self._like, strict=True)
        return common.ndarrays_to_parameters(
            [(v if like.dtype.kind == "f" else np.rint(v)).astype(like.dtype) for v, like in pairs]
        )
