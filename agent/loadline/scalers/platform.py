"""Port of a scaler to its platform: the verbs that each platform carries out."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from loadline.core.vocabulary.decisions import VictimRule
from loadline.errors import LoadlineError


class PlatformError(LoadlineError):
    """A call that the platform refused or did not answer; its text names the object, the problem and the remedy."""


class CountChanged(PlatformError):
    """A count that somebody else has changed since it was read; it was left as it is."""


class PlatformWait(PlatformError):
    """A count that the platform cannot set yet; its text names the reason. It is set once the pool has changed."""


class PoolKey(Struct, frozen=True, order=True):
    """Identity of a pool."""

    model: str
    pool: str


class PoolObservation(Struct, frozen=True):
    """State of a pool on its platform."""

    replicas: int
    """Replicas that the platform is asked for; for groups, such as of a LeaderWorkerSet, the number of groups."""
    ready: int | None = None
    """Replicas that are ready; None: the platform cannot tell."""
    workers: frozenset[str] | None = None
    """Names of the existing workers; None: the platform cannot tell."""
    ending: frozenset[str] = frozenset()
    """Workers that the platform is removing already, where it can tell."""
    detail: str = ""
    """Reason why replicas are missing, such as an exceeded quota; empty: none is known."""
    acknowledged: bool = True
    """False: the platform has not taken up the count of ``replicas`` yet."""
    first_ordinal: int | None = None
    """Number of the first replica, where names end with numbers; None: the platform cannot tell."""
    unready: frozenset[str] | None = None
    """Workers that are not ready; None: the platform knows their number at most."""


class Platform(Protocol):
    """A platform that starts and stops workers. Its calls are absolute, so each may be repeated after a failure."""

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools, each with the rule by which this platform selects the workers to remove."""
        ...

    async def validate(self) -> Sequence[str]:
        """Return the problems of the deployment, each with its remedy; empty: it can be scaled."""
        ...

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the state of a pool.

        Raises:
            PlatformError: The platform cannot be asked.
        """
        ...

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Ask for ``replicas``.

        Raises:
            PlatformError: The platform refused.
            PlatformWait: It cannot yet.
        """
        ...

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Have the next scale-down remove these workers, the first one first; called for the rule ``named`` only.

        Raises:
            PlatformError: The platform refused.
        """
        ...

    async def changed(self) -> Collection[PoolKey] | None:
        """Wait until the state of a pool may have changed; return the changed pools, None: any."""
        ...


@runtime_checkable
class WatchingPlatform(Platform, Protocol):
    """A platform that knows counts without a call, since it is told of each change."""

    async def change_known(self, pool: PoolKey, replicas: int, *, lower: bool) -> int | None:
        """Ask for ``replicas`` if another count is known, and only for more unless ``lower``.

        It has no effect if the known count is not the present one.

        Returns:
            The previous count; None: nothing was changed.

        Raises:
            PlatformError: The platform refused.
        """
        ...
