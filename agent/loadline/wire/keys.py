"""Key layout in the store. Names are percent-encoded as in subjects, so each name is exactly one path segment."""

from typing import Final

from loadline.wire.subjects import decode_token, encode_token

LEADER_SCOPE_ALL: Final = "all"

WORKER_RECORD_BYTES_MAX: Final = 16 * 1024
"""Largest value of a worker's key; a record with the longest names has a few kB."""
VALUE_BYTES_MAX: Final = 1_572_864
"""Largest value of the other keys, which agents write: the default limit of a request to etcd."""
_SEGMENTS_MAX: Final = 4
"""Segments of a worker's key, which has the most."""


class Keys:
    """Keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"/loadline/{encode_token(namespace)}/"
        self.workers = f"{self.prefix}workers/"
        self.decisions = f"{self.prefix}decisions/"
        self.pauses = f"{self.prefix}pause/"
        self.leaders = f"{self.prefix}leader/"
        self.layout = f"{self.leaders}layout"
        """Key of the partition of the models into shards under which agents lead; absent: one agent leads all."""
        self.agents = f"{self.prefix}agents/"

    def worker(self, model: str, pool: str, worker: str) -> str:
        """Return the key of a worker's record, which is under the worker's lease."""
        return f"{self.workers}{encode_token(model)}/{encode_token(pool)}/{encode_token(worker)}"

    def decision(self, model: str) -> str:
        """Return the key of a model's newest committed decision."""
        return f"{self.decisions}{encode_token(model)}"

    def pause(self, model: str) -> str:
        """Return the key that exists while the model is paused; its value names who paused it."""
        return f"{self.pauses}{encode_token(model)}"

    def learned(self, model: str) -> str:
        """Return the key of a model's learned state."""
        return f"{self.prefix}state/{encode_token(model)}"

    def leader(self, scope: str) -> str:
        """Return the key of the leader's name, under its lease."""
        return f"{self.leaders}{encode_token(scope)}"

    def epoch(self, scope: str) -> str:
        """Return the key of the newest term's epoch, which remains; it begins with the leader's key."""
        return f"{self.leader(scope)}/epoch"

    def agent(self, name: str) -> str:
        """Return the key by which the other agents see that an agent lives, under its lease."""
        return f"{self.agents}{encode_token(name)}"

    def value_bytes_max(self, key: str) -> int:
        """Return the size of the largest value that a key may have."""
        return WORKER_RECORD_BYTES_MAX if key.startswith(self.workers) else VALUE_BYTES_MAX

    def writer(self, key: str) -> str:
        """Return the model, percent-encoded, whose workers write a key; empty for a key of agents."""
        return key.removeprefix(self.workers).partition("/")[0] if key.startswith(self.workers) else ""

    def split(self, key: str) -> tuple[str, ...]:
        """Return the decoded segments below the namespace, such as ``("workers", model, pool, worker)``.

        Raises:
            ValueError: The key is not in this namespace, has more segments than any, or one is not properly encoded.
        """
        if not key.startswith(self.prefix):
            raise ValueError(f"key {key!r} is not under {self.prefix!r}")
        segments = key[len(self.prefix) :].split("/", _SEGMENTS_MAX)
        if len(segments) > _SEGMENTS_MAX:  # to decode the 2,000 of the longest key would take 2 ms
            raise ValueError(f"key {key!r} has more than {_SEGMENTS_MAX} segments")
        return tuple(decode_token(segment) for segment in segments)
