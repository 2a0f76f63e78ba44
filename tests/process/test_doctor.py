"""`loadline doctor` against real servers with the permissions of deploy/: one thing is broken in each test."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from aiohttp import web

from loadline.adapters.etcd_rpc import EtcdRpc
from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs, parse
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.doctor.deployment import Deployment, of_config
from loadline.doctor.examination import examine
from loadline.doctor.findings import Finding
from loadline.ports import Write
from loadline.rig.server_processes import EtcdServer, NatsServer
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects
from tests.support.loadline_process import running_loadline
from tests.support.secured import NATS_FILE, etcd_login, nats_login, secure_etcd, secured_nats
from tests.waiting import SCENARIO_S, until_true

pytestmark = pytest.mark.process

KEYS = Keys("default")
SCHEMA = Path(__file__).parents[2] / "schemas/output/doctor.v1.json"
SUBJECTS = Subjects("loadline")
CONFIG = """
[agent]
name = "agent-1"
log_format = "json"
[nats]
servers = ["{nats.servers[0]}"]
user = "{nats.user}"
password_file = "{nats.password_file}"
inbox_prefix = "{nats.inbox_prefix}"
[etcd]
endpoints = ["{etcd.endpoints[0]}"]
user = "{etcd.user}"
password_file = "{etcd.password_file}"
[http]
port = 0
[fleet]
stale_after_ms = 2000
[[models]]
name = "llama"
[[models.pools]]
name = "decode"
role = "decode"
gpus_per_worker = 2
"""


class Fleet:
    """Secured servers with an agent that leads, a scaler, and the login of the agents."""

    def __init__(self, directory: Path, nats: NatsServer, etcd: EtcdServer) -> None:
        self.directory, self.nats, self.etcd = directory, nats, etcd
        self.nats_login = nats_login(nats, "agent", directory)
        self.etcd_login = etcd_login(etcd, "loadline-agent", directory)
        self.config = directory / "agent.toml"
        self.config.write_text(self.text())
        self.scaler = directory / "scaler.toml"
        self.scaler.write_text(CONFIG.format(nats=nats_login(nats, "observed-llama", directory), etcd=self.etcd_login))

    def text(self) -> str:
        return CONFIG.format(nats=self.nats_login, etcd=self.etcd_login)

    def deployment(self) -> Deployment:
        return of_config(parse(self.text(), "the test"))

    def findings(self, *, nats: NatsKnobs | None = None, etcd: EtcdKnobs | None = None) -> list[Finding]:
        return asyncio.run(self.examine(nats, etcd))

    async def examine(self, nats: NatsKnobs | None = None, etcd: EtcdKnobs | None = None) -> list[Finding]:
        used = msgspec.structs.replace(self.deployment(), nats=nats or self.nats_login, etcd=etcd or self.etcd_login)
        return await examine(used)

    @contextlib.asynccontextmanager
    async def registered(self, **fields: object) -> AsyncIterator[WorkerRecord]:
        """Register a worker for as long as the context lasts."""
        base = {"model": "llama", "pool": "decode", "worker": "w-1", "role": "decode", "incarnation": 1, "gpus": 2}
        record = msgspec.convert(base | fields, WorkerRecord)
        store = EtcdStore(self.etcd_login)
        key = KEYS.worker(*record.names)
        await store.commit([], [Write(key, encode(record))])
        try:
            yield record
        finally:
            await store.commit([], [Write(key, None)])
            await store.close()


def of(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def only(findings: list[Finding], check: str) -> Finding:
    [finding] = of(findings, check)
    return finding


def not_ok(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.verdict in {"failed", "warning"}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("doctor")
    with secured_nats(directory / "nats") as nats, EtcdServer(directory / "etcd") as etcd:
        secure_etcd(etcd, directory / "passwords", "default", "llama")
        found = Fleet(directory, nats, etcd)
        log = directory / "agent.log"
        scaler = "scaler", "observed", "--config", str(found.scaler)  # another autoscaler applies the decisions
        with (
            running_loadline(log, "run", "--config", str(found.config)),
            running_loadline(directory / "scaler.log", *scaler),
        ):
            until_true(lambda: b'"event":"ready"' in log.read_bytes().replace(b" ", b""), "the agent is ready")
            until_true(lambda: not_ok(found.findings()) <= {"agents", "workers", "etcd version"}, "it leads")
            until_true(lambda: only(found.findings(), "scalers").verdict == "ok", "the scaler accepts its decisions")
            yield found


def test_a_deployment_as_documented_has_no_failure(fleet: Fleet) -> None:
    command = [sys.executable, "-m", "loadline", "doctor", "--json", "--config", str(fleet.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = msgspec.json.decode(done.stdout, type=list[Finding])
    jsonschema.validate(json.loads(done.stdout), json.loads(SCHEMA.read_text("utf-8")))
    assert done.returncode == 0, done.stdout
    assert not [finding for finding in found if finding.verdict == "failed"]
    assert all(finding.remedy for finding in found if finding.verdict != "ok")
    assert "agent-1 leads" in only(found, "leader").text
    assert only(found, "clock of etcd").verdict == only(found, "clocks of agents").verdict == "ok"
    assert '"refused"' not in (fleet.directory / "agent.log").read_text("utf-8"), "no probe reaches an agent"
    assert "permissions violation" not in (fleet.directory / "scaler.log").read_text("utf-8").lower()


def test_a_missing_inbox_prefix_is_found_and_fails(fleet: Fleet, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(fleet.text().replace('inbox_prefix = "_INBOX_agent"', ""))
    command = [sys.executable, "-m", "loadline", "doctor", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "nats replies" in line)
    assert line.startswith("failed")
    assert "no drain or migrate command is ever answered" in line
    assert 'Set nats.inbox_prefix to the one that the server permits, such as "_INBOX_agent".' in done.stdout


def test_a_wrong_password_of_nats_is_named(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("wrong")
    login = msgspec.structs.replace(fleet.nats_login, password_file=str(tmp_path / "wrong"))
    found = only(fleet.findings(nats=login), "nats")
    assert found.verdict == "failed"
    assert "nats.password_file" in found.remedy


@pytest.mark.parametrize(
    ("permission", "check", "subject"),
    [
        ('"loadline.v1.drain.>"', "nats publish", "loadline.v1.drain.%doctor"),
        ('"loadline.v1.decision.*"', "nats publish", "loadline.v1.decision.%doctor"),
        ('"loadline.v1.drained.>"', "nats subscribe", "loadline.v1.drained.>"),
    ],
)
def test_a_missing_permission_of_nats_is_named(tmp_path: Path, permission: str, check: str, subject: str) -> None:
    text = NATS_FILE.read_text("utf-8")
    with secured_nats(tmp_path / "nats", text.replace(permission, '"unused"', 1)) as server:
        found = asyncio.run(examine(Deployment(nats_login(server, "agent", tmp_path), unreachable_etcd())))
    assert only(found, check).verdict == "failed"
    assert subject in only(found, check).text
    checks = {"nats publish", "nats subscribe", "nats replies"}
    assert checks & not_ok(found) == {check}


def test_a_small_payload_limit_is_found(tmp_path: Path) -> None:
    text = NATS_FILE.read_text("utf-8").replace("max_payload: 1MB", "max_payload: 64KB")
    with secured_nats(tmp_path / "nats", text) as server:
        found = asyncio.run(examine(Deployment(nats_login(server, "agent", tmp_path), unreachable_etcd())))
    assert only(found, "nats payload").verdict == "failed"
    assert "65,536" in only(found, "nats payload").text


def unreachable_etcd() -> EtcdKnobs:
    return EtcdKnobs(endpoints=("http://127.0.0.1:1",))


def test_a_role_that_may_only_read_etcd_is_found_and_nothing_is_written(fleet: Fleet, tmp_path: Path) -> None:
    found = fleet.findings(etcd=etcd_login(fleet.etcd, "loadline-reader", tmp_path))
    assert only(found, "etcd").verdict == "ok"
    assert only(found, "etcd permissions").verdict == "failed"
    assert KEYS.leader("all") in only(found, "etcd permissions").text
    assert "and 2 more" in only(found, "etcd permissions").text, "five kinds of keys"


def test_a_full_etcd_is_found_and_probes_write_nothing(
    private_etcd: Callable[[], EtcdServer], private_nats: Callable[..., NatsServer]
) -> None:
    etcd, nats = private_etcd(), private_nats()
    knobs = EtcdKnobs(endpoints=(etcd.url,))

    async def scenario() -> tuple[list[Finding], list[Finding]]:
        store, rpc = EtcdStore(knobs), EtcdRpc(knobs)
        healthy = await examine(Deployment(NatsKnobs(servers=(nats.url,)), knobs))
        assert (await store.read("")).revision == 1, "no write"
        await rpc.call("/maintenance/alarm", {"action": "ACTIVATE", "memberID": 0, "alarm": "NOSPACE"}, msgspec.Struct)
        full = await examine(Deployment(NatsKnobs(servers=(nats.url,)), knobs))
        await rpc.close()
        await store.close()
        return healthy, full

    healthy, full = asyncio.run(scenario())
    assert only(healthy, "etcd permissions").verdict == only(healthy, "etcd space").verdict == "ok"
    assert only(healthy, "agents").verdict == only(healthy, "leader").verdict == "failed"
    assert "NOSPACE" in only(full, "etcd space").text
    assert "alarm disarm" in only(full, "etcd permissions").remedy


def test_servers_that_are_frozen_are_reported_while_they_are_frozen(
    private_etcd: Callable[[], EtcdServer], private_nats: Callable[..., NatsServer]
) -> None:
    etcd, nats = private_etcd(), private_nats()
    etcd.pause()
    nats.pause()
    deployment = Deployment(NatsKnobs(servers=(nats.url,)), EtcdKnobs(endpoints=(etcd.url,)))
    found = asyncio.run(asyncio.wait_for(examine(deployment), SCENARIO_S))
    assert only(found, "nats").verdict == only(found, "etcd").verdict == "failed"
    assert {finding.verdict for finding in found} == {"failed", "skipped"}


def test_a_worker_whose_clock_is_ahead_is_named(fleet: Fleet, tmp_path: Path) -> None:
    async def scenario() -> list[Finding]:
        worker = NatsBus(nats_login(fleet.nats, "worker-llama-decode", tmp_path), name="test")
        await worker.connect(lambda _connected: None)
        ahead_ms = time.time_ns() // 1_000_000 + 300_000
        report = encode(LoadReport("llama", "decode", "w-9", 1, [WorkerSample(1, ahead_ms)]))
        examining = asyncio.create_task(fleet.examine())
        while not examining.done():
            await worker.publish(SUBJECTS.load("llama", "decode", "w-9"), report)
            await asyncio.wait([examining], timeout=0.1)
        await worker.close()
        return examining.result()

    found = only(asyncio.run(scenario()), "clocks of workers")
    assert found.verdict == "failed"
    assert "w-9" in found.text
    assert "ahead of this host" in found.text


@pytest.mark.parametrize(
    ("fields", "verdict", "text"),
    [
        ({"pool": "other"}, "failed", "no such pool: llama/other/w-1"),
        ({"role": "prefill"}, "failed", "llama/decode/w-1 (prefill instead of decode)"),
        ({"gpus": 4}, "warning", "llama/decode/w-1 (4 instead of 2)"),
    ],
)
def test_a_worker_that_fits_no_pool_is_named(fleet: Fleet, fields: dict[str, object], verdict: str, text: str) -> None:
    async def scenario() -> list[Finding]:
        async with fleet.registered(**fields):
            return await fleet.examine()

    found = only(asyncio.run(scenario()), "workers")
    assert found.verdict == verdict
    assert text in found.text


def test_an_engine_that_serves_another_model_without_metrics_is_named(fleet: Fleet) -> None:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "qwen"}]})

    async def scenario() -> list[Finding]:
        application = web.Application()
        application.add_routes([web.get("/v1/models", models)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with fleet.registered(address=f"http://127.0.0.1:{runner.addresses[0][1]}"):
                return await fleet.examine()
        finally:
            await runner.cleanup()

    failure, warned = of(asyncio.run(scenario()), "engines")
    assert (failure.verdict, warned.verdict) == ("failed", "warning")
    assert "serves qwen, not llama" in failure.text
    assert "HTTP 404" in warned.text


def test_an_invalid_configuration_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadline", "doctor", "--config", str(tmp_path / "none.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "none.toml" in done.stderr
