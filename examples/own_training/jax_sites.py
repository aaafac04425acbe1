"""Handwritten digits at several sites: a network in JAX, trained by momentum SGD in a compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits


def logits(model, rows):
    return jnp.tanh(rows @ model["w1"] + model["b1"]) @ model["w2"] + model["b2"]


def loss(model, rows, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(model, rows)), labels[:, None], 1).mean()


@jax.jit
def train(model, rows, labels, batches, step):
    """Momentum SGD over batches (steps, batch), the numbers of their rows."""

    def descend(state, batch):
        model, velocity = state
        gradient = jax.grad(loss)(model, rows[batch], labels[batch])
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
        return (jax.tree.map(lambda w, v: w - step * v, model, velocity), velocity), None

    (model, _), _ = jax.lax.scan(descend, (model, jax.tree.map(jnp.zeros_like, model)), batches)
    return model


class Site:
    def __init__(self, rows, labels, test):
        self.rows, self.labels, self.test, self.samples = jnp.array(rows), jnp.array(labels), test, len(rows)

    def fit(self, x, contact):
        batches = jax.random.randint(jax.random.key(contact.seed), (contact.steps, 16), 0, self.samples)
        return train(x, self.rows, self.labels, batches, contact.step_size), contact.steps

    def evaluate(self, x):
        rows, labels = self.test
        right = logits(x, rows).argmax(1) == labels
        return {"train_loss": loss(x, self.rows, self.labels), "test_accuracy": right.mean(), "rows": len(rows)}


def clients(sites=8, hidden=32):
    """The first model, drawn from NumPy's generator, which the run's seed has seeded; and the sites."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    rows, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    w1, w2 = np.random.normal(0, 0.2, (64, hidden)), np.random.normal(0, 0.2, (hidden, 10))
    x0 = {"w1": w1, "b1": np.zeros(hidden), "w2": w2, "b2": np.zeros(10)}
    parts = zip(*(np.array_split(part, 2 * sites) for part in (rows, labels)))
    every = list(parts)  # of each site, training rows and test rows
    made = [Site(*every[k], every[sites + k]) for k in range(sites)]
    return {name: part.astype(np.float32) for name, part in x0.items()}, made
