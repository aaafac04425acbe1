"""The one error a user causes: a key, its value, and what would be right."""

from __future__ import annotations


class ConfigError(ValueError):
    """Bad input: command line, job, data or file. Printed as one line; the exit code is 2.

    `key` is the configuration key (or the kind of file), `value` what was given, `expected` what would be right.
    A part of the configuration that does not know where it stands raises with its own field's name; whoever read it
    adds the section with `under`.
    """

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key, self.value, self.expected = key, value, expected
        super().__init__(key, value, expected)

    def __str__(self) -> str:
        text = f"{self.key}={self.value}: {self.expected}"
        return " ".join(text.split())

    def under(self, section: str) -> ConfigError:
        """The same error with its key placed inside `section`."""
        return ConfigError(f"{section}.{self.key}" if self.key else section, self.value, self.expected)


class RunFailed(RuntimeError):
    """The run could not go on (a client raised, a rank was lost); the exit code is 3."""
