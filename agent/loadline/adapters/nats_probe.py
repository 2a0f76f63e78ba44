"""Connection to NATS that finds out what its login may do, and asks all subscribers of a subject at once."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import nats.errors

from loadline.adapters.nats_client import NatsClient
from loadline.adapters.nats_logins import check_credentials, login_options, tls_context, tls_only
from loadline.errors import BusUnavailable, ConfigError
from loadline.ports import FrameHandler
from loadline.servers import NatsKnobs

_CONNECT_S: Final = 2.0
_DENIED: Final = re.compile(r'permissions violation for (?:publish|subscription) to "([^"]*)"')


class NatsProbe:
    """An open connection; ``open_probe`` opens and closes it."""

    def __init__(self, client: NatsClient, denied: set[str]) -> None:
        self._client = client
        self._denied = denied
        info = client._server_info  # noqa: SLF001 - the library publishes only a part of it
        self.version = str(info.get("version", ""))
        self.payload_bytes_max = int(info.get("max_payload", 0))

    @property
    def server(self) -> str:
        """Address of the server that answered."""
        url = self._client.connected_url
        return "" if url is None else url.netloc

    async def denied_subscriptions(self, subjects: Sequence[str]) -> list[str]:
        """Subscribe to each subject for a moment; return those that the server denies."""
        subscriptions = [await self._client.subscribe(subject) for subject in subjects]
        await self._client.flush_all()
        for subscription in subscriptions:
            await subscription.unsubscribe()
        await self._client.flush_all()
        return [subject for subject in subjects if self.was_denied(subject)]

    async def denied_publishes(self, subjects: Sequence[str]) -> list[str]:
        """Publish an empty message on each subject; return those that the server denies."""
        for subject in subjects:
            await self._client.publish(subject)
        await self._client.flush_all()
        return [subject for subject in subjects if self.was_denied(subject)]

    async def ask_all(self, subject: str, payload: bytes, on_reply: FrameHandler) -> None:
        """Publish a request, and pass all replies to a callback from now on."""
        inbox = self._client.new_inbox()
        await self._client.subscribe_frames(inbox, on_reply)
        await self._client.publish(subject, payload, reply=inbox)

    async def listen(self, subject: str, on_frame: FrameHandler) -> None:
        """Pass the frames on a subject to a callback from now on."""
        await self._client.subscribe_frames(subject, on_frame)

    def was_denied(self, subject: str) -> bool:
        """Return True if the server denied a publish or subscription on a subject so far."""
        return subject.lower() in self._denied  # the library passes the server's errors on in lower case


@asynccontextmanager
async def open_probe(knobs: NatsKnobs, name: str) -> AsyncIterator[NatsProbe]:
    """Connect, and close the connection at the end.

    Raises:
        BusUnavailable: No server answers, or it refuses the login.
        ConfigError: A file of the login cannot be used.
    """
    check_credentials(knobs)
    denied: set[str] = set()
    problems: list[str] = []

    async def on_error(error: Exception) -> None:
        text = str(error)
        found = _DENIED.search(text)
        if found:
            denied.add(found[1])
        else:
            problems.append(text or type(error).__name__)

    options: dict[str, Any] = login_options(knobs, tls_context(knobs))
    client = NatsClient(tls_only=tls_only(knobs), read_pause_s=0.0, on_dropped=lambda _count: None)
    try:
        try:
            async with asyncio.timeout((2 * len(knobs.servers) + 1) * _CONNECT_S):
                await client.connect(
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    connect_timeout=_CONNECT_S,
                    pending_size=0,
                    error_cb=on_error,
                    **options,
                )
        except ConfigError:
            raise
        except Exception as error:
            raise BusUnavailable(problems[0] if problems else str(error) or type(error).__name__) from error
        try:
            yield NatsProbe(client, denied)
        except nats.errors.Error as error:
            raise BusUnavailable(problems[-1] if problems else str(error) or type(error).__name__) from error
    finally:
        await client.close_or_abort()
