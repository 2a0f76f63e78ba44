"""Commands of the demo's processes, and the configuration files of agent and local scaler."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from loadline.core.migration.knobs import PolicyName
from loadline.core.vocabulary.scalars import Role
from loadline.demo import defaults

Mode = Literal["disaggregated", "aggregated"]
FIRST_AGENT = "agent-1"
ROLES: dict[Mode, tuple[Role, ...]] = {"disaggregated": ("prefill", "decode"), "aggregated": ("aggregated",)}
POLICIES: dict[Mode, tuple[PolicyName, ...]] = {
    "disaggregated": ("decode_load", "prefill_failover", "decode_failover"),
    "aggregated": ("neutral_load", "neutral_failover"),
}


class DemoSetup(Struct, frozen=True):
    """Settings of a demo, its servers and its folder. Every pool has the name of its role.

    The servers are URLs, separated by commas if a cluster has several members.
    """

    nats: str
    etcd: str
    directory: Path
    mode: Mode = "disaggregated"
    trace_speed: int = defaults.TRACE_SPEED
    load: int = defaults.LOAD
    root: str = "loadline"
    namespace: str = "default"
    http_port: int = 0
    etcd_user: str = ""
    """User of etcd; empty: it needs none."""
    etcd_password_file: str = ""
    engine_speed: float = 1.0
    """Virtual seconds per second of engines and gateway.

    If it is not 1, the planner must not relate latencies, which are of virtual time, to rates, as ``auto`` does.
    """
    planner: str = ""
    """TOML lines of the model that name and configure its planner; empty: the default planner."""

    @property
    def summary_file(self) -> Path:
        """Path of the account that the gateway writes when it ends."""
        return self.directory / "summary.json"

    @property
    def lifetimes_file(self) -> Path:
        """Path of the local scaler's list of ended workers."""
        return self.directory / "lifetimes.jsonl"

    def worker_command(self, role: Role, name: str) -> list[str]:
        """Return the command of a worker."""
        return [
            # -P: no module of the working directory, such as an http.py of the user, is imported.
            *(sys.executable, "-P", "-m", "loadline.demo.worker"),
            *("--model", defaults.MODEL, "--pool", role, "--role", role, "--name", name),
            *self._connection_options(),
        ]

    def gateway_command(self, *more: str) -> list[str]:
        """Return the command of the gateway, with ``more`` options."""
        return [
            *(sys.executable, "-P", "-m", "loadline.demo.gateway"),
            *("--mode", self.mode, "--load", str(self.load), "--trace-speed", str(self.trace_speed)),
            *("--summary-file", str(self.summary_file)),
            *self._connection_options(),
            *more,
        ]

    def scaler_command(self, config: Path) -> list[str]:
        """Return the command of the local scaler."""
        return [sys.executable, "-P", "-m", "loadline", "scaler", "local", "--config", str(config)]

    def _connection_options(self) -> list[str]:
        return [
            *("--nats", self.nats, "--etcd", self.etcd, "--root", self.root, "--namespace", self.namespace),
            *("--etcd-user", self.etcd_user, "--etcd-password-file", self.etcd_password_file),
            *("--speed", f"{self.engine_speed:g}"),
        ]

    def agent_config(self, name: str) -> str:
        """Return an agent's configuration; each has a separate journal, and the first has the HTTP port."""
        return f"""\
[agent]
name = {_text(name)}
namespace = {_text(self.namespace)}
root = {_text(self.root)}

[nats]
servers = {_texts(self.nats.split(","))}

[etcd]
endpoints = {_texts(self.etcd.split(","))}
user = {_text(self.etcd_user)}
password_file = {_text(self.etcd_password_file)}

[http]
port = {self.http_port if name == FIRST_AGENT else 0}

[journal]
directory = {_text(str(self.directory / "journal" / name))}

[fleet]
stale_after_ms = {10 * defaults.REPORT_INTERVAL_MS}

[[models]]
name = {_text(defaults.MODEL)}
gpu_budget_max = {len(ROLES[self.mode]) * defaults.WORKERS_MAX * defaults.GPUS_PER_WORKER}
{self.planner}
[models.objectives]
ttft_ms = {defaults.TTFT_MS:g}
itl_ms = {defaults.ITL_MS:g}

[models.migration]
enabled = true
policies = {_texts(POLICIES[self.mode])}
decode_load_threshold = 0.9
neutral_load_threshold = 0.9
load_balance_threshold = 0.2
{"".join(self._agent_pool(role) for role in ROLES[self.mode])}"""

    def _agent_pool(self, role: Role) -> str:
        return f"""
[[models.pools]]
name = {_text(role)}
role = {_text(role)}
gpus_per_worker = {defaults.GPUS_PER_WORKER}
replicas_min = {defaults.WORKERS_MIN}
replicas_max = {defaults.WORKERS_MAX}
start_deadline_ms = 30000
"""

    def scaler_config(self) -> str:
        """Return the configuration of the local scaler."""
        return f"""\
root = {_text(self.root)}
log_directory = {_text(str(self.directory / "workers"))}
lifetimes_file = {_text(str(self.lifetimes_file))}

[nats]
servers = {_texts(self.nats.split(","))}

[[models]]
name = {_text(defaults.MODEL)}
{"".join(self._scaler_pool(role) for role in ROLES[self.mode])}"""

    def _scaler_pool(self, role: Role) -> str:
        return f"""
[[models.pools]]
name = {_text(role)}
role = {_text(role)}
gpus = {defaults.GPUS_PER_WORKER}
command = {_texts(self.worker_command(role, "{worker}"))}
"""


def _text(value: str) -> str:
    # A TOML basic string is a JSON string, but for DEL and for the surrogate pairs that JSON writes beyond the BMP.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
