"""Secrets of a running agent: only in their files, also while logins are refused, and new ones need no restart."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadline.rig.server_processes import EtcdServer, NatsServer, free_port
from tests.support.secured import PASSWORD, etcd_login, nats_login, secure_etcd, secured_nats
from tests.waiting import until_true

pytestmark = pytest.mark.process

TOKEN = "t0ken-0123456789"  # noqa: S105 - of this test's agent
WRONG = "wr0ng-passw0rd"
CONFIG = """
[agent]
name = "agent-1"
log_format = "json"
log_level = "debug"
[nats]
servers = ["{nats.servers[0]}"]
user = "agent"
password_file = "{nats.password_file}"
inbox_prefix = "_INBOX_agent"
[etcd]
endpoints = ["{etcd.endpoints[0]}"]
user = "loadline-agent"
password_file = "{etcd.password_file}"
[http]
port = {port}
token_file = "{folder}/token"
[journal]
directory = "{folder}/journal"
[[models]]
name = "llama"
planner = "throughput"
throughput = {{ forecast = {{ predictor = "arima" }} }}
[[models.pools]]
name = "decode"
role = "decode"
linear = {{ alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }}
"""


def loadline(*arguments: str) -> str:
    command = [sys.executable, "-m", "loadline", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


@contextmanager
def agent(config: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "loadline", "run", "--config", str(config)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def page(port: int, path: str, token: str = "") -> tuple[int, str]:
    """Return the answer of the agent; status 0: there is none yet."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = (
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
    )
    return [pid, *(one for child in children for one in family(child))]


def shown(pid: int) -> str:
    """Return what everybody on the machine, or every child, sees of processes."""
    files = (Path(f"/proc/{one}/{name}") for one in family(pid) for name in ("cmdline", "environ", "comm"))
    return "\n".join(file.read_bytes().decode(errors="replace") for file in files)


def test_secrets_are_in_their_files_only_and_are_read_again(tmp_path: Path) -> None:
    config, log, token = tmp_path / "agent.toml", tmp_path / "agent.log", tmp_path / "token"
    token.write_text(f"{TOKEN}\n", "utf-8")
    port = free_port()
    seen: list[str] = []

    def run(nats: NatsServer, etcd: EtcdServer) -> None:
        secure_etcd(etcd, tmp_path / "passwords", "default", "llama")
        login = nats_login(nats, "agent", tmp_path / "nats-login")
        store_login = etcd_login(etcd, "loadline-agent", tmp_path / "etcd-login")
        Path(store_login.password_file).write_text(f"{PASSWORD}\r\n", "utf-8-sig")  # as Notepad writes it
        logins = {"nats": login, "etcd": store_login}
        config.write_text(CONFIG.format(**logins, port=port, folder=tmp_path), "utf-8")
        password = Path(login.password_file)
        with agent(config, log) as process:
            until_true(lambda: process.poll() is not None or page(port, "/readyz")[0] == 200, "the agent leads")
            assert process.poll() is None, log.read_text("utf-8")
            seen.append(shown(process.pid))
            password.write_text(WRONG, "utf-8")
            nats.stop()
            nats.start()
            until_true(lambda: "uthorization" in log.read_text("utf-8"), "a refused login in the log")
            seen.extend(page(port, path, TOKEN)[1] for path in ("/", "/metrics", "/readyz", "/api/decisions"))
            password.write_text(f"{PASSWORD}\r\n", "utf-8-sig")  # as Notepad writes it
            until_true(lambda: page(port, "/readyz")[0] == 200, "the agent leads again")

            def answers() -> bool:  # it leads by etcd alone, also before it has logged in to NATS again
                seen.append(loadline("status", "--config", str(config)))
                return "agent agent-1" in seen[-1]

            until_true(answers, "an answer to the agent's own login, which may ask for its status")
            seen.append(shown(process.pid))
            assert page(port, "/api/token", TOKEN)[0] == 200
            token.write_text("an0ther-0123456789", "utf-8")
            assert page(port, "/api/token", TOKEN)[0] == 401
            assert page(port, "/api/token", "an0ther-0123456789")[0] == 200

    with secured_nats(tmp_path / "nats") as nats, EtcdServer(tmp_path / "etcd") as etcd:
        run(nats, etcd)
    journal = [file.read_text("utf-8") for file in sorted((tmp_path / "journal").glob("*.jsonl"))]
    assert journal
    everything = {"log": log.read_text("utf-8"), "journal": "".join(journal), "seen": "\n".join(seen)}
    assert all(everything.values())
    for name, text in everything.items():
        for secret in (PASSWORD, WRONG, TOKEN):
            assert secret not in text, name
