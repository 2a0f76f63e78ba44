"""Messages of a co-simulation: one JSON line to the agent and one back for every step.

Lines carry the messages of ``messages.py``, unchanged.
"""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.scalars import Count
from loadline.errors import DataError
from loadline.wire.codec import Rejected, printable
from loadline.wire.messages import DrainCommand, MigrateCommand, ScalingDecision

# The records of 20,000 workers are 6 MB, and a sample of each is another 10 MB.
LINE_BYTES_MAX: Final = 33_554_432
ITEMS_MAX: Final = 65_536
_PROBLEM_CHARS_MAX: Final = 400
_FORMS: Final = [{"required": ["subject", "payload"]}, {"required": ["record"]}, {"required": ["gone"]}]


class StepItem(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of three: a frame (subject and payload), a worker's record, or the name of a worker that is gone."""

    subject: Annotated[str, Meta(max_length=4096, description="Subject of a message to the agent.")] | UnsetType = UNSET
    payload: Annotated[Raw, Meta(description="The message.")] | UnsetType = UNSET
    record: Annotated[Raw, Meta(description="Record of a worker that is new or has changed.")] | UnsetType = UNSET
    gone: Annotated[str, Meta(max_length=100, description="Worker that no longer exists.")] | UnsetType = UNSET


class StepInput(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step to a time, with everything that happened until then."""

    now_ms: Annotated[Count, Meta(description="The simulator's time, from 0 or from 1970; never less than before.")]
    frames: Annotated[
        list[Annotated[StepItem, Meta(extra_json_schema={"oneOf": _FORMS})]],
        Meta(
            max_length=ITEMS_MAX,
            description="Inputs of the step. Records and removed workers are applied before frames.",
        ),
    ] = []


class HoldReason(Struct, frozen=True, omit_defaults=True):
    """A reason for holding a model."""

    code: ReasonCode
    sentence: Annotated[str, Meta(description="For operators; its wording may change.")]
    pool: Annotated[str, Meta(description="Empty: the whole model.")] = ""


class Hold(Struct, frozen=True):
    """An evaluation of a model that led to no decision."""

    model: str
    at_ms: Count
    targets: Annotated[
        dict[str, int], Meta(description="Current targets by pool; with advise_only: the advised counts.")
    ]
    reasons: list[HoldReason]


class Alarm(Struct, frozen=True):
    """A warning that a real agent would log."""

    kind: str
    model: str
    text: str


class StepOutput(Struct):
    """Actions of the agent since the last step."""

    decisions: Annotated[list[ScalingDecision], Meta(description="New decisions, each listed once.")] = []
    migrations: Annotated[
        list[MigrateCommand], Meta(description="Commands to migrate requests to another worker.")
    ] = []
    drains: Annotated[list[DrainCommand], Meta(description="Commands to drain workers.")] = []
    holds: Annotated[list[Hold], Meta(description="Last evaluation of each model that was held.")] = []
    next_wake_ms: Annotated[
        Count | None, Meta(description="Time at which the agent acts next without further input.")
    ] = None
    rejected: Annotated[list[Rejected], Meta(description="Refused inputs and their reasons.")] = []
    alarms: list[Alarm] = []


class StepError(Struct, frozen=True):
    """An answer to a line that cannot be used; the process then ends."""

    error: str


_decode = msgspec.json.Decoder(StepInput).decode
encode_step = msgspec.json.Encoder().encode


def decode_step(line: bytes) -> StepInput:
    """Decode a step from its line.

    Raises:
        DataError: The line is invalid; the text gives the place and the remedy.
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
