"""Scaler between NVIDIA's simulator and `loadline step`: snapshots of the fleet in, counts to set out."""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from loadline.core.vocabulary.scalars import Role
from loadline.wire.messages import DecisionApplied, ScalingDecision
from loadline.wire.steps import StepInput, StepItem, StepOutput, encode_step
from tools.bench.peers.lines import LineProcess
from tools.bench.peers.snapshots import MODEL, SUBJECTS, Frontend, Pool, Snapshot, item, key_of

_SCALER: Final = "replay"
_decode = msgspec.json.Decoder(StepOutput).decode


def configuration(planner: str, roles: tuple[Role, ...], workers_max: int, ttft_ms: float, itl_ms: float) -> str:
    """Return a configuration with defaults but for the planner, the objectives and the largest pools."""
    pools = (f'[[models.pools]]\nname = "{role}"\nrole = "{role}"\nreplicas_max = {workers_max}\n' for role in roles)
    objectives = f"{{ ttft_ms = {ttft_ms}, itl_ms = {itl_ms} }}"
    return f'[[models]]\nname = "{MODEL}"\nplanner = "{planner}"\nobjectives = {objectives}\n\n' + "\n".join(pools)


class Adapter:
    """An agent that scales the simulated fleet.

    Args:
        config: Text of its configuration.
        roles: Roles of the fleet, each of which is a pool.
        kv_blocks: KV blocks of a worker.
    """

    def __init__(self, config: str, roles: tuple[Role, ...], kv_blocks: int) -> None:
        self._config = config
        self._pools = {role: Pool(role, kv_blocks) for role in roles}
        self._frontend = Frontend()
        self._resources = ExitStack()
        self._decision: ScalingDecision | None = None
        """Decision whose counts have been set since the last snapshot."""

    def __enter__(self) -> Self:
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "loadline.toml"
        path.write_text(self._config, "utf-8")
        command = [sys.executable, "-m", "loadline", "step", "--config", str(path)]
        self._agent = self._resources.enter_context(LineProcess("loadline step", command))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._resources.__exit__(kind, error, at)

    def counts(self, snapshot: Snapshot) -> dict[str, int]:
        """Return the counts to set, by the simulator's names of the roles; others stay."""
        step = StepInput(int(snapshot["now_ms"]), self._items(snapshot))
        answer = _decode(self._agent.ask(encode_step(step)))
        for drain in answer.drains:
            self._pools[drain.role].drain(drain.worker)
        if not answer.decisions:
            return {}
        self._decision = answer.decisions[-1]
        return {key_of(target.role): target.replicas for target in self._decision.targets}

    def _items(self, snapshot: Snapshot) -> list[StepItem]:
        items = [one for pool in self._pools.values() for one in pool.items(snapshot)]
        items.append(self._frontend.item(snapshot["traffic"]))
        if self._decision is not None:
            items.append(_applied(self._decision, snapshot))
            self._decision = None
        return items


def _applied(decision: ScalingDecision, snapshot: Snapshot) -> StepItem:
    """Return the answer to a decision, with the counts that the simulator has now."""
    observed = {one.pool: snapshot[f"non_draining_{key_of(one.role)}_count"] for one in decision.targets}
    numbers = decision.decision_id, decision.model, decision.epoch, decision.sequence
    return item(SUBJECTS.applied(MODEL), DecisionApplied(*numbers, _SCALER, "done", observed))
