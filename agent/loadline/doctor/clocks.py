"""Checks of clocks: each is compared with that of this host. NATS does not tell its time."""

from typing import Final

from loadline.adapters.etcd_probe import MemberStatus
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.findings import Finding, failed, ok, skipped, warning
from loadline.doctor.store_facts import StoreFacts

_WARN_MS: Final = 2_000
"""A second more than etcd's resolution, and than the age of a report."""
_MAX_MS: Final = 60_000
"""Scalers ignore drain reports of workers whose clocks are ahead by more."""
_REMEDY: Final = "Run chrony or systemd-timesyncd on both hosts."
_AGE_REMEDY: Final = "Read the log of their source, and have Prometheus read the engines every 15 s."


def clock_findings(bus: BusFacts, store: StoreFacts) -> list[Finding]:
    """Compare the clocks of etcd, agents and workers with that of this host, and tell how old figures are."""
    members = {url: status for url, status in store.members.items() if isinstance(status, MemberStatus)}
    etcd = {url: s.clock_offset_ms for url, s in members.items() if s.clock_offset_ms is not None}
    agents = {answer.status.agent: answer.clock_offset_ms for answer in bus.agents}
    unsure = {name: lag_ms for name, lag_ms in bus.single_lags_ms.items() if lag_ms > _MAX_MS}
    ages = bus.figure_ages_ms | {name: lag_ms for name, lag_ms in bus.single_lags_ms.items() if name not in unsure}
    old = {name: age_ms for name, age_ms in ages.items() if age_ms > _WARN_MS}
    workers = bus.worker_clocks_ms | {name: -age_ms for name, age_ms in ages.items() if name not in old}
    found = [_compared("clock of etcd", etcd), _compared("clocks of agents", agents)]
    if workers or not (old or unsure):
        found.append(_compared("clocks of workers", workers))
    if old:
        found.append(_aged("figures of workers", old))
    if unsure:
        name, lag_ms = max(unsure.items(), key=lambda one: (one[1], one[0]))
        text = f"the time in the only report of {name} is {lag_ms / 1000:,.1f} s behind this host"
        found.append(warning("clocks or figures of workers", text, f"Either: {_REMEDY} Or: {_AGE_REMEDY}"))
    return found


def _compared(check: str, offsets_ms: dict[str, int]) -> Finding:
    if not offsets_ms:
        return skipped(check, "no program reported its time", "Remedy the connections above, or start what is missing.")
    name, offset_ms = max(offsets_ms.items(), key=lambda one: (abs(one[1]), one[0]))
    if abs(offset_ms) <= _WARN_MS:
        return ok(check, f"within {_WARN_MS / 1000:.0f} s of this host ({len(offsets_ms)} compared)")
    side = "ahead of" if offset_ms > 0 else "behind"
    text = f"{name} is {abs(offset_ms) / 1000:,.1f} s {side} this host"
    return (failed if abs(offset_ms) > _MAX_MS else warning)(check, text, _REMEDY)


def _aged(check: str, ages_ms: dict[str, int]) -> Finding:
    """Tell the oldest figures of a source: an interval of Prometheus is no fault, more than a minute may be one."""
    name, age_ms = max(ages_ms.items(), key=lambda one: (one[1], one[0]))
    text = f"those of {name} are {age_ms / 1000:,.1f} s old"
    return warning(check, text, _AGE_REMEDY) if age_ms > _MAX_MS else ok(check, text)
