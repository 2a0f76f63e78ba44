"""Checks of the agents: who answers, their versions and configurations, who leads."""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from loadline import __version__
from loadline.core.vocabulary.status import SharingStatus
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.findings import Finding, failed, first_of, ok, skipped, warning
from loadline.doctor.store_facts import StoreFacts


def agent_findings(bus: BusFacts) -> list[Finding]:
    """Check that agents answer, and that they have the same version and configuration."""
    check = "agents"
    if bus.problem or bus.replies_denied:
        return [skipped(check, "agents cannot be asked", "Remedy the findings on NATS first.")]
    if bus.status_denied:
        remedy = "Let this user publish on api.status, as `agent` in deploy/nats/loadline.conf may."
        return [skipped(check, "this login may not ask agents for their status", remedy)]
    if not bus.agents:
        return [failed(check, "no agent answers", "Start one: loadline run --config FILE.")]
    statuses = [answer.status for answer in bus.agents]
    names = first_of([status.agent for status in statuses])
    found = [ok(check, f"{names} answer" + ("s" if len(statuses) == 1 else ""))]
    if len(statuses) == 1:
        found = [warning(check, f"only {names} answers", "Run a second agent, which takes over if this one fails.")]
    versions = sorted({status.version for status in statuses} | {__version__})
    mixed = f"{', '.join(versions)} are mixed (this program is {__version__})"
    found.append(
        ok("versions", f"loadline {__version__} everywhere")
        if len(versions) == 1
        else warning("versions", mixed, "Finish the upgrade: docs/how-to/upgrade.md.")
    )
    problems = [f"{status.agent}: {status.config_problem}" for status in statuses if status.config_problem]
    if problems:
        found.append(warning("configuration", first_of(problems), "Correct the file; the former one stays active."))
    elif len({status.config_digest for status in statuses}) > 1:
        remedy = "Give all agents the same file; the next leader decides by its own."
        found.append(warning("configuration", f"{names} have different configurations", remedy))
    return found


def _sharing_finding(shares: Sequence[SharingStatus], answering: AbstractSet[str]) -> Finding:
    """Check that agents that share the models lead all of them; one that does not answer may lead some."""
    led, shards = {shard for one in shares for shard in one.led}, max(one.shards for one in shares)
    live = first_of(sorted({name for one in shares for name in one.agents}))
    silent = sorted({name for one in shares for name in one.agents} - answering)
    if len(led) < shards and silent:
        problem = f"{shards - len(led)} of {shards} shards are led by nobody who answers; no answer from "
        remedy = "Check that they run, and that they have the agent.root and the nats.servers of the others."
        return failed("leader", problem + first_of(silent), remedy)
    if len(led) < shards:
        remedy = "Ask again after a lease; then read in the logs of the agents why they do not lead."
        return failed("leader", f"{shards - len(led)} of {shards} shards have no leader; live agents: {live}", remedy)
    return ok("leader", f"all {shards} shards are led; live agents: {live}")


def leader_finding(bus: BusFacts, store: StoreFacts) -> Finding:
    """Check that the models are led, and that their leader renews its lease."""
    shares = [answer.status.sharing for answer in bus.agents if answer.status.sharing is not None]
    if not shares:
        return _single_leader_finding(bus, store)
    return _sharing_finding(shares, {answer.status.agent for answer in bus.agents})


def _single_leader_finding(bus: BusFacts, store: StoreFacts) -> Finding:
    check = "leader"
    if store.problem:
        return skipped(check, "etcd cannot be read", "Remedy that first.")
    if store.leader is None:
        remedy = "Start an agent; one that runs tells in its log why it cannot lead."
        return failed(check, "no agent leads, so nothing is decided", remedy)
    leader, lease = store.leader, store.leader.lease
    # An epoch is the time of the campaign, or a higher number if etcd or the agent knew one.
    since_s = max(0, round(time.time() - leader.epoch / 1000))
    text = f"{leader.name} leads since {since_s:,} s, epoch {leader.epoch}"
    if lease is None:
        return warning(check, f"{text}; etcd does not tell its lease", "Check etcd's log.")
    if lease.ttl_s < 0:
        remedy = "Wait for the next election; if it stays, check etcd's log."
        return failed(check, f"{leader.name} leads with an expired lease", remedy)
    age_s = lease.granted_s - lease.ttl_s
    text += f"; lease renewed {age_s} s ago, of {lease.granted_s} s"
    answering = {answer.status.agent for answer in bus.agents}
    if answering and leader.name not in answering:
        remedy = "Check that agent: a standby replaces one that stops renewing its lease."
        return warning(check, f"{text}, but it does not answer", remedy)
    return ok(check, text)
