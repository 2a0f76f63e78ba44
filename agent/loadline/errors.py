"""Errors that cross a seam. Inside the core nothing is raised: a refusal there is a value with a reason."""


class LoadlineError(Exception):
    """Base of every error that loadline raises on purpose; its text is a sentence for a person."""


class ConfigError(LoadlineError):
    """A configuration that cannot be used.

    Args:
        place: Where it is wrong, such as ``models[0].pools[1].replicas_max``.
        problem: What is wrong with it.
        remedy: What to write instead.
    """

    def __init__(self, place: str, problem: str, remedy: str) -> None:
        super().__init__(f"{place}: {problem}. {remedy}")
        self.place = place
        self.problem = problem
        self.remedy = remedy


class StoreUnavailable(LoadlineError):
    """The store did not take the call; for a write: it certainly did not happen."""


class OutcomeUnknown(LoadlineError):
    """The store may or may not have done the write; only reading the key back tells."""


class StoreDenied(LoadlineError):
    """The store refused the credentials or the permission; trying again does not help."""


class BusUnavailable(LoadlineError):
    """The message could not be handed to the bus, or nobody answered in time."""


class JournalError(LoadlineError):
    """A journal that cannot be written or read."""


class DataError(LoadlineError):
    """A data file (profile, trace) that cannot be used; the text names file, place and remedy."""
