"""Permissions that the login of an agent needs on NATS and in etcd.

Probes are published on subjects with the token ``%doctor``, which no model, worker or agent can have: percent-encoding
writes a percent sign as ``%25``.
"""

from typing import Final

from loadline.doctor.deployment import Deployment
from loadline.ports import Write
from loadline.runtime.turns import FRAME_KINDS
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

PROBE_TOKEN: Final = "%doctor"  # noqa: S105 - a token of a subject
_METHODS: Final = ("status", "explain", "pause", "resume")
_SCALING_METHODS: Final = ("decisions", "drain", "announce")


def subscriptions(deployment: Deployment) -> list[str]:
    """Return the subjects to which an agent subscribes, and that of replies to its own requests."""
    subjects, only = Subjects(deployment.root), deployment.only
    methods = _METHODS if only else (*_METHODS, *_SCALING_METHODS)
    service = f"loadline-{only}" if only else "loadline"
    return [
        *(subjects.all_of(kind) for kind in FRAME_KINDS),
        *(subjects.api(method, only) for method in methods),
        f"$SRV.PING.{service}",
    ]


def reply_subject(deployment: Deployment) -> str:
    """Return a subject of replies, of the form that the client library uses."""
    return f"{deployment.nats.inbox_prefix}.doctor.*"


def publishes(deployment: Deployment) -> list[str]:
    """Return a probe of each kind of subject on which an agent publishes."""
    prefix, only = Subjects(deployment.root).prefix, deployment.only
    kinds = ("migrate",) if only else ("drain", "migrate")
    decisions = [] if only else [f"{prefix}.decision.{PROBE_TOKEN}"]
    commands = [f"{prefix}.{kind}.{PROBE_TOKEN}.{PROBE_TOKEN}.{PROBE_TOKEN}" for kind in kinds]
    return [*decisions, *commands, f"{prefix}.status.{PROBE_TOKEN}"]


def status_subject(deployment: Deployment) -> str:
    """Return the subject of requests for the status of all agents."""
    return Subjects(deployment.root).api("status", deployment.only)


def writes(deployment: Deployment) -> list[Write]:
    """Return a write of each kind of key that an agent writes or removes."""
    keys = Keys(deployment.namespace)
    model = next(iter(deployment.models), "doctor")
    return [
        Write(keys.leader(deployment.leader_scope), b"doctor"),
        Write(keys.decision(model), b"doctor"),
        Write(keys.learned(model), b"doctor"),
        Write(keys.pause(model), b"doctor"),
        Write(keys.worker(model, "doctor", "doctor"), None),
    ]
