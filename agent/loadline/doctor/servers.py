"""Checks of NATS and etcd themselves: reached, version, limits."""

import re
from typing import Final

from loadline.adapters.etcd_probe import MemberStatus
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, failed, first_of, ok, warning
from loadline.doctor.store_facts import StoreFacts
from loadline.runtime.status_parts import PART_BYTES_MAX

NATS_MIN: Final = (2, 11)
ETCD_MIN: Final = (3, 5)
# Until these releases, users can pass their roles with transactions.
_ETCD_FIXED: Final = {(3, 5): (3, 5, 30), (3, 6): (3, 6, 11)}
_QUOTA_DEFAULT: Final = 2 * 2**30
_QUOTA_SHARE_MAX: Final = 0.8
_MIB: Final = 2**20


def nats_findings(facts: BusFacts, deployment: Deployment) -> list[Finding]:
    """Check that NATS is reached, its version, and that messages fit into its payload limit."""
    check, urls = "nats", ", ".join(deployment.nats.servers)
    if facts.problem:
        login = "authorization" in facts.problem.lower()
        remedy = (
            "Set nats.user and nats.password_file (or nats.credentials_file) to a login of the server."
            if login
            else "Start nats-server, or correct nats.servers and the TLS files."
        )
        return [failed(check, f"{urls}: {facts.problem}", remedy)]
    user = f" as {deployment.nats.user}" if deployment.nats.user else ""
    found = [ok(check, f"connected to {facts.server}{user}, nats-server {facts.version}")]
    if _numbers(facts.version)[:2] < NATS_MIN:
        found = [warning(check, f"nats-server {facts.version} is not tested with loadline", "Use 2.11 or newer.")]
    return [*found, _payload(facts, deployment)]


def _payload(facts: BusFacts, deployment: Deployment) -> Finding:
    check, limit = "nats payload", facts.payload_bytes_max
    needed = max(deployment.nats.frame_bytes_max, PART_BYTES_MAX)
    if limit >= needed:
        return ok(check, f"the server accepts {limit:,} bytes")
    text = f"the server accepts {limit:,} bytes, messages may have {needed:,}; it closes connections that send more"
    return failed(check, text, f"Set max_payload of nats-server to {needed} or more.")


def etcd_findings(facts: StoreFacts, deployment: Deployment) -> list[Finding]:
    """Check that etcd is read, and the version, alarms and size of each member."""
    check, endpoints = "etcd", ", ".join(deployment.etcd.endpoints)
    silent = [f"{url} ({status})" for url, status in facts.members.items() if isinstance(status, str)]
    members = {url: status for url, status in facts.members.items() if isinstance(status, MemberStatus)}
    if facts.problem:
        return [failed(check, f"{endpoints}: {facts.problem}", _login_remedy(facts.problem)), *_members(members)]
    user = f" as {deployment.etcd.user}" if deployment.etcd.user else ""
    found = ok(check, f"read {endpoints}{user}")
    if silent:
        remedy = "Start these members, or remove them from etcd.endpoints."
        found = warning(check, f"no answer from {first_of(silent)}", remedy)
    return [found, *_versions(members, deployment), *_members(members)]


def _login_remedy(problem: str) -> str:
    if any(sign in problem for sign in ("permission denied", "authentication failed", "user name is empty")):
        return "Run deploy/etcd/roles.sh, and set etcd.user and etcd.password_file."
    return "Start etcd, or correct etcd.endpoints and the TLS files."


def _versions(members: dict[str, MemberStatus], deployment: Deployment) -> list[Finding]:
    check, versions = "etcd version", sorted({status.version for status in members.values()})
    if not versions:
        return []
    text = f"etcd {', '.join(versions)}"
    oldest = min(map(_numbers, versions))
    if oldest[:2] < ETCD_MIN:
        return [failed(check, f"{text}: too old", "Use etcd 3.5 or newer.")]
    if deployment.etcd.user and oldest < _ETCD_FIXED.get(oldest[:2], oldest):
        remedy = "Use etcd 3.6.11 or newer (or 3.5.30)."
        return [warning(check, f"{text}: users can pass permissions with transactions", remedy)]
    return [ok(check, text)]


def _members(members: dict[str, MemberStatus]) -> list[Finding]:
    check = "etcd space"
    alarms = sorted({alarm for status in members.values() for alarm in status.alarms})
    if any("NOSPACE" in alarm for alarm in alarms):
        remedy = "Compact and defragment etcd, then run `etcdctl alarm disarm`; set --auto-compaction-mode."
        return [failed(check, "the alarm NOSPACE is raised: etcd refuses writes, so nothing is decided", remedy)]
    if alarms:
        return [failed(check, first_of(alarms), "See `etcdctl endpoint status` and etcd's log.")]
    found = []
    for url, status in members.items():
        quota = status.quota or _QUOTA_DEFAULT
        assumed = "" if status.quota else ", the default"
        text = f"{url} uses {status.db_size / _MIB:.1f} MiB of {quota / _MIB:.0f} MiB{assumed}"
        remedy = "Set --auto-compaction-mode and defragment, or raise --quota-backend-bytes."
        full = status.db_size > _QUOTA_SHARE_MAX * quota
        found.append(warning(check, text, remedy) if full else ok(check, text))
    return found


def _numbers(version: str) -> tuple[int, int, int]:
    major, minor, patch, *_ = (*map(int, re.findall(r"\d+", version.partition("-")[0])), 0, 0, 0)
    return major, minor, patch
