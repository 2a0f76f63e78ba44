"""Configuration of the source of Llumnix's engines."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from loadline.servers import Knobs, check_server
from loadline.sources.config import RegisteringKnobs, WorkerKnobs, read, require_pools


class LlumnixPoolKnobs(WorkerKnobs, frozen=True, kw_only=True):
    """Workers of one type."""

    instance_type: Annotated[
        Literal["prefill", "decode", "neutral"], Meta(description="Type of the engines in Llumnix's store.")
    ]


class RedisKnobs(Knobs, frozen=True):
    """Llumnix's store."""

    url: Annotated[str, Meta(description="redis://host:port, or rediss:// for TLS.")] = "redis://127.0.0.1:6379"
    user: Annotated[str, Meta(description="User name, with password_file.")] = ""
    password_file: Annotated[str, Meta(description="File with the password.")] = ""
    ca_file: Annotated[str, Meta(description="CA bundle for TLS; empty: the system's.")] = ""
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000, description="Time limit of a call.")] = 1_000


class LlumnixKnobs(RegisteringKnobs, frozen=True, kw_only=True):
    """Configuration file of `loadline source llumnix`."""

    # After Redis lost its keys, an idle engine writes its status within 30 s, and is found within 10 s.
    lost_after_s: Annotated[
        int,
        Meta(ge=2, le=3_600, description="A worker without a status for longer, while others have one, is removed."),
    ] = 45
    pools: Annotated[tuple[LlumnixPoolKnobs, ...], Meta(min_length=1, max_length=3)]
    redis: RedisKnobs = RedisKnobs()
    metadata_interval_ms: Annotated[
        int, Meta(ge=100, le=600_000, description="Time between two searches for new engines.")
    ] = 10_000
    grpc_timeout_ms: Annotated[
        int,
        Meta(ge=10, le=60_000, description="Time limit of a call; below migration.llumlet_grpc_timeout_seconds."),
    ] = 4_000
    grpc_pool_size: Annotated[int, Meta(ge=1, le=10_000, description="Open connections to agents of engines.")] = 256


def read_llumnix(path: Path) -> LlumnixKnobs:
    """Read the configuration.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """
    return read(LlumnixKnobs, path, _checked)


def _checked(knobs: LlumnixKnobs) -> LlumnixKnobs:
    """Return a configuration whose values do not contradict each other.

    Raises:
        ConfigError: They do.
    """
    require_pools([(pool.model, pool.name) for pool in knobs.pools])
    check_server(knobs.redis.url, "redis.url", ("redis", "rediss"))
    return knobs
