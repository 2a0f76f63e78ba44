"""Checks of the login's permissions on NATS and in etcd, each of which was tried."""

from loadline.doctor import agent_role
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, failed, first_of, ok, skipped
from loadline.doctor.store_facts import StoreFacts


def nats_findings(facts: BusFacts, deployment: Deployment) -> list[Finding]:
    """Check publishes, subscriptions and replies."""
    if facts.problem:
        return [skipped("nats permissions", "NATS is not connected", "Remedy that first.")]
    return [
        _allowed("nats publish", "publish on", facts.denied_publishes, "an agent's subjects"),
        _allowed("nats subscribe", "subscribe to", facts.denied_subscriptions, "an agent's subjects"),
        _replies(facts, deployment),
    ]


def _allowed(check: str, verb: str, denied: tuple[str, ...], allowed: str) -> Finding:
    if not denied:
        return ok(check, f"may {verb} {allowed}")
    remedy = "Give this user the permissions of `agent` in deploy/nats/loadline.conf."
    return failed(check, f"may not {verb} {first_of(list(denied))}", remedy)


def _replies(facts: BusFacts, deployment: Deployment) -> Finding:
    check, prefix = "nats replies", deployment.nats.inbox_prefix
    if not facts.replies_denied:
        return ok(check, f"may receive replies on {prefix}.>")
    text = f"may not subscribe to {prefix}.>: no drain or migrate command is ever answered"
    user = deployment.nats.user or "agent"
    return failed(check, text, f'Set nats.inbox_prefix to the one that the server permits, such as "_INBOX_{user}".')


def etcd_findings(facts: StoreFacts, deployment: Deployment) -> list[Finding]:
    """Check writes of each kind of key."""
    check = "etcd permissions"
    if facts.problem:
        return [skipped(check, "etcd cannot be read", "Remedy that first.")]
    if not facts.refused:
        return [ok(check, f"may write {len(agent_role.writes(deployment))} kinds of keys of /loadline/")]
    error = next(iter(facts.refused.values()))
    remedy = "Run deploy/etcd/roles.sh for this namespace, and use its user loadline-agent."
    if "space exceeded" in error:
        remedy = "Compact and defragment etcd, then run `etcdctl alarm disarm`."
    return [failed(check, f"may not write {first_of(list(facts.refused))}: {error}", remedy)]
