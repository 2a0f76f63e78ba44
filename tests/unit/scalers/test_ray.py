"""Platform of Ray Serve, on a double of Ray's dashboard and, with ``RAY_DASHBOARD``, on a real one.

The real one is that of the guide in docs/how-to/scale-ray-serve.md: it has the same applications.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadline.errors import ConfigError
from loadline.scalers.platform import Platform, PlatformError, PoolKey
from loadline.scalers.ray import RayServe, connect
from loadline.scalers.ray_config import RayKnobs, RayModelKnobs, RayPoolKnobs, read
from tests.support.ray_server import RayDouble
from tests.waiting import until, until_async

POLL_S = 0.05
REAL = os.environ.get("RAY_DASHBOARD", "")
WORKERS, FIXED = PoolKey("m", "workers"), PoolKey("m", "fixed")
ABSENT, NO_APPLICATION = PoolKey("m", "absent"), PoolKey("m", "no-application")
POOLS = (
    RayPoolKnobs("workers", "llm", "Worker"),
    RayPoolKnobs("fixed", "fixed", "Worker"),
    RayPoolKnobs("absent", "llm", "Wor/ker"),
    RayPoolKnobs("no-application", "none", "Worker"),
)


@asynccontextmanager
async def platform(address: str, token_file: str = "") -> AsyncIterator[RayServe]:
    knobs = RayKnobs(
        (RayModelKnobs("m", POOLS),),
        address=address,
        token_file=token_file,
        timeout_ms=60_000,
        poll_ms=round(POLL_S * 1_000),
    )
    async with connect(knobs) as ray:
        yield ray


def on_both(scenario: Callable[[RayServe], Awaitable[None]]) -> None:
    """Run a scenario on the double and, where there is one, on a real Ray."""

    async def whole() -> None:
        async with asyncio.timeout(240):
            async with RayDouble().serving() as address, platform(address) as ray:
                await scenario(ray)
            if REAL:
                async with platform(REAL) as ray:
                    await scenario(ray)

    asyncio.run(whole())


def on_double(scenario: Callable[[RayServe, RayDouble], Awaitable[None]]) -> None:
    async def whole() -> None:
        double = RayDouble()
        async with asyncio.timeout(60), double.serving() as address, platform(address) as ray:
            await scenario(ray, double)

    asyncio.run(whole())


async def becomes(ray: RayServe, replicas: int) -> None:
    async def ready() -> bool:
        seen = await ray.observe(WORKERS)
        return (seen.replicas, seen.ready) == (replicas, replicas)

    await until_async(ready, f"{replicas} replicas")


def test_replicas_are_set_to_and_from_zero_and_observed() -> None:
    async def scenario(ray: Platform) -> None:
        assert isinstance(ray, RayServe)
        for replicas in (2, 3, 0, 1):
            await ray.set_replicas(WORKERS, replicas)
            await becomes(ray, replicas)
            assert (await ray.observe(WORKERS)).workers is None
        assert ray.victims == dict.fromkeys((WORKERS, FIXED, ABSENT, NO_APPLICATION), "unknown")

    on_both(scenario)


def test_what_ray_refuses_has_a_remedy() -> None:
    async def scenario(ray: RayServe) -> None:
        with pytest.raises(PlatformError, match=r"(?s)HTTP 412.*Set external_scaler_enabled: true in its Serve config"):
            await ray.set_replicas(FIXED, 2)
        with pytest.raises(PlatformError, match=r"HTTP 404: Application or Deployment not found\. Compare"):
            await ray.set_replicas(ABSENT, 2)
        with pytest.raises(PlatformError, match=r"HTTP 404: Application or Deployment not found\. Compare"):
            await ray.set_replicas(NO_APPLICATION, 2)
        with pytest.raises(PlatformError, match=r"Wor/ker of application llm: it does not exist \(there are: Worker"):
            await ray.observe(ABSENT)
        with pytest.raises(PlatformError, match=r"application none: it does not exist \(there are: fixed, llm"):
            await ray.observe(NO_APPLICATION)
        assert (await ray.observe(FIXED)).replicas == 1

    on_both(scenario)


def test_validation_names_each_problem() -> None:
    async def scenario(ray: RayServe) -> None:
        problems = await ray.validate()
        starts = "application fixed: Ray refuses", "deployment Wor/ker of application llm: it", "application none: it"
        assert len(problems) == len(starts)
        assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))

    on_both(scenario)


def test_a_change_is_noticed() -> None:
    async def scenario(ray: RayServe) -> None:
        await ray.set_replicas(WORKERS, 1)
        await becomes(ray, 1)
        changed = asyncio.ensure_future(ray.changed())
        await ray.set_replicas(WORKERS, 2)
        await asyncio.wait_for(changed, 60)
        await ray.set_replicas(WORKERS, 1)
        await becomes(ray, 1)

    on_both(scenario)


def test_a_change_that_an_observation_has_read_is_noticed_too() -> None:
    async def scenario(ray: RayServe, _double: RayDouble) -> None:
        await ray.changed()
        await ray.set_replicas(WORKERS, 2)
        await ray.observe(FIXED)
        await ray.changed()

    on_double(scenario)


def test_an_unchanged_state_is_one_read_per_interval_and_no_change() -> None:
    async def scenario(ray: RayServe, double: RayDouble) -> None:
        await ray.changed()
        double.calls.clear()
        began_s = time.monotonic()
        changed = asyncio.ensure_future(ray.changed())
        await until(lambda: len(double.calls) >= 5, "it reads again and again")
        assert len(double.calls) <= 1 + (time.monotonic() - began_s) / POLL_S
        assert not changed.done()
        double.running = False
        await asyncio.wait_for(changed, 60)

    on_double(scenario)


def test_replicas_that_cannot_start_are_explained_and_stopping_ones_are_not_ready() -> None:
    async def scenario(ray: RayServe, double: RayDouble) -> None:
        double.cpus, double.stopping = 2, 3
        await ray.set_replicas(WORKERS, 3)
        seen = await ray.observe(WORKERS)
        assert (seen.replicas, seen.ready) == (3, 2)
        assert seen.detail == (
            "Deployment 'Worker' in application 'llm' has 1 replicas that take long to be scheduled."
        )
        await ray.set_replicas(WORKERS, 2)
        assert (await ray.observe(WORKERS)).detail == ""

    on_double(scenario)


def test_ray_without_serve_and_pages_of_others_are_explained() -> None:
    async def scenario(ray: RayServe, double: RayDouble) -> None:
        double.running = False
        with pytest.raises(PlatformError, match="HTTP 503: Serve controller is not available"):
            await ray.set_replicas(WORKERS, 1)
        assert (await ray.validate())[0] == (
            "application llm: it does not exist (there are: none). Deploy it with `serve deploy`."
        )
        for page in (
            b"<html>",
            b"[]",
            b"\xff",
            b'{"applications": {"llm": {"deployments": {"Worker": {}}}}}',
            b"[" * 9_999,
        ):
            double.raw = page
            [problem] = await ray.validate()
            assert problem.endswith("Set address to the URL of Ray's dashboard.")

    on_double(scenario)


def test_a_dashboard_that_is_away_is_explained() -> None:
    async def scenario() -> None:
        async with platform("http://127.0.0.1:1") as ray:
            with pytest.raises(PlatformError, match=r"Start Ray\. Set address to the URL of Ray's dashboard\.$"):
                await ray.set_replicas(WORKERS, 1)

    asyncio.run(scenario())


def test_a_token_is_sent_and_its_refusals_are_explained(tmp_path: Path) -> None:
    token = tmp_path / "token"

    async def scenario() -> None:
        double = RayDouble()
        double.token = token.name
        async with double.serving() as address:
            async with platform(address) as ray:
                [problem] = await ray.validate()
                assert problem.endswith("Missing authentication token. Put the token of the cluster into token_file.")
            async with platform(address, str(token)) as ray:
                with pytest.raises(PlatformError, match=r"Name a readable file in token_file\.$"):
                    await ray.observe(WORKERS)
                token.write_text("wrong", "utf-8")
                with pytest.raises(PlatformError, match="HTTP 403: Forbidden: Invalid authentication token"):
                    await ray.set_replicas(WORKERS, 2)
                token.write_text(f"{token.name}\n", "utf-8")
                await ray.set_replicas(WORKERS, 2)
                await becomes(ray, 2)

    asyncio.run(scenario())


CONFIG = """
[[models]]
name = "m"
[[models.pools]]
name = "a"
application = "llm"
deployment = "Worker"
"""


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ('[[models.pools]]\nname = "a"\napplication = "llm"\ndeployment = "Other"\n', "models[0].pools"),
        ('[[models.pools]]\nname = "b"\napplication = "llm"\ndeployment = "Worker"\n', "models[0].pools[1]"),
        ('[[models]]\nname = "m"\npools = [{name = "x", application = "y", deployment = "z"}]\n', "models"),
        ('[[models]]\nname = "n"\npools = []\n', "models[1].pools"),
    ],
)
def test_an_invalid_file_is_explained(tmp_path: Path, more: str, place: str) -> None:
    path = tmp_path / "ray.toml"
    path.write_text(CONFIG, "utf-8")
    assert read(path).models[0].pools[0].deployment == "Worker"
    path.write_text(f"{CONFIG}{more}", "utf-8")
    with pytest.raises(ConfigError) as error:
        read(path)
    assert error.value.place == place
    path.write_text(f'address = "http://user@ray"{CONFIG}', "utf-8")
    with pytest.raises(ConfigError, match="address: contains a login"):
        read(path)
