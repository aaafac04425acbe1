"""Torch problems as users have them: `problem.entry: "tests.problems.zoo.modules:NAME"`, each with its right outcome.

`right` says that a run ends well, and how the accuracy of outputs and targets is defined; `refused` that the job is
refused with one line, and what that says. What is drawn has seeds of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import Dataset, TensorDataset, default_collate

SIZES = (40, 24, 34, 28)  # rows of the clients; batches of 16 leave 8, 8, 2 and 12 over
Accuracy = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class Case:
    """What is right for an entry."""

    entry: Callable[[], Any]
    accuracy: Accuracy | None = None  # of outputs and targets; None: outputs predict no labels
    line: str = ""  # what a warning before the run says
    refused: str = ""  # what the line says with which the job is refused
    job: tuple[str, ...] = ()  # overrides
    draws: bool = False  # whether evaluations draw, so that losses by hand are another sample


CASES: dict[str, Case] = {}
GOOD: list[str] = []  # names of those that run
WRONG: list[str] = []  # names of those that are refused


def right(accuracy: Accuracy | None = None, line: str = "", job: tuple[str, ...] = (), **more: Any) -> Any:
    return kept(GOOD, lambda entry: Case(entry, accuracy, line, job=job, **more))


def kept(among: list[str], case: Callable[[Any], Case]) -> Any:
    def keep(entry: Callable[[], Any]) -> Callable[[], Any]:
        CASES[entry.__name__] = case(entry)
        among.append(entry.__name__)
        return entry

    return keep


def refused(says: str) -> Any:
    return kept(WRONG, lambda entry: Case(entry, refused=says))


def top(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(1) == y).double().mean())


# -- data and modules --------------------------------------------------------------------------------------------------
def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tables(target: Callable[[Tensor], Any], features: Callable[[Tensor], Tensor] = lambda x: x) -> tuple[Any, Any]:
    """Each client's rows (features(x), target(x)), and test rows, of normal x (rows, 6)."""
    parts = [draw(s, 6, seed=k) for k, s in enumerate((*SIZES, 50))]
    sets = [TensorDataset(features(x), target(x)) for x in parts]
    return sets[:-1], sets[-1]


def classes(x: Tensor, count: int = 3) -> Tensor:
    return (x @ draw(6, count, seed=9)).argmax(1)


def texts(x: Tensor) -> Tensor:
    """(rows, 5) tokens from 1 to 11; 0 is padding."""
    tokens = 1 + (x[:, :5].abs() * 7).long() % 11
    return tokens * (torch.arange(5) <= (x[:, 5:].abs() * 4).long())


def net(outputs: int = 3, inputs: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def scored(module: nn.Module, features: Callable[[Tensor], Tensor] = lambda x: x) -> Any:
    """A module whose outputs are scores of classes."""
    return module, F.cross_entropy, *tables(classes, features)


class Applied(nn.Module):
    """Parts, and what a function of them makes of the input."""

    def __init__(self, forward: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.function = forward

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


# -- what outputs mean -------------------------------------------------------------------------------------------------
@right()
def survival() -> Any:
    """Cox's partial likelihood of (time, event): a loss of the batch as a whole."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        risk = out[:, 0][y[:, 0].argsort(descending=True)]
        event = y[:, 1][y[:, 0].argsort(descending=True)]
        return ((risk.logcumsumexp(0) - risk) * event).mean()

    return net(1), loss, *tables(lambda x: torch.stack([x.sum(1).exp(), (x[:, 0] > -1).float()], 1))


@right(lambda out, y: float(((out > 0) == y).double().mean()))
def predict_that_changes_outputs() -> Any:
    """`predict` works in place; the loss is of the outputs as they were."""
    module = nn.Sequential(net(1), nn.Flatten(0))
    loss = lambda out, y: F.binary_cross_entropy_with_logits(out, y.float())  # noqa: E731
    return module, loss, *tables(lambda x: classes(x) % 2), lambda out: out.sigmoid_().round_().long()


def pixels(x: Tensor) -> Tensor:
    """(rows, 3, 3) classes; 255 is no class."""
    found = (x[:, :3, None] + x[:, None, 3:] > 0).long()
    found[:, 0, 0] = 255
    return found


@right(lambda outputs, y: float((outputs.argmax(1) == y)[y != 255].double().mean()))
def segmentation_with_predict() -> Any:
    """Pixels without a class do not count."""
    module = nn.Sequential(nn.Linear(6, 18), nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 2, 3, padding=1))
    return module, nn.CrossEntropyLoss(ignore_index=255), *tables(pixels), lambda out: out.argmax(1)


# -- modules -----------------------------------------------------------------------------------------------------------
@right(top)
def tied() -> Any:
    """The last layer has the weights of the embedding: one parameter, exported under both keys."""
    module = Applied(
        lambda m, x: m.head(torch.tanh(m.scale * m.mix(m.embed(x).mean(1)))),
        embed=nn.Embedding(12, 6), mix=nn.Linear(6, 6), head=nn.Linear(6, 12, bias=False), scale=torch.tensor(2.0),
    )  # fmt: skip
    module.head.weight = module.embed.weight
    return module, F.cross_entropy, *tables(lambda x: texts(x)[:, 0], texts)


@right(top, job=("problem.l2=0.01",))
def sparse_gradients() -> Any:
    """An embedding with sparse gradients, and a regulariser."""
    return scored(nn.Sequential(nn.Embedding(12, 4, sparse=True), nn.Flatten(), nn.Linear(20, 3)), texts)


@right(top)
def hooks() -> Any:
    module = net()
    module[0].register_forward_hook(lambda m, args, out: out.clamp(-1, 1))
    module[2].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    return scored(module)


@right(top)
def batch_norm() -> Any:
    return scored(nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))


@right(top)
def frozen_batch_norm() -> Any:
    """`train` leaves the norm in evaluation: its statistics are constant."""

    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[1].eval()
            return self

    module = Frozen(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    module[1].running_mean.fill_(0.5)
    module[1].weight.requires_grad_(False)
    return scored(module)


@right(draws=True)
def autoencoder() -> Any:
    """A variational one draws in evaluation: the same bits twice and in a replay."""

    def forward(m: Any, x: Tensor) -> Tensor:
        mean, log_variance = m.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return torch.cat([m.decode(z), mean], 1)

    def loss(out: Tensor, x: Tensor) -> Tensor:
        return F.mse_loss(out[:, :6], x) + out[:, 6:].square().mean()

    return Applied(forward, encode=nn.Linear(6, 8), decode=nn.Linear(4, 6)), loss, *tables(lambda x: x)


@right(top)
def weight_norm() -> Any:
    module = net()
    parametrizations.weight_norm(module[0])
    return scored(module)


@right(top)
def convolutions() -> Any:
    module = Applied(
        lambda m, x: m.last((m.first(x) + m.second(m.first(x).relu())).flatten(1)),
        first=nn.Conv2d(2, 4, 3, padding=1), second=nn.Conv2d(4, 4, 3, padding=1, groups=4), last=nn.Linear(24, 3),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    images = lambda x: torch.stack([x, x**2], 1).view(-1, 2, 2, 3)  # noqa: E731
    return scored(module, images)


@right(top)
def scripted() -> Any:
    return scored(torch.jit.script(net()))


@right(top)
def unused_parts() -> Any:
    """Parameters, and a generator whose copies differ only in the address that they print."""
    unused = {"other": nn.Linear(2, 2), "nothing": nn.Parameter(torch.empty(0, 3)), "draw": np.random.RandomState(0)}
    return scored(Applied(lambda m, x: m.net(x), net=net(), **unused))


@right(top)
def numbers_and_lists() -> Any:
    scores = lambda m, x: m.temperature * sum(x @ w for w in m.each) + m.named["bias"]  # noqa: E731
    each = nn.ParameterList([nn.Parameter(draw(6, 3, seed=k)) for k in range(2)])
    named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(3))})
    return scored(Applied(scores, temperature=nn.Parameter(torch.tensor(0.5)), each=each, named=named))


@right(top)
def loss_with_the_module() -> Any:
    module = net()
    return module, lambda out, y: F.cross_entropy(out, y) + 0.01 * module[0].weight.square().sum(), *tables(classes)


@right(top)
def pixels_as_bytes() -> Any:
    module = Applied(lambda m, x: m.net(x.float() / 255), net=net())
    byte = lambda x: x.abs().mul(80).clamp(0, 255).to(torch.uint8)  # noqa: E731
    return module, F.cross_entropy, *tables(lambda x: classes(x).to(torch.uint8), byte)


@right(top)
def arrays_and_numbers() -> Any:
    sets, test = tables(classes)
    *rows, tests = ([(x.numpy(), int(y)) for x, y in part] for part in (*sets, test))
    return net(), F.cross_entropy, rows, tests


@right(top, job=("problem.torch.buffers=local",))
def own_statistics() -> Any:
    """Statistics that each client keeps: evaluations take those of the test rows."""
    return batch_norm()


@right(top, job=("algorithm={name: asypfl, step_size: 0.1, local_epochs: 1}", "clock.delay={name: speed}"))
def part_in_evaluation() -> Any:
    """A norm that the entry put into evaluation mode: `train` of the whole module ends that, as in a loop of torch."""
    module, *rest = batch_norm()
    module[1].eval()
    return module, *rest


@right(line="accuracies are NaN")
def batches_of_dicts() -> Any:
    """A batch is input and target at once, as in libraries of language models; a loss of names."""
    sets, test = tables(classes)
    named = [[{"x": x, "label": y} for x, y in part] for part in (*sets, test)]
    module = Applied(lambda m, batch: m.net(batch["x"]), net=net())
    return module, lambda out, batch: F.cross_entropy(out, batch["label"]), named[:-1], named[-1]


@right(top)
def inputs_in_pairs() -> Any:
    """Rows ((x1, x2), y), for a module that takes a pair: torch's own collate function makes batches of them."""
    module = Applied(lambda m, pair: m.net(pair[0]) + m.linear(pair[1]), net=net(), linear=nn.Linear(6, 3))
    sets, test = tables(classes)
    *pairs, tests = ([((x, x.square()), y) for x, y in rows] for rows in (*sets, test))
    return module, F.cross_entropy, pairs, tests, None, default_collate


@right(top)
def graphs() -> Any:
    """Graphs of unlike sizes, of which a batch is one graph with a sparse matrix of neighbours."""

    def graph(x: Tensor, y: Tensor) -> Any:
        nodes = 3 + int(x[0].abs() * 5) % 4
        features = torch.outer(torch.arange(1.0, nodes + 1), x).cos()
        return {"features": features, "edges": torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])}, y

    def collate(rows: Any) -> Any:
        graphs, labels = zip(*rows)
        sizes = torch.tensor([len(each["features"]) for each in graphs])
        begins, total = sizes.cumsum(0) - sizes, int(sizes.sum())
        edges = torch.cat([each["edges"] + begin for each, begin in zip(graphs, begins)], 1)
        neighbours = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (total, total), check_invariants=False)
        features = torch.cat([each["features"] for each in graphs])
        return (features, neighbours, torch.arange(len(rows)).repeat_interleave(sizes)), torch.stack(labels)

    def forward(m: Any, batch: Any) -> Tensor:
        features, neighbours, graph = batch
        hidden = m.first(features + torch.sparse.mm(neighbours, features)).relu()
        return m.last(hidden.new_zeros(int(graph[-1]) + 1, 8).index_add(0, graph, hidden))  # type: ignore[no-any-return]

    sets, test = tables(classes)
    *every, tests = ([graph(x, y) for x, y in rows] for rows in (*sets, test))
    module = Applied(forward, first=nn.Linear(6, 8), last=nn.Linear(8, 3))
    return module, F.cross_entropy, every, tests, None, collate


# -- jobs that are refused ---------------------------------------------------------------------------------------------
@refused("share their memory")
def tied_by_memory() -> Any:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[1].weight.data = module[0].weight.data
    return scored(module)


@refused("changes calls")
def later_loss() -> Any:
    """A term that begins after many calls, counted in a closure: the first losses do not show it."""
    calls = [0]

    def late() -> bool:
        calls[0] += 1
        return calls[0] > 40

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + (0.1 * out.square().mean() if late() else 0)

    return net(), loss, *tables(classes)


class OneBuffer(Dataset):  # type: ignore[type-arg]
    """Rows that are one dict, filled anew at each access."""

    def __init__(self, rows: TensorDataset) -> None:
        self.rows, self.row = rows, {"x": torch.empty(6), "label": torch.tensor(0)}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: int) -> Any:
        x, label = self.rows[k]
        self.row["x"].copy_(x)
        self.row["label"].copy_(label)
        return self.row


@refused("rows that have memory of their own")
def one_buffer_for_all_rows() -> Any:
    sets, test = tables(classes)
    module = Applied(lambda m, batch: m.net(batch["x"]), net=net())
    loss = lambda out, batch: F.cross_entropy(out, batch["label"])  # noqa: E731
    return module, loss, [*map(OneBuffer, sets)], OneBuffer(test)


@refused("it exits with status 2; expected")
def parser_of_the_command_line() -> Any:
    """What argparse does with words that are not its own, but for its own line on stderr."""
    raise SystemExit(2)


@refused("changes the working directory to /")
def other_working_directory() -> Any:
    """The run file would be elsewhere than the job says."""
    os.chdir("/")
    return net(), F.cross_entropy, *tables(classes)


@refused("changes 0.weight")
def embedding_with_a_maximum() -> Any:
    module = nn.Sequential(nn.Embedding(12, 4, max_norm=0.5), nn.Flatten(), nn.Linear(20, 3))
    return scored(module, texts)


@refused("no others are trained")
def layers_in_a_list() -> Any:
    """Layers that are no parts of the module, as in a list of Python's, would never be trained."""
    layers = [nn.Linear(6, 6), nn.Linear(6, 6)]
    module = Applied(lambda m, x: m.last(m.hidden[1](m.hidden[0](x).relu()).relu()), last=nn.Linear(6, 3))
    module.hidden = layers
    return scored(module)


@refused("is another each time")
def masked_tokens() -> Any:
    """A collate function that masks tokens at random: draws belong into the data set or the module."""

    def collate(rows: Any) -> Any:
        tokens = torch.stack([x for x, _ in rows])
        masked = torch.rand(tokens.shape) < 0.5
        return tokens.masked_fill(masked, 0), torch.where(masked, tokens, -100)

    module = nn.Sequential(nn.Embedding(12, 8), nn.Flatten(), nn.Linear(40, 60), nn.Unflatten(1, (12, 5)))
    sets, test = tables(classes, texts)
    return module, F.cross_entropy, sets, test, None, collate
