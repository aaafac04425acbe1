"""What crosses the wire: a header of 16 float64, then each vector as it is. Integers up to 2**53 are exact."""

from __future__ import annotations

import numpy as np

from mpifl.algorithms.base import Message, Update

WIDTH = 16  # numbers in a header
NUMBERS = 6  # most numbers that a message or an update carries
WORK, UPDATE, STOP, BYE, ERROR = range(1, 6)


def header() -> np.ndarray:
    """An empty header, (16,) float64."""
    return np.zeros(WIDTH)


def pack_message(h: np.ndarray, i: int, message: Message, delay: float) -> None:
    """[kind, client, vectors, version, round, delay, -, -, numbers' count, numbers...]"""
    h[:9] = WORK, i, len(message.vectors), message.version, message.round, delay, 0, 0, len(message.numbers)
    h[9 : 9 + len(message.numbers)] = message.numbers


def unpack_message(h: np.ndarray, vectors: tuple[np.ndarray, ...]) -> tuple[int, Message, float]:
    """(client, message, delay in s)"""
    _, i, _, version, round, delay, _, _, count, *numbers = h.tolist()
    return int(i), Message(vectors, tuple(numbers[: int(count)]), int(version), int(round)), delay


def pack_update(h: np.ndarray, i: int, u: Update) -> None:
    """[kind, client, vectors, version, round, local steps, norm, seconds, numbers' count, numbers...]"""
    h[:9] = UPDATE, i, len(u.vectors), u.version, u.round, u.local_steps, u.norm, u.seconds, len(u.numbers)
    h[9 : 9 + len(u.numbers)] = u.numbers


def unpack_update(h: list[float], vectors: tuple[np.ndarray, ...]) -> Update:
    """The update whose header and vectors came."""
    _, _, _, version, round, steps, norm, seconds, count, *numbers = h
    return Update(vectors, int(steps), tuple(numbers[: int(count)]), int(version), int(round), norm, seconds)
