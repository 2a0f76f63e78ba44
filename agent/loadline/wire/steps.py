"""One line each way for every step of a co-simulation: what a simulator says to the agent, and what it hears.

Lines are JSON. What a line carries are the messages of ``messages.py``, unchanged.
"""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.scalars import Count
from loadline.errors import DataError
from loadline.wire.codec import Rejected, printable
from loadline.wire.messages import DrainCommand, MigrateCommand, ScalingDecision

# The records of 20,000 workers are 6 MB, a sample of each beside them 10 MB.
LINE_BYTES_MAX: Final = 33_554_432
ITEMS_MAX: Final = 65_536
_PROBLEM_CHARS_MAX: Final = 400
_FORMS: Final = [{"required": ["subject", "payload"]}, {"required": ["record"]}, {"required": ["gone"]}]


class StepItem(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of three: a frame (subject and payload), the record of a worker, or the name of one that is gone."""

    subject: Annotated[str, Meta(max_length=4096, description="Subject of a message to the agent.")] | UnsetType = UNSET
    payload: Annotated[Raw, Meta(description="The message.")] | UnsetType = UNSET
    record: Annotated[Raw, Meta(description="A worker's record: it is new, or has changed.")] | UnsetType = UNSET
    gone: Annotated[str, Meta(max_length=100, description="A worker that is not there any more.")] | UnsetType = UNSET


class StepInput(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Go on to a time, and take what happened until then."""

    now_ms: Annotated[Count, Meta(description="The simulator's time, from 0 or from 1970; never less than before.")]
    frames: Annotated[
        list[Annotated[StepItem, Meta(extra_json_schema={"oneOf": _FORMS})]],
        Meta(max_length=ITEMS_MAX, description="What happened. Records and workers gone are taken before frames."),
    ] = []


class HoldReason(Struct, frozen=True, omit_defaults=True):
    """Why a model stays as it is."""

    code: ReasonCode
    sentence: Annotated[str, Meta(description="For people; its words may change.")]
    pool: Annotated[str, Meta(description="Empty: the whole model.")] = ""


class Hold(Struct, frozen=True):
    """A model was looked at, and no decision was made."""

    model: str
    at_ms: Count
    targets: Annotated[
        dict[str, int], Meta(description="Workers by pool as they are to stay; with advise_only: advised.")
    ]
    reasons: list[HoldReason]


class Alarm(Struct, frozen=True):
    """What the log of a real agent would warn of."""

    kind: str
    model: str
    text: str


class StepOutput(Struct):
    """What the agent did since the last step."""

    decisions: Annotated[list[ScalingDecision], Meta(description="New decisions, each told once.")] = []
    migrations: Annotated[list[MigrateCommand], Meta(description="Requests that are to move to another worker.")] = []
    drains: Annotated[list[DrainCommand], Meta(description="Workers that are to empty themselves.")] = []
    holds: Annotated[list[Hold], Meta(description="The last look at each model that was held.")] = []
    next_wake_ms: Annotated[Count | None, Meta(description="When the agent acts next even if nothing happens.")] = None
    rejected: Annotated[list[Rejected], Meta(description="What was refused, and why.")] = []
    alarms: list[Alarm] = []


class StepError(Struct, frozen=True):
    """Instead of an answer: the line could not be used, and the process ends."""

    error: str


_decode = msgspec.json.Decoder(StepInput).decode
encode_step = msgspec.json.Encoder().encode


def decode_step(line: bytes) -> StepInput:
    """A step from its line.

    Raises:
        DataError: It is none; the text says where and what to write.
    """
    if len(line) > LINE_BYTES_MAX:
        raise DataError(
            f"the line has more than {LINE_BYTES_MAX} bytes. Split it into several steps at the same now_ms"
        )
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = printable(str(error), _PROBLEM_CHARS_MAX)
        raise DataError(f'{problem}. Write {{"now_ms": MILLISECONDS, "frames": [...]}} on one line') from error
