"""Handwritten digits at several sites: scikit-learn's SGDClassifier, one pass over a site's rows in each contact."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss


class Site:
    def __init__(self, x, y, x_test, y_test):
        self.x, self.y, self.x_test, self.y_test, self.samples = x, y, x_test, y_test, len(x)
        self.model = SGDClassifier(loss="log_loss", alpha=1e-3, learning_rate="constant", eta0=0.01)
        self.model.partial_fit(x[:1], y[:1], classes=range(10))  # makes its arrays

    def set_model(self, x):
        self.model.coef_, self.model.intercept_ = x["coef"], x["intercept"]

    def fit(self, x, contact):
        self.set_model(x)
        self.model.set_params(random_state=contact.seed, eta0=contact.step_size)
        for _ in range(contact.epochs or 1):
            self.model.partial_fit(self.x, self.y)
        return {"coef": self.model.coef_, "intercept": self.model.intercept_}, (contact.epochs or 1) * self.samples

    def evaluate(self, x):
        self.set_model(x)
        return {
            "train_loss": log_loss(self.y, self.model.predict_proba(self.x), labels=range(10)),
            "test_accuracy": self.model.score(self.x_test, self.y_test),
            "rows": len(self.x_test),
        }

    def save(self):
        return {"t": self.model.t_}  # the number of rows seen so far, on which other learning rates depend

    def load(self, saved):
        self.model.t_ = saved["t"]


def clients(sites=8):
    """The first model, and sites whose digits are unlike: the rows are sorted by digit, more or less."""
    digits = load_digits()
    order = np.argsort(digits.target + np.random.default_rng(0).normal(0, 3, len(digits.target)))
    made = []
    for rows in np.array_split(order, sites):
        x, y, cut = digits.data[rows] / 16, digits.target[rows], len(rows) * 4 // 5
        made.append(Site(x[:cut], y[:cut], x[cut:], y[cut:]))
    return {"coef": np.zeros((10, 64)), "intercept": np.zeros(10)}, made
