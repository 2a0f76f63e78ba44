"""Plan of faults on real processes: what is done to which process, and when."""

from collections.abc import Collection
from random import Random
from typing import Final

from msgspec import Struct

CLUSTER_MEMBERS: Final = 3

KINDS: Final = {
    "kill_nats": (1, 3),
    "freeze_nats": (2, 8),
    "kill_etcd": (1, 3),
    "freeze_etcd": (2, 6),
    "compact_etcd": (0, 0),
    "move_etcd_leader": (0, 0),
    "fill_etcd": (2, 8),
    "wipe_etcd": (0, 0),
    "restore_etcd": (3, 12),
    "fill_journal_disk": (2, 15),
    "step_clock": (3, 20),
    "kill_leader": (0, 0),
    "stop_leader": (0, 0),
    "freeze_leader": (2, 12),
    "kill_standby": (0, 0),
    "revoke_leader": (0, 0),
    "cut_leader_nats": (2, 10),
    "cut_leader_etcd": (2, 10),
    "freeze_leader_etcd": (2, 8),
    "slow_leader_etcd": (2, 8),
    "change_version": (12, 25),
    "reload_agents": (0, 0),
    "kill_child": (0, 0),
    "freeze_child": (3, 8),
    "garble_child": (0, 0),
    "kill_scaler": (0, 0),
    "kill_worker": (0, 0),
    "freeze_worker": (2, 6),
    "revoke_worker": (0, 0),
    "kill_engine": (0, 0),
    "freeze_engine": (3, 12),
    "kill_sidecar": (0, 0),
    "freeze_sidecar": (3, 12),
}
"""Kinds of faults, each with the shortest and the longest time that it lasts, in s; 0: it is an instant."""
_OF_CLUSTERS: Final = frozenset({"move_etcd_leader"})
"""Kinds that need several members."""
OF_VERSIONS: Final = "change_version"
"""Kind that needs another version of the agent."""
_TOGETHER: Final = 0.25
"""Fraction of faults that begin while the one before lasts."""


class Fault(Struct, frozen=True):
    """One fault."""

    at_s: float
    """Time from the start of the load."""
    kind: str
    for_s: float
    """Time until it heals; 0: it is an instant."""

    @property
    def until_s(self) -> float:
        """Time from the start of the load at which it heals."""
        return self.at_s + self.for_s


class Plan(Struct, frozen=True):
    """A fleet, and what happens to it."""

    seed: int
    """Seed of what is drawn while it runs, such as which worker is killed."""
    duration_s: float
    """Time of the load."""
    members: int
    """Members of nats-server and of etcd."""
    secured: bool
    """True if etcd asks for logins, which end after 10 s."""
    faults: list[Fault]
    """Faults in order of time."""
    has_steady_agent: bool = False
    """True if a third agent runs that no fault ends or freezes."""
    other_revision: str = ""
    """Tag or commit of another version of the agent; empty: there is none."""


def draw(seed: int, duration_s: float, settle_s: float, only: Collection[str] = KINDS.keys() - {OF_VERSIONS}) -> Plan:
    """Return the plan of a seed, always the same one; every kind of fault comes before one comes again.

    Args:
        seed: Its seed; odd: with clusters of several members. Two seeds without logins at etcd precede two with them.
        duration_s: Time in which faults begin.
        settle_s: Time between the end of a fault and the next one, unless both come together.
        only: Kinds of faults to draw from.
    """
    rng = Random(seed)  # noqa: S311 - faults, no secrets
    members = CLUSTER_MEMBERS if seed % 2 else 1
    possible = sorted(kind for kind in only if members > 1 or kind not in _OF_CLUSTERS)
    kinds: list[str] = []
    faults: list[Fault] = []
    at_s = settle_s
    while at_s < duration_s:
        if not kinds:
            kinds = list(possible)
            rng.shuffle(kinds)
        kind = kinds.pop()
        fault = Fault(at_s, kind, rng.uniform(*KINDS[kind]))
        faults.append(fault)
        at_s += rng.uniform(0, fault.for_s) if rng.random() < _TOGETHER else fault.for_s + settle_s
    return Plan(seed, duration_s, members, secured=seed // 2 % 2 == 1, faults=faults)


def alone(fault: Fault, faults: list[Fault], settle_s: float) -> bool:
    """Return True if no other fault lasts within ``settle_s`` of a fault, so that a takeover has a time limit."""
    others = [other for other in faults if other is not fault]
    return all(other.until_s + settle_s <= fault.at_s or fault.until_s + settle_s <= other.at_s for other in others)
