"""Headless Chromium, driven over the DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadline.adapters.parent_death import die_with_parent
from tests.waiting import DEADLINE_S, until, until_async

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0", "--force-color-profile=srgb",
)  # fmt: skip
KEYS: Final = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, " ": 32}


class Tab:
    """A page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        """Errors of the console, exceptions, and requests to another host."""
        self._reader = asyncio.create_task(self._read())

    async def open(self, url: str) -> None:
        """Open a page."""
        self._origin = "/".join(url.split("/")[:3])
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def size(self, width: int, height: int, theme: str = "light") -> None:
        """Set the size of the window and the theme of the system."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; promises are awaited."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def shows(self, expression: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Wait until an expression is true."""

        async def check() -> object:
            return await self.evaluate(f"Boolean({expression})")

        await until_async(check, expression, deadline_s=deadline_s)

    async def press(self, key: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        fields = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    async def type(self, text: str) -> None:
        """Type text into the focused field."""
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        found = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(DEADLINE_S):
            found: dict[str, Any] = await answer
            return found

    async def close(self) -> None:
        """Close the connection."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                answer = self._answers.pop(found["id"])
                if not answer.done():
                    failed = found.get("error")
                    if failed:
                        answer.set_exception(RuntimeError(str(failed)))
                    else:
                        answer.set_result(found["result"])
            else:
                self._note(found["method"], found["params"])

    def _note(self, method: str, found: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(found["exceptionDetails"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            url = found["request"]["url"]
            if not url.startswith((self._origin, "data:", "about:")):
                self.problems.append(f"request to {url}")


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """Start Chromium with an empty profile, and yield its page."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="loadline-chromium-") as profile:
        process = subprocess.Popen(  # noqa: ASYNC220 - it takes 10 ms
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - a system call and a comparison
        )
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            await until(lambda: port_file.exists() and len(port_file.read_text().splitlines()) > 1, "DevTools port")
            port = port_file.read_text().splitlines()[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    [target] = [one for one in await answer.json() if one["type"] == "page"]
                tab = Tab(await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0))
                try:
                    yield tab
                finally:
                    await tab.close()
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            await asyncio.to_thread(_leave, Path(profile))


def _leave(profile: Path) -> None:
    """Empty the profile; children of Chromium may still write into it for a moment."""
    for _ in range(20):
        shutil.rmtree(profile, ignore_errors=True)
        if not profile.exists():
            profile.mkdir()
            return
