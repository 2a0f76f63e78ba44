"""Request of a scaler for the current decisions of models."""

from typing import Final

from loadline.errors import BusUnavailable
from loadline.ports import Bus
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.messages import AnnounceRequest, OperatorReply
from loadline.wire.subjects import Subjects

_TIMEOUT_S: Final = 1.0


async def request_announcements(bus: Bus, subjects: Subjects, models: tuple[str, ...], by: str) -> bool:
    """Request current decisions, since completed ones are not announced any more; return True if a leader answers.

    Every agent that leads some of the models announces theirs, and one of them answers. ``by`` names the scaler.
    """
    try:
        payload = await bus.request(subjects.api("announce"), encode(AnnounceRequest(models, by)), _TIMEOUT_S)
    except BusUnavailable:
        return False
    reply = decode_as(OperatorReply, payload)
    return not isinstance(reply, Rejected) and reply.accepted
