"""Reload of the configuration: detection of changes, refused files, and events of the core."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from loadline.config import Config, load, validate
from loadline.config.changes import key_changes
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import AnyEvent, SettingsChanged, SettingsRefused
from loadline.core.vocabulary.scalars import WORKERS_MAX
from loadline.errors import ConfigError
from loadline.runtime.reload import Reloader, Source
from loadline.runtime.settings import settings
from tests.support.config_texts import BASE
from tests.waiting import DEADLINE_S, until, until_true

NEEDS_A_RESTART = 0.125
"""Quorum that the agent of these tests cannot take without a restart."""
FAST = "[agent]\nname = 'a'\nreload_interval_ms = 10\n"


class Reading:
    """Reloader of a file, and the events that it sends to the core."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[AnyEvent] = []
        self.looks = 0
        source = Source.at(path, self.read)
        config, _ = source.read()
        self.reloader = Reloader(source, config, settings(config), self.events.append, self.check)

    def read(self) -> tuple[Config, list[str]]:
        try:
            config = load(self.path, {})
            return config, validate(config)
        finally:
            self.looks += 1

    def check(self, loaded: Settings) -> None:
        if loaded.fleet.quorum_ratio == NEEDS_A_RESTART:
            raise ConfigError("fleet.quorum_ratio", "needs a restart", "Restart all agents.")

    def write(self, text: str) -> None:
        """Replace the file atomically."""
        new_file = self.path.with_suffix(".new")
        new_file.write_text(text, encoding="utf-8")
        new_file.replace(self.path)

    async def last_settings(self, count: int) -> Settings:
        """Return the settings of the last event, after this number of events."""
        await until(lambda: len(self.events) >= count)
        event = self.events[-1]
        assert isinstance(event, SettingsChanged), event
        return msgspec.json.decode(event.settings, type=Settings)

    def run_scenario(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            task = asyncio.create_task(self.reloader.run())
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await scenario()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    path = tmp_path / "loadline.toml"
    path.write_text(FAST + BASE, encoding="utf-8")
    return Reading(path)


def test_a_file_that_is_replaced_is_read(reading: Reading) -> None:
    async def scenario() -> None:
        reading.write(f"{FAST}[fleet]\nquorum_ratio = 0.5\n{BASE}")
        new_settings = await reading.last_settings(1)
        assert (new_settings.agent, new_settings.fleet.quorum_ratio) == ("a", 0.5)
        assert new_settings.digest not in {"", settings(load(reading.path, {})).agent}

    reading.run_scenario(scenario)


def test_a_changed_symbolic_link_is_followed(reading: Reading, tmp_path: Path) -> None:
    first, second = tmp_path / "..1", tmp_path / "..2"
    for folder, ratio in ((first, 0.5), (second, 0.25)):
        folder.mkdir()
        (folder / "loadline.toml").write_text(f"{FAST}[fleet]\nquorum_ratio = {ratio}\n{BASE}", encoding="utf-8")
    data = tmp_path / "..data"
    data.symlink_to(first)
    reading.path.unlink()
    reading.path.symlink_to(data / "loadline.toml")
    reading = Reading(reading.path)

    async def scenario() -> None:
        swapped = tmp_path / "..data_tmp"
        swapped.symlink_to(second)
        swapped.replace(data)
        assert (await reading.last_settings(1)).fleet.quorum_ratio == 0.25

    reading.run_scenario(scenario)


def test_a_broken_file_is_refused_once_and_a_corrected_one_applied(reading: Reading) -> None:
    async def scenario() -> None:
        reading.write(FAST + "[fleet]\nquorum_ratio = 7\n" + BASE)
        await until(lambda: bool(reading.events))
        (refused,) = reading.events
        assert isinstance(refused, SettingsRefused)
        assert "fleet.quorum_ratio: is 7" in refused.detail
        reading.reloader.request()
        await until(lambda: len(reading.events) == 2)
        reading.write(FAST + "[fleet]\nquorum_ratio = 0.7\n" + BASE)
        assert (await reading.last_settings(3)).fleet.quorum_ratio == 0.7

    with capture_logs() as logs:
        reading.run_scenario(scenario)
    assert [log["event"] for log in logs] == ["config_refused", "config_refused", "config_reloaded"]


def test_settings_that_need_a_restart_are_refused_at_each_request_and_not_logged_as_reloaded(reading: Reading) -> None:
    async def scenario() -> None:
        reading.write(f"{FAST}[fleet]\nquorum_ratio = {NEEDS_A_RESTART}\n{BASE}")
        for count in (1, 2):
            await until(lambda: len(reading.events) == count)  # noqa: B023 - awaited here
            reading.reloader.request()
        await until(lambda: len(reading.events) == 3)
        assert all(isinstance(event, SettingsRefused) for event in reading.events)

    with capture_logs() as logs:
        reading.run_scenario(scenario)
    assert [log["event"] for log in logs] == ["config_refused"] * 3


def test_a_file_that_is_missing_for_a_while_causes_no_reload(reading: Reading) -> None:
    async def scenario() -> None:
        away = reading.path.with_suffix(".away")
        reading.path.rename(away)
        reading.reloader.request()
        await until(lambda: bool(reading.events))
        assert isinstance(reading.events[0], SettingsRefused)
        reading.write(f"{FAST}[fleet]\nquorum_ratio = 0.5\n{BASE}")
        assert (await reading.last_settings(2)).fleet.quorum_ratio == 0.5

    reading.run_scenario(scenario)


def test_a_file_that_is_still_being_written_is_not_read(reading: Reading) -> None:
    async def scenario() -> None:
        for written in range(200):  # the file grows between any two checks
            reading.path.write_text(f"{FAST}{BASE}{'#' * written}", encoding="utf-8")
            await asyncio.sleep(0.001)
        assert not reading.events
        reading.write(f"{FAST}[fleet]\nquorum_ratio = 0.5\n{BASE}")
        assert (await reading.last_settings(1)).fleet.quorum_ratio == 0.5

    reading.run_scenario(scenario)


def test_a_requested_reload_reads_a_file_that_is_not_watched(tmp_path: Path) -> None:
    path = tmp_path / "loadline.toml"
    path.write_text("[agent]\nreload_interval_ms = 0\n" + BASE, encoding="utf-8")
    reading = Reading(path)

    async def scenario() -> None:
        reading.write(f"[agent]\nreload_interval_ms = 0\n[fleet]\nquorum_ratio = 0.5\n{BASE}")
        reading.reloader.request()
        assert await reading.last_settings(1) == settings(load(path, {}))

    reading.run_scenario(scenario)


def test_a_file_with_equal_settings_causes_no_event(reading: Reading) -> None:
    async def read(text: str, events: int) -> None:
        looks = reading.looks
        reading.write(text)
        reading.reloader.request()
        await until(lambda: reading.looks > looks and len(reading.events) >= events)

    async def scenario() -> None:
        for count in range(3):
            await read(f"{FAST}{BASE}{'#' * count}", 0)
        await read(f"{FAST}{BASE}[leadership]\nlease_ttl_s = 20\n", 1)
        await read(f"{FAST}{BASE}[leadership]\nlease_ttl_s = 20\n#", 1)
        await read("broken", 2)
        await read(f"{FAST}{BASE}[leadership]\nlease_ttl_s = 20\n", 3)
        await read(f"{FAST}{BASE}", 4)

    reading.run_scenario(scenario)
    kept = [event.restart_for if isinstance(event, SettingsChanged) else None for event in reading.events]
    assert kept == [["leadership.lease_ttl_s"], None, ["leadership.lease_ttl_s"], []], "a refused file causes an event"


def test_keys_that_need_a_restart_are_kept_and_listed(reading: Reading) -> None:
    async def scenario() -> None:
        other = FAST.replace("'a'", "'b'")
        reading.write(f"{other}[leadership]\nlease_ttl_s = 20\n[fleet]\nquorum_ratio = 0.5\n{BASE}")
        new_settings = await reading.last_settings(1)
        assert (new_settings.agent, new_settings.leadership.lease_ttl_s, new_settings.fleet.quorum_ratio) == (
            "a",
            10,
            0.5,
        )

    with capture_logs() as logs:
        reading.run_scenario(scenario)
    event = reading.events[0]
    assert isinstance(event, SettingsChanged)
    assert event.restart_for == ["agent.name", "leadership.lease_ttl_s"]
    assert logs[0]["keys"] == event.restart_for
    assert logs[1]["changes"] == ["fleet.quorum_ratio: 0.8 -> 0.5"]


def test_a_request_at_the_end_does_not_keep_it_running(reading: Reading) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(reading.reloader.run())
        await asyncio.sleep(0)
        reading.reloader.request()
        await asyncio.sleep(0)  # the request has ended the wait, and its task has not run yet
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=5)
        assert done == {task}
        assert task.cancelled()

    asyncio.run(scenario())


def test_agents_with_equal_settings_have_equal_digests(reading: Reading) -> None:
    config = load(reading.path, {})
    other = msgspec.structs.replace(config, agent=msgspec.structs.replace(config.agent, name="b"))
    assert settings(config).digest == settings(other).digest
    changed = msgspec.structs.replace(config, fleet=msgspec.structs.replace(config.fleet, quorum_ratio=0.5))
    assert settings(config).digest != settings(changed).digest


def test_a_model_that_is_added_or_removed_is_one_change(reading: Reading) -> None:
    old = load(reading.path, {})
    reading.write(f"{FAST}{BASE}".replace("llama", "qwen"))
    new = load(reading.path, {})
    assert [str(change) for change in key_changes(old, new)] == [
        'models.llama: "configured" -> none',
        'models.qwen: none -> "configured"',
    ]
    assert key_changes(new, new) == []


def test_changes_are_listed_by_name_with_layers_resolved(reading: Reading) -> None:
    old = load(reading.path, {})
    reading.write(
        f"{FAST}[defaults.guardrails]\nstep_up_max = 2\n{BASE}replicas_max = 9\n[[models.pools]]\n"
        f"name = 'more'\nrole = 'decode'\n"
    )
    text = reading.path.read_text(encoding="utf-8")
    reading.write(f"{text}[[namespaces]]\nname = 'default'\ndefaults.priority = 5\ngpu_quota.h100 = 4\n")
    found = [str(change) for change in key_changes(old, load(reading.path, {}))]
    assert found.pop() == 'namespaces.default.name: none -> "default"'
    assert found.pop() == "namespaces.default.gpu_quota.h100: none -> 4"
    assert "models.llama.priority: 100 -> 5" in found
    assert f"models.llama.guardrails.step_up_max: {WORKERS_MAX} -> 2" in found
    assert "models.llama.pools.decode.replicas_max: 8 -> 9" in found
    assert 'models.llama.pools.more.role: none -> "decode"' in found
    assert all(one.startswith("models.llama.") for one in found)


def test_an_agent_ends_while_a_reload_hangs(reading: Reading) -> None:
    began, released, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> tuple[Config, list[str]]:  # as a file system of another host may
        began.set()
        released.wait(5.0)
        done.set()
        raise OSError("late")

    reading.reloader._source = replace(reading.reloader._source, read=hang)

    async def scenario() -> None:
        reading.reloader.request()
        await until(began.is_set)

    reading.run_scenario(scenario)
    assert not done.is_set(), "the end waited for the reload"
    released.set()
    until_true(done.is_set)
