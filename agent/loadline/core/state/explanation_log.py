"""Explanations of the newest decisions and advices, encoded: one of ``auto`` takes 1.8 KB, decoded 4.6 KB."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.vocabulary.reasons import Explanation

EXPLANATIONS_MAX: Final = 256
"""Number of explanations that are kept."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Explanation).decode


class EncodedExplanation(Struct, frozen=True):
    """An explanation as MessagePack, with what identifies it."""

    model: str
    at_ms: int
    decision_id: str
    encoded: bytes

    @classmethod
    def of(cls, explanation: Explanation) -> "EncodedExplanation":
        """Encode an explanation."""
        return cls(explanation.model, explanation.at_ms, explanation.decision_id, _encode(explanation))

    def decode(self) -> Explanation:
        """Return the explanation.

        Raises:
            msgspec.DecodeError: It was read from a file, and is none.
        """
        return _decode(self.encoded)


class ExplanationLog(Struct):
    """The newest explanations of decisions and advices, of all models."""

    entries: list[EncodedExplanation] = field(default_factory=list)
    """Oldest first."""

    def add(self, explanation: Explanation) -> None:
        """Add an explanation; the oldest one is lost if there are too many."""
        self.entries.append(EncodedExplanation.of(explanation))
        del self.entries[:-EXPLANATIONS_MAX]

    def mark_superseded(self, decision_id: str, by: str) -> None:
        """Record that another decision took the place of one."""
        for place, one in enumerate(self.entries):
            if one.decision_id == decision_id:
                self.entries[place] = EncodedExplanation.of(replace(one.decode(), superseded_by=by))

    def of_decision(self, decision_id: str) -> Iterator[Explanation]:
        """Yield the explanations of a decision, newest first."""
        return (one.decode() for one in reversed(self.entries) if one.decision_id == decision_id)

    def of_model(self, model: str) -> Iterator[Explanation]:
        """Yield the explanations of a model, newest first."""
        return (one.decode() for one in reversed(self.entries) if one.model == model)

    def check(self) -> None:
        """Decode all explanations, which were read from a file.

        Raises:
            msgspec.DecodeError: One is none.
        """
        for one in self.entries:
            one.decode()
