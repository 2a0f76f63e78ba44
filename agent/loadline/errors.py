"""Exceptions of the I/O boundary. The core raises none: a refusal there is a value with a reason."""

from collections.abc import Iterable
from typing import Self


class LoadlineError(Exception):
    """Base of all errors that loadline raises on purpose; its text is a sentence for operators."""


class ConfigError(LoadlineError):
    """A configuration that cannot be used.

    Args:
        place: Path of the key, such as ``models[0].pools[1].replicas_max``.
        problem: The problem.
        remedy: The correction.
        where: File and line, such as ``fleet.toml, line 12``; empty: unknown.
        cause: Path of the key that makes this one wrong, which is the one with a line; empty: the key itself.
    """

    def __init__(self, place: str, problem: str, remedy: str, where: str = "", *, cause: str = "") -> None:
        super().__init__(": ".join(filter(None, (where, place, f"{problem}. {remedy}"))))
        self.place = place
        self.problem = problem
        self.remedy = remedy
        self.where = where
        self.cause = cause or place

    @property
    def errors(self) -> tuple["ConfigError", ...]:
        """The errors that this one stands for: itself."""
        return (self,)

    @staticmethod
    def raise_all(errors: Iterable["ConfigError"]) -> None:
        """Raise errors together, if there are any.

        Raises:
            ConfigError: There is one; ConfigErrors: there are several.
        """
        found = tuple(errors)
        if found:
            raise ConfigErrors(found) if len(found) > 1 else found[0]

    @classmethod
    def missing_package(cls, place: str, value: str, package: str, requirement: str, instead: str) -> Self:
        """Return the error of a value that needs a package which is not installed."""
        remedy = f"Install it: pip install '{requirement}'. Or {instead}."
        return cls(place, f"{value} needs the package {package}, which is not installed", remedy)

    @classmethod
    def broken_package(cls, place: str, value: str, package: str, error: str, instead: str) -> Self:
        """Return the error of a value that needs a package whose import fails."""
        remedy = f"Reinstall it: pip install --force-reinstall '{package}'. Or {instead}."
        return cls(place, f"{value} needs the package {package}, which cannot be imported: {error}", remedy)


class ConfigErrors(ConfigError):
    """Several errors of one configuration; as a ``ConfigError`` it is the first of them."""

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        first = errors[0]
        super().__init__(first.place, first.problem, first.remedy, first.where)
        self.args = ("\n".join(map(str, errors)),)
        self._errors = errors

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """All errors, in the order of the file."""
        return self._errors


class StoreUnavailable(LoadlineError):
    """A store call that failed; a write certainly did not happen."""


class OutcomeUnknown(LoadlineError):
    """A write that may or may not have happened; the key must be read back."""


class StoreDenied(LoadlineError):
    """A call that the store refused for its credentials or permissions; a retry does not help."""


class BusUnavailable(LoadlineError):
    """A message that could not be published, or a request without a reply in time."""


class NoSubscriber(BusUnavailable):
    """A request on a subject that has no subscriber."""


class WorkerSuperseded(LoadlineError):
    """A worker whose name belongs to another worker that started later; its process must end."""


class AddressTaken(LoadlineError):
    """An engine that is registered under the name of another worker."""


class EngineEnded(LoadlineError):
    """An engine process that ended without being asked to."""


class JournalError(LoadlineError):
    """A journal that cannot be written or read."""


class DataError(LoadlineError):
    """A data file (profile, trace) that cannot be used; the text names file, place and remedy."""


class NotAnExposition(LoadlineError):
    """A page without the metrics of an engine: another page, a part of one, or one of another program."""
