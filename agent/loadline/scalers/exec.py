"""Platform behind a command: each call runs it with a JSON object on stdin.

The object has ``verb`` and, for all but ``validate``, ``model`` and ``pool``. ``observe`` and ``validate`` answer with
JSON on stdout. A command that fails says why in the last line of stderr.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from loadline.core.vocabulary.decisions import VictimRule
from loadline.core.vocabulary.scalars import Count, Name
from loadline.scalers.command import CommandFailed, run_command
from loadline.scalers.config_file import ScalerKnobs, ScalerName, check_names, read_as
from loadline.scalers.platform import PlatformError, PoolKey, PoolObservation
from loadline.servers import Knobs, PathText, Positive

T = TypeVar("T")


class ExecPoolKnobs(Knobs, frozen=True):
    """A pool, and the rule by which its workers are removed."""

    name: Name
    victims: Annotated[
        VictimRule,
        Meta(description="Workers that set_replicas removes: named, newest, highest_ordinal or unknown (any)."),
    ] = "unknown"


class ExecModelKnobs(Knobs, frozen=True):
    """A model and its pools."""

    name: Name
    pools: Annotated[tuple[ExecPoolKnobs, ...], Meta(min_length=1, max_length=64)]


class ExecKnobs(ScalerKnobs, frozen=True):
    """Configuration file of the exec scaler."""

    command: Annotated[tuple[PathText, ...], Meta(min_length=1, description="Program and arguments.")]
    models: Annotated[tuple[ExecModelKnobs, ...], Meta(min_length=1, max_length=1024)]
    name: ScalerName = "exec"
    timeout_ms: Annotated[
        int, Meta(ge=1, le=25_000, description="Time limit of one call; then the command is killed.")
    ] = 10_000
    poll_ms: Annotated[Positive, Meta(description="Time between two observations of a pool.")] = 5_000


class _Observation(Struct, frozen=True):
    """Answer to ``observe``."""

    replicas: Count
    ready: Count | None = None
    workers: Annotated[frozenset[Name], Meta(max_length=100_000)] | None = None
    ending: Annotated[frozenset[Name], Meta(max_length=100_000)] = frozenset()
    detail: str = ""
    first_ordinal: Count | None = None


def read(path: Path) -> ExecKnobs:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is invalid.
    """
    return read_as(ExecKnobs, path, _checked)


def _checked(knobs: ExecKnobs) -> ExecKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    check_names(knobs.models)
    return knobs


@asynccontextmanager
async def connect(knobs: ExecKnobs) -> AsyncIterator["ExecPlatform"]:
    """Yield the platform of a configuration."""
    yield ExecPlatform(knobs)


class ExecPlatform:
    """Platform that a command carries out."""

    def __init__(self, knobs: ExecKnobs) -> None:
        self._knobs = knobs
        self._victims = {PoolKey(model.name, pool.name): pool.victims for model in knobs.models for pool in model.pools}

    @property
    def victims(self) -> Mapping[PoolKey, VictimRule]:
        """Configured pools, each with its rule."""
        return self._victims

    async def validate(self) -> Sequence[str]:
        """Return the problems that the command reports, or its failure."""
        try:
            output = await self._call({"verb": "validate"})
            return self._parse("validate", output, list[str]) if output.strip() else []
        except PlatformError as error:
            return [str(error)]

    async def observe(self, pool: PoolKey) -> PoolObservation:
        """Return the state of a pool."""
        answer = self._parse("observe", await self._call(_order("observe", pool)), _Observation)
        return PoolObservation(
            answer.replicas,
            answer.ready,
            answer.workers,
            answer.ending,
            answer.detail,
            first_ordinal=answer.first_ordinal,
        )

    async def set_replicas(self, pool: PoolKey, replicas: int) -> None:
        """Request ``replicas``."""
        await self._call(_order("set_replicas", pool, replicas=replicas))

    async def prefer_removal(self, pool: PoolKey, workers: Sequence[str]) -> None:
        """Have the next scale-down remove these workers."""
        await self._call(_order("prefer_removal", pool, workers=workers))

    async def changed(self) -> None:
        """Wait until it is time to observe again."""
        await asyncio.sleep(self._knobs.poll_ms / 1_000)

    def _parse(self, verb: str, output: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(output, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(verb, f"its output is invalid: {error}") from error

    async def _call(self, order: Mapping[str, Any]) -> bytes:
        """Run the command for one order and return its output.

        Raises:
            PlatformError: It failed.
        """
        verb = order["verb"]
        try:
            return await run_command(self._knobs.command, msgspec.json.encode(order), self._knobs.timeout_ms / 1_000)
        except CommandFailed as failure:
            raise self._error(verb, str(failure)) from failure

    def _error(self, verb: str, problem: str) -> PlatformError:
        return PlatformError(f"{self._knobs.command[0]} {verb}: {problem}")


def _order(verb: str, pool: PoolKey, **arguments: Any) -> dict[str, Any]:
    return {"verb": verb, "model": pool.model, "pool": pool.pool, **arguments}
