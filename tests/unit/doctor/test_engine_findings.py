"""Findings about engines at the addresses of workers, from what they answer."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.doctor.engines import engine_findings
from loadline.doctor.findings import Finding
from loadline.doctor.store_facts import StoreFacts


def findings(models: web.Response) -> list[Finding]:
    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 0\n")

    async def served(_request: web.Request) -> web.Response:
        return models

    async def scenario() -> list[Finding]:
        application = web.Application()
        application.router.add_get("/metrics", metrics)
        application.router.add_get("/v1/models", served)
        async with TestServer(application) as server:
            address = str(server.make_url("")).rstrip("/")
            worker = WorkerRecord("llama", "p", "w", "aggregated", 1, address=address)
            return await engine_findings(StoreFacts(workers=(worker,)))

    return asyncio.run(scenario())


@pytest.mark.parametrize("code", [401, 404, 500])
def test_an_engine_that_does_not_tell_its_models_is_no_engine_that_serves_them(code: int) -> None:
    [found] = findings(web.Response(status=code))
    assert (found.check, found.verdict) == ("engines", "warning")
    assert f"HTTP {code}" in found.text
    assert "/v1/models" in found.remedy


def test_an_answer_that_is_no_list_of_models_is_unknown() -> None:
    [found] = findings(web.Response(text="<html>"))
    assert (found.verdict, found.text.startswith("unknown models at w at http://")) == ("warning", True)


def test_an_engine_that_serves_its_workers_model_is_counted() -> None:
    [found] = findings(web.Response(text='{"data":[{"id":"llama"}]}'))
    assert (found.verdict, found.text) == ("ok", "1 serve the models of their workers, with metrics")
