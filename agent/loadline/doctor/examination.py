"""All checks of a deployment, concurrent and bounded in time.

The examination writes nothing: transactions in etcd have a condition that never holds, and the probes that it publishes
have a token that no model, worker or agent can have.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from loadline.doctor import permissions, servers
from loadline.doctor.agents import agent_findings, leader_finding
from loadline.doctor.bus_facts import BusFacts
from loadline.doctor.bus_facts import gather as gather_bus
from loadline.doctor.clocks import clock_findings
from loadline.doctor.deployment import Deployment
from loadline.doctor.engines import engine_findings
from loadline.doctor.findings import Finding
from loadline.doctor.registrations import worker_findings
from loadline.doctor.scalers import scaler_finding
from loadline.doctor.store_facts import StoreFacts
from loadline.doctor.store_facts import gather as gather_store

TIME_MAX_S: Final = 30.0
"""Time for the facts of NATS and etcd together; usually 3 s."""

_Facts = TypeVar("_Facts")


async def examine(deployment: Deployment) -> list[Finding]:
    """Return the findings of all checks, in order of what the others need.

    Raises:
        ConfigError: A file of a login cannot be used.
    """
    bus, store = await _facts(deployment)
    return [
        *_server_findings(bus, store, deployment),
        *clock_findings(bus, store),
        *agent_findings(bus),
        leader_finding(bus, store),
        scaler_finding(bus, deployment),
        *worker_findings(store, deployment),
        *await engine_findings(store),
    ]


async def examine_servers(deployment: Deployment) -> list[Finding]:
    """Return the findings about NATS and etcd alone: whether they are reached, and what they permit.

    Raises:
        ConfigError: A file of a login cannot be used.
    """
    return _server_findings(*await _facts(deployment), deployment)


def _server_findings(bus: BusFacts, store: StoreFacts, deployment: Deployment) -> list[Finding]:
    return [
        *servers.nats_findings(bus, deployment),
        *permissions.nats_findings(bus, deployment),
        *servers.etcd_findings(store, deployment),
        *permissions.etcd_findings(store, deployment),
    ]


async def _facts(deployment: Deployment) -> tuple[BusFacts, StoreFacts]:
    late = f"no answer within {TIME_MAX_S:.0f} s"
    return await asyncio.gather(
        _bounded(gather_bus(deployment), BusFacts(problem=late)),
        _bounded(gather_store(deployment), StoreFacts(problem=late)),
    )


async def _bounded(facts: Awaitable[_Facts], late: _Facts) -> _Facts:
    try:
        async with asyncio.timeout(TIME_MAX_S):
            return await facts
    except TimeoutError:
        return late
