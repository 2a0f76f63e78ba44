"""Candidacy: the place of an agent among the live agents that may lead a shard.

Agents rank each other for each shard by rendezvous hashing, so that all agree without a word: an agent that joins or
leaves changes the first rank of its shards only. Ranks decide who campaigns first, and never who leads: that is the
leader's key. Agents that disagree about who lives delay a campaign by a second, and no shard stays without a leader.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from msgspec import Struct, field

YIELD_MS: Final = 500
"""Delay of a campaign for each rank: the first-ranked agent sees the same removed key, and takes milliseconds."""
YIELD_RANKS_MAX: Final = 2
"""Ranks that delay a campaign: a shard is led 1 s after its leader's key is gone, however many agents are cut off."""
HANDOVER_MS: Final = 5_000
"""Time for which a leader lets a higher-ranked agent receive reports before it hands over."""
RETURNED_MS: Final = 30_000
"""A shard that returns within this time after a handover was not taken: the higher-ranked agent cannot lead."""
HANDOVER_RETRY_MS: Final = 60_000
"""Time until the next handover of a shard that was not taken."""


def stable_hash(text: str) -> bytes:
    """Return a hash that is equal in all processes and versions."""
    return sha256(text.encode()).digest()


def rank_of(agent: str, agents: Iterable[str], scope: str) -> int:
    """Return the rank of an agent for a scope among the live agents, which it joins if they lack it; 0 is first."""
    ranked = sorted({agent, *agents}, key=lambda name: (stable_hash(f"{scope}\0{name}"), name))
    return ranked.index(agent)


class Candidacy(Struct):
    """Candidacy of one agent for one shard."""

    agent: str
    agents: list[str] = field(default_factory=list)
    """Live agents, by name."""
    known: bool = False
    """True once the live agents are known; until then the agent does not campaign."""
    rank: int = 0
    awaits_reports: bool = False
    """True while a campaign waits for the subscriptions to the reports of the shard's models."""
    handover_at_ms: int = 0
    """Time at which the leader hands over to a higher-ranked agent; 0: never."""
    handing_over: bool = False
    """True from then until it has stepped down: nothing new is decided."""
    handed_over_at_ms: int = 0
    """Time of the last handover that no other agent is known to have taken, Unix ms; 0: none."""

    @property
    def yield_ms(self) -> int:
        """Delay of a campaign in favour of higher-ranked agents."""
        return min(self.rank, YIELD_RANKS_MAX) * YIELD_MS

    def update(self, agents: list[str], scope: str) -> None:
        """Replace the live agents."""
        self.agents, self.known, self.rank = agents, True, rank_of(self.agent, agents, scope)

    def consider_handover(self, now: int) -> None:
        """Plan the handover of a leader to a higher-ranked agent, or give up the plan if there is none any more."""
        if not self.rank:
            self.handover_at_ms = 0
        elif not self.handover_at_ms:
            # Simulators may count time from 0.
            returned = self.handed_over_at_ms and now - self.handed_over_at_ms < RETURNED_MS
            self.handover_at_ms = now + (HANDOVER_RETRY_MS if returned else HANDOVER_MS)

    def follow(self, leader: str) -> None:
        """Record that another agent leads: it has taken what was handed over, whatever becomes of it."""
        self.awaits_reports = False
        if leader != self.agent:  # this agent's last heartbeats may be seen after its term
            self.handed_over_at_ms = 0

    def end_term(self, now: int) -> None:
        """Record that the term has ended, by a handover or otherwise."""
        if self.handing_over:
            self.handed_over_at_ms = now
        self.handover_at_ms, self.handing_over = 0, False
