"""What engines and routers say, and what clients ask of them: pages of metrics, streams and requests."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from loadline.core.vocabulary.events import TrafficReported
from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.engine_metrics.tables import detect
from loadline.errors import NotAnExposition
from loadline.gateway.api_request import CHAT, COMPLETIONS, ApiRequest, read_request
from loadline.gateway.errors import ApiError
from loadline.gateway.sse import EventReader, EventTooLarge, write_event
from loadline.gateway.stream_reply import EngineFailed, StreamReply
from loadline.gateway.traffic import Measured
from loadline.sidecar.engine_state import EngineState
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import TrafficReport
from tests.fuzz.target import Target
from tests.fuzz.targets.wire import SUBJECTS
from tests.support.engine_pages import RECORDED_VLLM, check_reports, page, vllm

_CODEC: Final = Codec(SUBJECTS, 1_048_576)
_PAGE_END: Final = b"\n\0"
"""Between two pages of an engine."""


def read_pages(data: bytes) -> None:
    """Read pages of one engine in turn, as its sidecar does; agents must accept what it makes of them."""
    engine = detect(data) or "vllm"
    state = EngineState(engine, 0)
    for number, one in enumerate(data.split(_PAGE_END)[:4]):
        reading = state.answered(one, number * 1_000, number * 1_000)
        if reading is None:
            continue
        check_reports(reading, number)


def read_router_pages(data: bytes) -> None:
    """Read pages of the router that the first line names."""
    name, _, rest = data.partition(b"\n")
    table = ROUTERS.get(name.decode("utf-8", "replace"))
    if table is None:
        return
    reader = RouterReader(table, {"tiny": "m"}, "m", lambda worker: "m" if worker else None)
    for number, one in enumerate(rest.split(_PAGE_END)[:4]):
        try:
            found = reader.read(one, 1_000 + number * 1_000)
        except NotAnExposition:
            continue
        for model, sample in found.items():
            report = encode(TrafficReport(model, "r", 1, replace(sample, sequence=number)))
            assert isinstance(_CODEC.decode(SUBJECTS.traffic(model, "r"), report), TrafficReported)


def read_reply(data: bytes) -> None:
    """Relay the stream behind the first line, which is the client's request, and continue it elsewhere if it fails."""
    first, _, stream = data.partition(b"\n")
    endpoint = CHAT if b'"messages"' in first else COMPLETIONS
    try:
        asked = read_request(endpoint, first, ("tiny",))
    except ApiError:
        return
    measured = Measured(0.0, 0)
    reply = StreamReply(asked, measured)
    reply.first_body(with_ids=True)
    try:
        _relay(reply, stream, 61 if len(stream) % 2 else len(stream) or 1)
    except (EngineFailed, EventTooLarge):
        if reply.can_continue and reply.next_body(4_096) is None:
            reply.end()


def _relay(reply: StreamReply, stream: bytes, size: int) -> None:
    reader = EventReader()
    for start in range(0, len(stream), size):
        for event in reader.feed(stream[start : start + size]):
            for sent in reply.accept(event):
                write_event(sent)
            if reply.done:
                return
    if reply.can_continue:
        raise EngineFailed("it closed the connection")


def read_body(data: bytes) -> None:
    """Read a request to the gateway, and make what engines get of it."""
    for endpoint in (CHAT, COMPLETIONS):
        try:
            asked = read_request(endpoint, data, ("tiny",))
        except ApiError as error:
            answer = error.response()
        else:
            _use(asked)
            continue
        assert answer.content_length is not None
        assert answer.content_length < 4_000  # 100 characters, escaped twice


def _use(asked: ApiRequest) -> None:
    chars, tokens = asked.prompt_size()
    assert chars >= 0
    assert tokens >= 0
    reply = StreamReply(asked, Measured(0.0, chars))
    reply.first_body(with_ids=True)
    reply.first_body(with_ids=False)
    reply.tokens_left  # noqa: B018 - a report has it
    reply.next_body(4_096)
    reply.next_body(None)
    reply.end()


def _chunks(*choices: dict[str, object], **more: object) -> bytes:
    head = {"id": "x", "object": "chunk", "created": 1, "model": "tiny"}
    chunks = [msgspec.json.encode({**head, "choices": [{"index": 0, **choice}], **more}) for choice in choices]
    return b"".join(map(write_event, [*chunks, b"[DONE]"]))


def _streams() -> Iterator[bytes]:
    text, chat = b'{"model":"tiny","prompt":"a","stream":true,', b'{"model":"tiny","messages":[{"content":"a"}],'
    ids = {"prompt_token_ids": [1, 2]}
    yield text + b'"max_tokens":9}\n' + _chunks({"text": "b", "token_ids": [3], **ids}, {"text": "c", "token_ids": [4]})
    yield (
        text
        + b'"stream_options":{"include_usage":true}}\n'
        + _chunks(
            {"text": "b", "token_ids": [3, 5], **ids}, {"text": "", "finish_reason": "stop"}, usage={"prompt_tokens": 2}
        )
    )
    yield (
        chat
        + b'"stream":true}\n'
        + _chunks({"delta": {"role": "assistant"}}, {"delta": {"content": "b"}, "token_ids": [7]}, prompt_token_ids=[1])
    )
    yield text + b'"n":1}\ndata: {"error":{"message":"x"}}\n\n'


_BODIES: Final = [
    b'{"model":"tiny","prompt":"hello","max_tokens":16,"stream":true,"stream_options":{"include_usage":true}}',
    b'{"model":"tiny","prompt":[1,2,3],"n":1,"stop":[],"logit_bias":{"5":1.5},"seed":1,"temperature":0}',
    (
        b'{"model":"tiny","messages":[{"role":"user","content":"hi"},{"role":"user","content":[{"type":"text","text":"x"}]}],'
        b'"max_completion_tokens":9,"tools":[],"response_format":{"type":"text"}}'
    ),
]
_ROUTED: Final = b"".join(
    b"%s 3\n" % name
    for name in (
        b'smg_http_requests_total{model="tiny"}',
        b'vllm_router:requests_total{model="tiny"}',
        b'inference_objective_request_total{model_name="tiny"}',
    )
)
ENGINE_TARGETS: Final = (
    Target(
        "pages",
        read_pages,
        [
            page(vllm()) + _PAGE_END + page(vllm(finished=2, prompts=(3, 90), ttft_s=1.5, outputs=(2, 20))),
            RECORDED_VLLM,
            b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n",
            b'# TYPE tgi_queue_size gauge\ntgi_queue_size 1\ntgi_batch_current_size{a="\\"}"} 2\n',
            b"trtllm_num_requests_running 1\n",
        ],
    ),
    Target("routers", read_router_pages, [name.encode() + b"\n" + _ROUTED + _PAGE_END + _ROUTED for name in ROUTERS]),
    Target("replies", read_reply, list(_streams())),
    Target("requests", read_body, _BODIES),
)
