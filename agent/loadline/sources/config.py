"""Configuration files of sources: what all of them have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import BatchCount, BlockCount, Name, Role, Text
from loadline.errors import ConfigError
from loadline.servers import EtcdKnobs, Knobs, NatsKnobs, check_certificate_use, check_logins, check_servers
from loadline.toml.checking import load_as


class SourceKnobs(Knobs, frozen=True):
    """The agent's servers, and how often a source reports."""

    nats: NatsKnobs = NatsKnobs()
    etcd: EtcdKnobs = EtcdKnobs()
    root: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z", description="Prefix of every NATS subject.")] = "loadline"
    namespace: Annotated[Name, Meta(description="Keys in etcd are under /loadline/<namespace>/.")] = "default"
    report_interval_ms: Annotated[int, Meta(ge=50, le=60_000, description="Time between two reports.")] = 1_000


class RegisteringKnobs(SourceKnobs, frozen=True):
    """A source that registers workers."""

    lease_ttl_s: Annotated[
        int, Meta(ge=2, le=600, description="Time that workers stay registered after the source has ended.")
    ] = 30
    lost_after_s: Annotated[
        int, Meta(ge=2, le=3_600, description="A worker that is silent for longer, while others report, is removed.")
    ] = 10
    workers_max: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of workers.")] = 1_000

    @property
    def returned_after_s(self) -> int:
        """Time in which workers are heard again after their upstream was away for long, in s."""
        return self.lost_after_s


class WorkerKnobs(Knobs, frozen=True):
    """Facts of the workers of a pool that the source cannot learn by itself."""

    model: Name
    name: Annotated[Name, Meta(description="Name of the pool, as in the agent's configuration.")]
    role: Role
    accelerator: Annotated[Text, Meta(description="Accelerator type, such as h100.")] = ""
    gpus: Annotated[int, Meta(ge=0, le=4096, description="GPUs of one worker.")] = 1
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024, description="Ranks of one worker.")] = 1
    kv_blocks_total: Annotated[BlockCount | None, Meta(description="KV cache blocks of one rank.")] = None
    block_size_tokens: Annotated[BatchCount | None, Meta(description="Tokens in one KV block.")] = None
    max_batch_requests: Annotated[BatchCount | None, Meta(description="Largest batch, in requests.")] = None

    def record(self, worker: str, incarnation: int) -> WorkerRecord:
        """Return the record of a worker of this pool."""
        return WorkerRecord(
            self.model,
            self.name,
            worker,
            self.role,
            incarnation,
            accelerator=self.accelerator,
            gpus=self.gpus,
            data_parallel_size=self.data_parallel_size,
            kv_blocks_total=self.kv_blocks_total,
            block_size_tokens=self.block_size_tokens,
            max_batch_requests=self.max_batch_requests,
        )


K = TypeVar("K", bound=SourceKnobs)


def read(kind: type[K], path: Path, finish: Callable[[K], K]) -> K:
    """Read the configuration of a source; ``finish`` as in ``load_as``.

    Raises:
        ConfigError: The file cannot be read, or a value in it is invalid.
    """

    def checked(knobs: K) -> K:
        check_servers(knobs.nats.servers, "nats.servers", ("nats", "tls"))
        check_servers(knobs.etcd.endpoints, "etcd.endpoints", ("http", "https"))
        check_logins(knobs.nats, knobs.etcd)
        check_certificate_use(knobs.nats)
        return finish(knobs)

    return load_as(kind, path, checked)


def require_pools(names: list[tuple[str, str]]) -> None:
    """Check that no two pools have the same model and name.

    Raises:
        ConfigError: Two have.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f"pools[{index}].name", f"is {name[1]}, as of another pool of {name[0]}", "Rename one.")
