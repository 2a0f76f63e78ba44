"""Execution of effects: one abstract method for each, implemented with an engine, a transport and a clock."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from loadline.client.handover import effects as ef


class EffectExecutor(ABC):
    """Executor of effects. A method must not block; it reports the result of its effect later."""

    def __init__(self) -> None:
        self._methods: dict[type[ef.Effect], Callable[[Any], None]] = {
            ef.AskRoom: self.ask_room,
            ef.ReleaseRoom: self.release_room,
            ef.StartCopy: self.start_copy,
            ef.CancelCopy: self.cancel_copy,
            ef.StopRequest: self.stop_request,
            ef.SendHandover: self.send_handover,
            ef.SendClaim: self.send_claim,
            ef.RunRequest: self.run_request,
            ef.DiscardRequest: self.discard_request,
            ef.ExpireRoom: self.expire_room,
            ef.ReplyHandover: self.reply_handover,
            ef.PublishReports: self.publish_reports,
            ef.EndTransfer: self.end_transfer,
        }

    def execute(self, effects: Iterable[ef.Effect]) -> None:
        """Execute effects in order."""
        for effect in effects:
            self._methods[type(effect)](effect)

    @abstractmethod
    def ask_room(self, effect: ef.AskRoom) -> None:
        """Ask a destination for room."""

    @abstractmethod
    def release_room(self, effect: ef.ReleaseRoom) -> None:
        """Release the room at a destination."""

    @abstractmethod
    def start_copy(self, effect: ef.StartCopy) -> None:
        """Start to copy the KV cache."""

    @abstractmethod
    def cancel_copy(self, effect: ef.CancelCopy) -> None:
        """Cancel a copy."""

    @abstractmethod
    def stop_request(self, effect: ef.StopRequest) -> None:
        """Stop a request."""

    @abstractmethod
    def send_handover(self, effect: ef.SendHandover) -> None:
        """Send a request to its destination."""

    @abstractmethod
    def send_claim(self, effect: ef.SendClaim) -> None:
        """Send a claim to a frontend."""

    @abstractmethod
    def run_request(self, effect: ef.RunRequest) -> None:
        """Run a request."""

    @abstractmethod
    def discard_request(self, effect: ef.DiscardRequest) -> None:
        """Discard a request."""

    @abstractmethod
    def expire_room(self, effect: ef.ExpireRoom) -> None:
        """Report later that a reservation has expired."""

    @abstractmethod
    def reply_handover(self, effect: ef.ReplyHandover) -> None:
        """Answer the sources of a handover."""

    @abstractmethod
    def publish_reports(self, effect: ef.PublishReports) -> None:
        """Publish reports."""

    @abstractmethod
    def end_transfer(self, effect: ef.EndTransfer) -> None:
        """Forget a transfer."""
