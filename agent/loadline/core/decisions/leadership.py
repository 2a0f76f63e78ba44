"""Leader election: the leader's lease as a state machine in this agent's own time.

    follower --LeadershipWon--> leading --deadline passed, lease lost, key changed, bus lost--> follower
                                   |
                                   +--ShutdownRequested--> resigned

The lease is trusted until ``deadline_ms``: the time at which the last successful renewal was *requested*, plus the TTL,
minus a margin. A process that was paused resumes after its deadline and steps down before it commits anything. If it
still tried, the store would refuse: every commit compares the lease of the leader's key.

A live lease does not prove a live leader: with some releases of etcd, any client may renew any lease. So the leader
writes its key at every renewal. A follower removes a key that was not written for the TTL plus the margin, on condition
that it still has the mod revision that the follower saw. By then its owner, if it is alive, has stepped down.

Where models are shared out to agents, each shard has such an election, and a ``Candidacy`` says whose turn it is.

Epochs rise even if the store loses data, since scalers and workers refuse lower ones: an epoch is at least the time of
its campaign in Unix ms, and above every epoch that the store or this agent knows.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.decisions.candidacy import Candidacy
from loadline.core.vocabulary.effects import Campaign, Effect, RenewLease, Resign
from loadline.core.vocabulary.events import LeaderChanged, LeadershipWon, LeaseRenewalFailed, LeaseRenewed


class LeadershipKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the leader election."""

    lease_ttl_s: Annotated[
        int, Meta(ge=2, le=600, description="TTL of the leader's lease; a failed leader is replaced after it.")
    ] = 10
    margin_ms: Annotated[
        int, Meta(ge=0, description="Time before the possible end of its lease at which a leader stops committing.")
    ] = 2_000
    retry_ms: Annotated[int, Meta(ge=1, description="Time between two campaigns while no leader is known.")] = 500
    blind_after_ms: Annotated[
        int, Meta(ge=1, description="Time without a connection to NATS after which a leader steps down.")
    ] = 15_000


BLIND_MS: Final = 60_000
"""Interval of campaigns of an agent that waits for reports; their subscription triggers one at once."""

Phase = Literal["follower", "leading", "resigned"]


class Leadership(Struct):
    """State of this agent in the election of one scope."""

    scope: str
    knobs: LeadershipKnobs
    phase: Phase = "follower"
    epoch: int = 0
    revision: int = 0
    """Revision of the store at which this agent last won."""
    lease_id: int = 0
    deadline_ms: int = 0
    since_ms: int = 0
    renew_at_ms: int = 0
    awaiting: bool = False
    """True while a campaign or a renewal is in progress; there is at most one."""
    campaign_at_ms: int = 0
    leader: str = ""
    beat: int = 0
    """Mod revision of the leader's last known heartbeat, which is a write of its key."""
    beat_at_ms: int = 0
    """Time at which this agent saw that heartbeat, in Unix ms."""
    unleased: bool = False
    """True if the leader's key has no lease, so that no agent wrote it."""
    key_free: bool = False
    """True if the leader's key was removed during a campaign, whose result may be older than the removal."""
    epoch_max: int = 0
    """Highest epoch known, even if the store has lost it."""
    epoch_before: int = 0
    """Highest epoch known before that one."""
    others_led: bool = False
    """True if another agent has led between the last two terms of this one, as far as it knows."""
    bus_lost_at_ms: int = 0
    """Time at which the bus was lost, in Unix ms; -1 while it is connected, 0 if it never was."""
    candidacy: Candidacy | None = None
    """Place among the agents that share the models; None: one agent leads all models, and the others stand by."""
    layout: str = ""
    """Partition of the models into shards; see ``Campaign``."""
    agent: str = ""
    """Name of this agent."""

    def may_commit(self, now: int) -> bool:
        """Return True if a commit may start now."""
        return self.phase == "leading" and now < self.deadline_ms

    def tick(self, now: int) -> list[Effect]:
        """Return the campaign, renewal or resignation that is due."""
        if self.phase == "leading":
            if now >= self.deadline_ms:
                return self.step_down(now)
            if self._bus_lost_too_long(now):
                return self.step_down(now)
            if self.candidacy is not None and 0 < self.candidacy.handover_at_ms <= now:
                self.candidacy.handover_at_ms, self.candidacy.handing_over = 0, True
            if now >= self.renew_at_ms and not self.awaiting:
                self.awaiting = True
                return [RenewLease(self.scope, self.lease_id, requested_at_ms=now)]
        elif self.phase == "follower" and self._may_campaign() and now >= self.campaign_at_ms:
            if self._blind(now):
                self.campaign_at_ms = now + (self.knobs.retry_ms if self.candidacy is None else BLIND_MS)
                return []
            self.awaiting, self.key_free = True, False
            depose = self.beat if self.leader and now >= self._heartbeat_expires_at_ms() else 0
            epoch_min = max(now, self.epoch_max + 1)
            return [Campaign(self.scope, self.knobs.lease_ttl_s, now, epoch_min, depose, self.layout)]
        return []

    def next_wake(self) -> int | None:
        """Return the time at which ``tick`` is next due; None until an event."""
        if self.phase == "leading":
            wake = self.deadline_ms if self.awaiting else min(self.deadline_ms, self.renew_at_ms)
            if self.candidacy is not None and self.candidacy.handover_at_ms:
                wake = min(wake, self.candidacy.handover_at_ms)
            return wake if self.bus_lost_at_ms < 0 else min(wake, self.bus_lost_at_ms + self.knobs.blind_after_ms)
        return self.campaign_at_ms if self.phase == "follower" and self._may_campaign() else None

    @property
    def handing_over(self) -> bool:
        """True while this leader starts nothing new, since another agent takes over."""
        return self.candidacy is not None and self.candidacy.handing_over

    @property
    def wants_reports(self) -> bool:
        """True if this agent needs the reports of its models: it leads, leads next, or is about to campaign."""
        if self.candidacy is None or self.phase == "leading":
            return True
        return (
            self.phase == "follower"
            and self.candidacy.known
            and not (self.candidacy.rank and not self.candidacy.awaits_reports)
        )

    def won(self, event: LeadershipWon, now: int) -> list[Effect]:
        """Start to lead after a campaign; release the lease if the deadline passed or this agent has resigned."""
        self.awaiting = False
        self._know_epoch(event.epoch)  # the watch may have reported this term already
        self.others_led = self.epoch_before > self.epoch
        self.lease_id, self.epoch, self.revision = event.lease_id, event.epoch, event.revision
        self._extend(event.requested_at_ms)
        if self.phase == "resigned" or now >= self.deadline_ms:
            return self._release_lease(now)
        self.phase, self.since_ms, self.leader = "leading", now, ""
        if self.candidacy is not None:
            self.candidacy.consider_handover(now)
        return []

    def lost_campaign(self, leader: str, beat: int, now: int) -> None:
        """Record that another agent leads, or that the store was unreachable."""
        self.awaiting = False
        self._follow("" if self.key_free else leader, beat, now)

    def renewed(self, event: LeaseRenewed) -> None:
        """Extend the deadline after a renewal; ignored after stepping down."""
        if event.lease_id == self.lease_id and self.phase == "leading":
            self.awaiting = False
            self._extend(event.requested_at_ms)

    def renewal_failed(self, event: LeaseRenewalFailed, now: int) -> list[Effect]:
        """Retry until the deadline, or step down at once if the lease is gone."""
        if event.lease_id != self.lease_id or self.phase != "leading":
            return []
        self.awaiting = False
        self.renew_at_ms = now + self.knobs.retry_ms
        return self.step_down(now) if event.lost else []

    def leader_changed(self, event: LeaderChanged, now: int) -> list[Effect]:
        """Record that the leader's key was written or removed."""
        self._know_epoch(event.epoch)
        if self.phase == "leading":
            if event.store_went_back:
                self.revision = min(self.revision, event.revision)  # it counts on from there
            # Changes before this term, such as the removal that this agent's campaign won by, do not affect it.
            if event.lease_id != self.lease_id and event.revision >= self.revision:
                return self.step_down(now)
            self._record_heartbeat(event.beat, now)
            return []
        self.key_free = not event.leader and self.awaiting
        self._follow(event.leader, event.beat, now)
        if not event.leader:
            self.campaign_at_ms = now + self._yield_ms()
        return []

    def becomes_unleased(self, event: LeaderChanged) -> bool:
        """Record whether the leader's key has a lease; return True if it has none and had one, or did not exist."""
        before, self.unleased = self.unleased, bool(event.leader) and not event.lease_id
        return self.unleased and not before

    def has_namesake(self, event: LeaderChanged) -> bool:
        """Return True if another agent leads under this agent's name; call it before ``leader_changed``.

        The key may be of this name's former process, so only a further heartbeat is proof; during a campaign it may be
        the one that this agent has just won.
        """
        is_other = self.phase != "leading" and not self.awaiting and event.lease_id != self.lease_id
        return is_other and event.leader == self.leader == self.agent and event.beat != self.beat

    def agents_changed(self, agents: list[str], now: int) -> None:
        """Record which agents live; campaign for a free key if it is this agent's turn, or plan to hand over."""
        if self.candidacy is None:
            return
        was_known = self.candidacy.known
        self.candidacy.update(agents, self.scope)
        if self.phase == "leading":
            self.candidacy.consider_handover(now)
        elif not self.leader and not (was_known and self.candidacy.rank):
            self.campaign_at_ms = now + self._yield_ms()

    def layout_changed(self, layout: str) -> None:
        """Give up the lead of a shard whose models are others now; it is led again when all agents agree."""
        if self.candidacy is not None and layout != self.layout:
            self.layout = layout
            self.candidacy.handing_over = self.phase == "leading"

    def bus_changed(self, connected: bool, now: int) -> None:  # noqa: FBT001 - a fact, not a mode
        """Record that the bus disconnected or connected."""
        if connected:
            self.bus_lost_at_ms = -1
            if self.candidacy is not None and self.candidacy.awaits_reports:
                self.candidacy.awaits_reports, self.campaign_at_ms = False, now
        elif self.bus_lost_at_ms < 0:
            self.bus_lost_at_ms = now

    def step_down(self, now: int) -> list[Effect]:
        """Stop leading and release the lease, so that another agent can lead at once."""
        if self.phase != "leading":
            return []
        self.phase, self.awaiting = "follower", False
        if self.candidacy is not None:
            self.candidacy.end_term(now)
        return self._release_lease(now)

    def resign(self, now: int) -> list[Effect]:
        """Stop leading and never campaign again."""
        effects = self.step_down(now)
        self.phase = "resigned"
        return effects

    def _know_epoch(self, epoch: int) -> None:
        if epoch > self.epoch_max:
            self.epoch_before, self.epoch_max = self.epoch_max, epoch

    def _follow(self, leader: str, beat: int, now: int) -> None:
        """Record the leader, and campaign when its key has not been written for too long."""
        self.leader = leader
        if leader:
            self._record_heartbeat(beat, now)
            if self.candidacy is not None:
                self.candidacy.follow(leader)
        # The removal of the leader's key triggers a campaign at once; this one covers a removal that was missed, and a
        # key that outlives its leader.
        expires_at_ms = self._heartbeat_expires_at_ms() if leader else 0
        self.campaign_at_ms = max(now + self.knobs.retry_ms, expires_at_ms) + self._yield_ms()

    def _yield_ms(self) -> int:
        return 0 if self.candidacy is None else self.candidacy.yield_ms

    def _may_campaign(self) -> bool:
        return not self.awaiting and (self.candidacy is None or self.candidacy.known)

    def _blind(self, now: int) -> bool:
        """Return True if this agent receives no reports; one that shares the models then has them sent first."""
        if self.candidacy is None:
            return self._bus_lost_too_long(now)
        self.candidacy.awaits_reports = self.bus_lost_at_ms >= 0
        return self.candidacy.awaits_reports

    def _record_heartbeat(self, beat: int, now: int) -> None:
        if beat != self.beat:
            self.beat, self.beat_at_ms = beat, now

    def _heartbeat_expires_at_ms(self) -> int:
        return self.beat_at_ms + self.knobs.lease_ttl_s * 1000 + self.knobs.margin_ms

    def _release_lease(self, now: int) -> list[Effect]:
        # Two retry intervals before the next campaign let another agent win first, since this one had a problem.
        self.campaign_at_ms = now + 2 * self.knobs.retry_ms
        return [Resign(self.scope, self.lease_id)]

    def _extend(self, requested_at_ms: int) -> None:
        ttl_ms = self.knobs.lease_ttl_s * 1000
        self.deadline_ms = requested_at_ms + ttl_ms - self.knobs.margin_ms
        self.renew_at_ms = requested_at_ms + ttl_ms // 3

    def _bus_lost_too_long(self, now: int) -> bool:
        return self.bus_lost_at_ms >= 0 and now - self.bus_lost_at_ms >= self.knobs.blind_after_ms
