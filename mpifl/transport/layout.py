"""Which rank is what: rank 0 is the server, and the others form groups of `ranks_per_client`, whose first rank leads.

Client i lives on group i mod (number of groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mpifl.errors import ConfigError
from mpifl.text import divisors, format_count, neighbours

MAX_NAMED = 8  # groups that `Layout.describe` names


class Layout(NamedTuple):
    """The ranks of a run."""

    ranks: int  # 1: there is one process, which has all clients
    per_client: int = 1  # ranks of a group

    @property
    def groups(self) -> int:
        return (self.ranks - 1) // self.per_client

    @property
    def leaders(self) -> range:
        """The first rank of each group."""
        return range(1, self.ranks, self.per_client)

    def home(self, i: Any) -> Any:
        """The leader of the group that client i lives on at first, a number or an array; 0 in one process."""
        return 0 * i if self.ranks == 1 else 1 + self.per_client * (i % max(1, self.groups))

    def group_of(self, rank: int) -> range:
        """The ranks of a rank's group."""
        leader = 1 + (rank - 1) // self.per_client * self.per_client
        return range(leader, leader + self.per_client)

    def clients_of(self, rank: int, n: int) -> range:
        """The clients that live on a rank's group at first."""
        return range((rank - 1) // self.per_client, n, self.groups)

    def check(self) -> Layout:
        """Returns this layout. Raises ConfigError where the ranks cannot be divided into groups of this size."""
        g, others = self.per_client, self.ranks - 1
        if self.ranks > 1 and others % g:
            wrong = f"rank 0 is the server, and the other {others} ranks cannot be divided into groups of {g}"
            fitting = neighbours(self.ranks, range(1 + g, self.ranks + g + 1, g))
            remedy = f"or start {fitting} ranks"
            raise ConfigError("ranks_per_client", g, wrong, neighbours(g, divisors(others)), remedy)
        return self

    def describe(self, hosts: Sequence[str]) -> str:
        """Server and groups in one line; hosts: of each rank."""
        groups = [self.group_of(leader) for leader in self.leaders]
        where = [f"{_span(ranks)} on {' and '.join(dict.fromkeys(hosts[r] for r in ranks))}" for ranks in groups]
        where = where if len(where) <= MAX_NAMED else [*where[: MAX_NAMED - 1], "...", where[-1]]
        return f"0 on {hosts[0]}, the server; {format_count(len(groups), 'group')}: {', '.join(where)}"


def _span(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])
