"""Metrics of class scores that a job may name in `evaluate.metrics`, by scikit-learn.

A metric is a function of labels (T,) int64 and scores (T, C) float64, the probability of each class (softmax of the
model's outputs); it returns one number. Here the predicted class is the one with the largest score.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

import numpy as np

MAX_METRICS = 20  # metrics of a job
MAX_NAME = 128  # bytes


def balanced_accuracy(labels: np.ndarray, scores: np.ndarray) -> float:
    """The mean, over the classes that the labels have, of the fraction of their rows that is classified rightly."""
    from sklearn.metrics import recall_score

    present = np.unique(labels)
    return float(recall_score(labels, scores.argmax(1), labels=present, average="macro", zero_division=0.0))


def macro_f1(labels: np.ndarray, scores: np.ndarray) -> float:
    """The mean, over the classes that the labels or the predictions have, of F1 = 2 TP / (2 TP + FP + FN)."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, scores.argmax(1), average="macro", zero_division=0.0))


def auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The mean, over the classes that the labels have, of the area under the ROC curve of the class against the rest.

    That area is the fraction of pairs of a row of the class and another row in which the former has the larger score of
    the class, ties counting half. Of two classes both areas are the same. NaN where all labels are the same.
    """
    from sklearn.metrics import roc_auc_score

    present = np.unique(labels)
    if len(present) < 2:
        return nan
    classes = present.tolist() if scores.shape[1] > 2 else [1]  # rounding would break ties in one of two columns alone
    return float(np.mean([roc_auc_score(labels == label, scores[:, label]) for label in classes]))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "auroc": auroc,
}


def softmax(outputs: Any) -> np.ndarray:
    """(T, C) float64 probabilities of the classes, from a model's outputs (T, C)."""
    from scipy import special

    with np.errstate(over="ignore", invalid="ignore"):  # the run may have diverged
        return np.asarray(special.softmax(np.asarray(outputs, np.float64), 1))
