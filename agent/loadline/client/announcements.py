"""Request of a scaler for the current decisions of models."""

from collections.abc import Sequence
from typing import Final

from loadline.errors import BusUnavailable
from loadline.ports import Bus
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import AnnounceReply, AnnounceRequest
from loadline.wire.subjects import Subjects

_TIMEOUT_S: Final = 1.0


async def request_announcements(bus: Bus, subjects: Subjects, models: Sequence[str], by: str) -> frozenset[str]:
    """Request current decisions, since completed ones are not announced any more.

    Every agent that leads some of the models announces theirs, and one of them answers: request the others again.

    Args:
        bus: The bus.
        subjects: Subjects of the agents.
        models: Models of the scaler.
        by: Name of the scaler.

    Returns:
        The models for which an agent has answered; none if no leader answers.
    """
    try:
        payload = await bus.request(subjects.api("announce"), encode(AnnounceRequest(tuple(models), by)), _TIMEOUT_S)
    except BusUnavailable:
        return frozenset()
    reply = decode_as(AnnounceReply, payload)
    if isinstance(reply, Rejected) or not reply.accepted:
        return frozenset()
    return frozenset(models).intersection(reply.models or models)
