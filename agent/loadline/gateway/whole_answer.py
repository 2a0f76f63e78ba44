"""Answers that are not streamed: until the engine has answered, another one can start over."""

import asyncio

from aiohttp import web

from loadline.gateway import headers
from loadline.gateway.api_request import ApiRequest
from loadline.gateway.attempts import FIRST_ERROR, Attempts
from loadline.gateway.engine_client import EngineBroken, EngineClient, Unreachable, read_whole
from loadline.gateway.engine_wait import EngineWait
from loadline.gateway.first_byte import too_late
from loadline.gateway.model import ServedModel
from loadline.gateway.traffic import Measured


async def answer_whole(
    request: web.Request, asked: ApiRequest, model: ServedModel, measured: Measured, engines: EngineClient
) -> web.Response:
    """Return the answer of an engine to a request that is not streamed.

    Raises:
        ApiError: No worker answered, or not in time.
    """
    attempts = Attempts(model, measured.arrived_s, len(asked.raw))
    sent = headers.to_engine(request.headers, engines.via)
    while True:
        backend = await attempts.next_backend()
        try:
            with model.backends.using(backend):
                async with (
                    asyncio.timeout(model.first_byte_s),
                    EngineWait(backend, model.stall_s, model.backends.has_other),
                    engines.post(backend, asked.endpoint, asked.raw, sent) as answer,
                ):
                    body = await read_whole(answer)
        except TimeoutError:
            raise too_late(model, backend) from None
        except Unreachable as error:
            attempts.unreachable(backend, error)
            continue
        except EngineBroken as error:
            attempts.failed(backend, str(error))
            continue
        status = attempts.client_status(backend, answer.status, body)
        if status is None:
            continue
        if status < FIRST_ERROR and not attempts.finished(backend, body, measured):
            continue
        return web.Response(status=status, body=body, headers=headers.to_client(answer.headers))
