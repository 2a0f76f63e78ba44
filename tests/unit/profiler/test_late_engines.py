"""Command `loadline profile` with two engines, one of which is not ready at the start."""

from pathlib import Path

import pytest
from aiohttp import web

from loadline.cli import event_loop, profile
from loadline.cli.main import main, parser
from loadline.demo.openai.application import EngineApi
from loadline.profile_files import read_prefill
from loadline.profiler.record import Record
from tests.support.openai_engines import openai_engine
from tests.support.profiling import virtual_ms
from tests.support.virtual_time import run_virtual


class Loading(EngineApi):
    """API whose engine loads its model for a while after the first request."""

    loads_ms = 0.0
    ready_ms: float | None = None

    async def _models(self, request: web.Request) -> web.Response:
        self.ready_ms = self.ready_ms or virtual_ms() + self.loads_ms
        if virtual_ms() < self.ready_ms:
            return web.json_response({"error": {"message": "Loading model"}}, status=503)
        return await super()._models(request)


class LoadsLong(Loading):
    loads_ms = 20_000.0


class LoadsForEver(Loading):
    loads_ms = float("inf")


def measured(api: type[EngineApi], command: list[str]) -> tuple[dict[str, Record], dict[str, str], str]:
    """Measure an engine of ``api``, late, and one that is ready; return records, problems and the URL of late."""

    async def scenario() -> tuple[dict[str, Record], dict[str, str], str]:
        async with openai_engine(api=api) as late, openai_engine() as ready:
            options = parser().parse_args([*command, "--url", f"late={late}", "--url", f"ready={ready}"])
            return *await profile._measure_all(profile._engines(options), options), late

    return run_virtual(scenario())


def test_an_engine_that_gets_ready_meanwhile_is_measured_after_the_others(tmp_path: Path) -> None:
    command = ["profile", "--quick", "--max-concurrency", "2", "--directory", str(tmp_path)]
    records, problems, _ = measured(LoadsLong, command)
    assert problems == {}
    assert records["late"].count == records["ready"].count > 0


@pytest.mark.parametrize(("file", "problem"), [("late/measurements.jsonl", "no measurements"), ("late", "File exists")])
def test_a_folder_that_a_late_engine_cannot_use_leaves_what_was_measured(
    file: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}\n", "utf-8")
    command = ["profile", "--quick", "--max-concurrency", "2", "--directory", str(tmp_path)]
    records, problems, _ = measured(LoadsLong, command)
    assert records["ready"].count > 0
    assert list(problems) == ["late"]
    assert problem in problems["late"]
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("The same command continues") == 1, "while the engine was loading, not with this folder"


def test_an_engine_that_does_not_get_ready_is_named_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", "--quick", "--max-concurrency", "2", "--directory", str(tmp_path)]
    records, problems, url = measured(LoadsForEver, command)
    assert list(records) == ["ready"]
    said = capsys.readouterr().err
    assert said.count(f"late: {url} answers 503, Loading model. See the engine's log.") == 2
    monkeypatch.setattr(profile, "_measure_all", lambda *_: (records, problems))
    monkeypatch.setattr(event_loop, "run", lambda found: found)
    assert main([*command, "--url", f"late={url}", "--url", "ready=http://x"]) == 1
    assert f"late: no profile: {url} answers 503, Loading model." in capsys.readouterr().out
    read_prefill(tmp_path / "ready")


def test_an_engine_that_is_not_ready_is_asked_no_more_if_there_is_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> tuple[dict[str, Record], dict[str, str]]:
        async with openai_engine(api=LoadsForEver) as url:
            options = parser().parse_args(["profile", "--url", url, "--directory", str(tmp_path)])
            return await profile._measure_all(profile._engines(options), options)

    records, problems = run_virtual(scenario())
    assert (records, list(problems)) == ({}, ["engine-1"])
    assert capsys.readouterr().err.count("answers 503") == 1


def test_the_same_command_does_not_continue_where_another_one_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> dict[str, str]:
        async with openai_engine() as url:
            command = ["profile", "--url", url, "--directory", str(tmp_path), "--model", "other"]
            options = parser().parse_args(command)
            return (await profile._measure_all(profile._engines(options), options))[1]

    assert "Give --model one of" in run_virtual(scenario())["engine-1"]
    said = capsys.readouterr().err
    assert "Give --model one of" in said
    assert "The same command" not in said
