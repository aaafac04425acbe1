"""YAML as job files use it: PyYAML's safe subset, with 1e-3 a number, on and off text, no dates, and no key twice.

Imported where YAML is read or written, and not by ranks that host clients.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from mpifl.safe_input import parse_yaml, printable

FLOAT = re.compile(
    r"(?:[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF))"
    r"|\.(nan|NaN|NAN))$"
)
BOOL = re.compile(r"(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE)$")  # on and off are words in a job
FLOAT_TAG, BOOL_TAG, MERGE_TAG, DATE_TAG = (
    f"tag:yaml.org,2002:{kind}" for kind in ("float", "bool", "merge", "timestamp")
)


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert node is not None
        known = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE_TAG:
                if (key.tag, key.value) in known:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
                known.add((key.tag, key.value))
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader`, or plain YAML, would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # writes a list twice where it is used twice

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if not _is_printable(scalar):  # only double quotes have escapes
            analysis.allow_flow_plain = analysis.allow_block_plain = analysis.allow_single_quoted = False
            analysis.allow_block = False
        return analysis

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.allow_unicode = _is_printable(text)
        super().write_double_quoted(text, split)
        self.allow_unicode = True


def _is_printable(text: str) -> bool:
    """Whether the text changes neither the terminal nor the order of text; YAML itself forbids C0 and C1 only."""
    return printable(text) == text


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (FLOAT_TAG, BOOL_TAG, DATE_TAG)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(BOOL_TAG, BOOL, list("yYnNtTfF"))
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(FLOAT_TAG, FLOAT, list("-+0123456789."))


def parse(text: str) -> Any:
    """The content of a YAML text. Raises yaml.YAMLError, ValueError, and for a wrong !!tag nearly anything."""
    return parse_yaml(text, _Loader)


def dump(values: Any) -> str:
    """Values as YAML that `parse`, and any YAML library, reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**16)
