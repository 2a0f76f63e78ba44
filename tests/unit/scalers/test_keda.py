"""KEDA scaler over real gRPC: answers, pushes, refusals, health, reflection and TLS."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from loadline.adapters import grpc_server
from loadline.adapters.client_tls import load_context
from loadline.adapters.grpc_server import GrpcServer, TlsFiles
from loadline.errors import ConfigError
from loadline.scalers.desired_counts import DesiredCounts
from loadline.scalers.keda import KedaService
from loadline.scalers.keda_calls import SILENT_S, KedaCalls
from loadline.scalers.keda_config import read
from loadline.scalers.keda_messages import SERVICE
from tests.support.certificates import encrypt_key, self_signed
from tests.support.keda import METRIC, Keda, Pushes, keda_at
from tests.unit.scalers.test_desired_counts import HOLD_S, Clock, decided, reported
from tests.waiting import until, until_async

POOL = {"model": "m", "pool": "decode"}


class Scaler:
    """A scaler that serves, its counts and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.counts = DesiredCounts(["m", "other"], HOLD_S, self.clock)
        self.calls = KedaCalls(self.clock)
        self.service = KedaService(self.counts, self.calls)
        self.server = GrpcServer(SERVICE, self.service.handlers)
        self.port = 0
        self.sequence = 0

    def decide(self, replicas: int) -> None:
        self.sequence += 1
        self.counts.apply_decision(decided(1, self.sequence, replicas))


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Scaler, Keda]]:
    scaler = Scaler()
    scaler.port = await scaler.server.start("127.0.0.1", 0)
    try:
        async with keda_at(scaler.port) as keda:
            yield scaler, keda
    finally:
        scaler.service.close()
        await scaler.server.stop()


def run_scenario(scenario: Callable[[Scaler, Keda], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), serving() as (scaler, keda):
            await scenario(scaler, keda)

    asyncio.run(run())


def test_an_hpa_gets_as_many_replicas_as_decided() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(12)
        [spec] = (await keda.call("GetMetricSpec", **POOL)).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 1, 1.0)
        assert await keda.value(**POOL) == 12
        assert (await keda.call("IsActive", **POOL)).result
        scaler.decide(0)
        assert await keda.value(**POOL) == 0
        assert not (await keda.call("IsActive", **POOL)).result

    run_scenario(scenario)


def test_the_target_is_sent_at_once_and_its_stream_stays_open() -> None:
    async def scenario(_scaler: Scaler, keda: Keda) -> None:
        stream = keda.call("StreamMetricSpec", **POOL)
        assert (await stream.read()).metricSpecs[0].targetSize == 1
        assert not stream.done()

    run_scenario(scenario)


def test_a_stream_says_whenever_a_pool_has_become_active_and_never_that_it_is_not() -> None:
    """KEDA would end all workers at a pushed false, even if other triggers of the ScaledObject are active."""

    async def scenario(scaler: Scaler, keda: Keda) -> None:
        pushes = Pushes(keda.call("StreamIsActive", **POOL))
        await until(lambda: any(scaler.calls._streams.values()), "the stream is open")
        for replicas, pushed in ((0, 0), (1, 1), (2, 1), (3, 1), (0, 1), (4, 2), (0, 2)):
            scaler.decide(replicas)
            await until(lambda: len(pushes.received) >= pushed)  # noqa: B023 - awaited in the same turn of the loop
            assert await keda.value(**POOL) == replicas
            assert pushes.received == [True] * pushed
        scaler.service.close()
        await pushes.task
        assert await pushes.call.code() is grpc.StatusCode.OK  # after an error KEDA waits longer

    run_scenario(scenario)


def test_a_pool_that_keda_does_not_ask_for_has_a_reason() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        def told() -> bool:
            return "KEDA has not asked for its count for 120 s" in scaler.calls.obstacle("m", "decode")

        scaler.decide(1)
        assert not told(), "it has time to begin"
        scaler.clock.now_s += SILENT_S
        assert told()
        scaler.decide(1)
        assert await keda.value(**POOL) == 1
        assert not told()
        pushes = Pushes(keda.call("StreamIsActive", **POOL))
        await until(lambda: pushes.received)
        scaler.clock.now_s += SILENT_S
        assert not told(), "its stream is open"
        pushes.call.cancel()  # the peer has gone
        await asyncio.wait([pushes.task])
        # The server learns of it a little later; the end of a stream is a sign of life too.
        await until(lambda: not any(scaler.calls._streams.values()))
        assert not told()
        scaler.clock.now_s += SILENT_S
        assert told()

    run_scenario(scenario)


def test_names_of_pools_that_do_not_exist_are_not_kept() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        pushes = [Pushes(keda.call("StreamIsActive", model="m", pool=f"p{number}")) for number in range(3)]
        await until(lambda: len(scaler.calls._streams) == len(pushes))
        for each in pushes:
            each.call.cancel()
        await until(lambda: not scaler.calls._streams)
        assert not scaler.calls._last_s

    run_scenario(scenario)


def test_counts_are_kept_for_a_time_and_then_unavailable_while_streams_go_on() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        assert (await keda.refusal("GetMetrics", **POOL))[0] == "UNAVAILABLE"
        scaler.decide(3)
        pushes = Pushes(keda.call("StreamIsActive", **POOL))
        await until(lambda: pushes.received == [True])
        scaler.clock.now_s += HOLD_S
        assert await keda.value(**POOL) == 3
        scaler.clock.now_s += 0.1
        assert (await keda.refusal("GetMetrics", **POOL))[0] == "UNAVAILABLE"
        code, detail = await keda.refusal("IsActive", **POOL)
        assert code == "UNAVAILABLE"
        assert "pool decode of model m" in detail
        late = Pushes(keda.call("StreamIsActive", **POOL))
        await keda.call("GetMetricSpec", **POOL)
        assert late.received == []
        scaler.counts.apply_status(reported(1, scaler.sequence, 3))
        await until(lambda: late.received == [True])
        assert await keda.value(**POOL) == 3
        scaler.decide(0)
        assert await keda.value(**POOL) == 0
        scaler.decide(2)
        await until(lambda: pushes.received == late.received == [True, True])

    run_scenario(scenario)


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (
            {"pool": "decode"},
            "The metadata `model` of the trigger of serving/llama-decode is missing. Known: m, other.",
        ),
        ({"model": "llama", "pool": "decode"}, "`model` of .* is 'llama'. Known: m, other."),
        ({"model": "m"}, "`pool` of .* is missing. Known: decode."),
        ({"model": "m", "pool": "x\n" * 99}, r"`pool` of .* is 'x.{0,70}'. Known: decode."),
        ({"model": "M", "pool": "decode"}, "is 'M'. Known: m, other."),
    ],
)
def test_wrong_metadata_is_refused_with_the_known_names(method: str, metadata: dict[str, str], sentence: str) -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(1)
        code, detail = await keda.refusal(method, **metadata)
        assert code == "INVALID_ARGUMENT"
        assert re.search(sentence, detail), detail
        assert "\n" not in detail

    run_scenario(scenario)


def test_another_metric_is_refused_with_the_known_name() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(1)
        described = SERVICE.methods_by_name["GetMetrics"]
        call = keda.channel.unary_unary(f"/{SERVICE.full_name}/{described.name}")
        with pytest.raises(grpc.aio.AioRpcError, match=METRIC) as refused:
            await call(b"\x12\x03cpu")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run_scenario(scenario)


def test_garbage_and_large_requests_end_their_own_call_only() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(1)
        call = keda.channel.unary_unary(f"/{SERVICE.full_name}/IsActive")
        for payload in (b"\xff" * 9, b"\x0a\x7f", b"\x0a" + bytes([0x80, 0x80, 0x40]) + b"m" * 2**20):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(payload)
        assert await keda.value(**POOL) == 1

    run_scenario(scenario)


def test_thousands_of_streams_are_pushed_and_one_that_breaks_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(0)
        streams = [Pushes(keda.call("StreamIsActive", **POOL)) for _ in range(2_000)]
        await until(lambda: sum(scaler.calls._streams.values()) == len(streams), "all streams are open")
        for gone in streams[::2]:
            gone.call.cancel()
        await asyncio.wait([gone.task for gone in streams[::2]])
        started_s = asyncio.get_running_loop().time()
        scaler.decide(1)
        await until(lambda: all(one.received == [True] for one in streams[1::2]), "all streams are pushed")
        assert asyncio.get_running_loop().time() - started_s < 5

    run_scenario(scenario)
    assert not caplog.records


def test_a_peer_that_closes_its_connection_leaves_no_stream_behind() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        scaler.decide(1)
        before = len(asyncio.all_tasks())
        pushes = [Pushes(keda.call("StreamIsActive", **POOL)) for _ in range(20)]
        await until(lambda: all(one.received == [True] for one in pushes))
        assert len(asyncio.all_tasks()) >= before + 20
        await keda.channel.close()
        await asyncio.wait([one.task for one in pushes])
        await until(lambda: len(asyncio.all_tasks()) <= before, "the handlers have ended")

    run_scenario(scenario)


def test_health_tells_whether_the_process_serves_and_whether_it_knows_counts() -> None:
    async def scenario(scaler: Scaler, keda: Keda) -> None:
        health = health_pb2_grpc.HealthStub(keda.channel)
        serving_states = health_pb2.HealthCheckResponse

        async def state(service: str) -> Any:
            return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status

        await scaler.server.set_serving(serving=False)
        assert await state("") == serving_states.SERVING
        assert await state(SERVICE.full_name) == serving_states.NOT_SERVING
        await scaler.server.set_serving(serving=True)
        assert await state(SERVICE.full_name) == serving_states.SERVING

    run_scenario(scenario)


def test_reflection_describes_all_services() -> None:
    async def scenario(_scaler: Scaler, keda: Keda) -> None:
        request = reflection_pb2.ServerReflectionRequest
        names = [SERVICE.full_name, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
        asked = [request(list_services=""), *(request(file_containing_symbol=name) for name in names)]
        stub = reflection_pb2_grpc.ServerReflectionStub(keda.channel)
        answers = [one async for one in stub.ServerReflectionInfo(iter(asked))]
        assert sorted(one.name for one in answers[0].list_services_response.service) == sorted(names)
        for name, answer in zip(names, answers[1:], strict=True):
            [file] = answer.file_descriptor_response.file_descriptor_proto
            described = descriptor_pb2.FileDescriptorProto.FromString(file)
            assert f"{described.package}.{described.service[0].name}" == name

    run_scenario(scenario)


def test_tls_checks_clients_and_follows_renewed_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock(wraps=load_context)
    monkeypatch.setattr(grpc_server, "load_context", load)

    async def scenario() -> None:
        own, keda_own = self_signed(tmp_path / "scaler"), self_signed(tmp_path / "keda")
        files = TlsFiles(str(own.certificate), str(own.key), client_ca_file=str(keda_own.certificate))
        counts = DesiredCounts(["m"], HOLD_S)
        counts.apply_decision(decided(1, 1, 3))
        server = GrpcServer(SERVICE, KedaService(counts, KedaCalls()).handlers, files)
        port = await server.start("127.0.0.1", 0)

        async def value(authority: bytes, *, certified: bool = True) -> float | str:
            login = (keda_own.key.read_bytes(), keda_own.certificate.read_bytes()) if certified else (None, None)
            async with keda_at(port, grpc.ssl_channel_credentials(authority, *login)) as keda:
                try:
                    return await keda.value(**POOL)
                except grpc.aio.AioRpcError as error:
                    return str(error.code().name)

        try:
            old = own.certificate.read_bytes()
            assert await value(old) == 3
            assert await value(old, certified=False) == "UNAVAILABLE"
            load.assert_not_called()  # of unchanged files, which took 30 ms at each connection
            encrypt_key(own.key)
            assert await value(old) == 3, "the new files cannot be used"
            load.assert_called()
            own.certificate.unlink()
            assert await value(old) == 3  # the one in use is kept
            self_signed(tmp_path / "scaler")
            new = own.certificate.read_bytes()

            async def accepted() -> bool:
                return await value(new) == 3

            await until_async(accepted, "the renewed certificate is used")
            assert await value(old) == "UNAVAILABLE"
        finally:
            await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models = []", "models"),
        ('models = ["m", "m"]', "two models have the same name"),
        ('models = ["m"]\nhold_ms = 10', "hold_ms"),
        ('models = ["m"]\nscale = 1', "scale"),
        (
            'models = ["m"]\n[tls]\ncert_file = "/none"\nkey_file = "/none"',
            r"tls\.cert_file: /none cannot be used: No such file",
        ),
        ('models = ["m"]\n[tls]\ncert_file = "/none"', "key_file"),
        ('models = ["m"]\n[tls]\ncert_file = ""\nkey_file = "/none"', r"tls\.cert_file: "),
        ('models = ["m"]\n[tls]\ncert_file = "/none"\nkey_file = ""', r"tls\.key_file: "),
    ],
)
def test_an_invalid_configuration_names_the_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "keda.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=problem):
        read(file)


@pytest.mark.parametrize("key", ["cert_file", "key_file", "client_ca_file"])
def test_a_file_for_tls_that_is_none_is_named_with_its_key(key: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    own = self_signed(tmp_path)
    files = {"cert_file": own.certificate, "key_file": own.key, "client_ca_file": own.certificate}
    lines = [f'{name} = "{path}"' for name, path in (files | {key: tmp_path / "fifo"}).items()]
    file = tmp_path / "keda.toml"
    file.write_text("\n".join(['models = ["m"]', "[tls]", *lines]), "utf-8")
    with pytest.raises(ConfigError, match=rf"line \d: tls.{key}: .*fifo cannot be used: .* FIFO"):
        read(file)


def test_a_server_key_with_a_passphrase_is_named(tmp_path: Path) -> None:
    own = self_signed(tmp_path)
    encrypt_key(own.key)
    with pytest.raises(ConfigError, match=r"^tls\.key_file: .*key\.pem has a passphrase\. Name a file with the key in"):
        TlsFiles(str(own.certificate), str(own.key)).check()
