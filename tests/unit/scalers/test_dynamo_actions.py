"""Actions on the keys of Dynamo's virtual connector, with a store in memory."""

import asyncio

from loadline.errors import StoreDenied
from loadline.ports import StoreSnapshot, Write
from loadline.scalers.dynamo_actions import ConnectorActions
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, ConnectorPoolKnobs
from tests.support.memory import MemoryStore


class _GuardedStore(MemoryStore):
    """Store with a namespace that may not be read."""

    async def read(self, prefix: str) -> StoreSnapshot:
        if prefix == "v1/b/planner/":
            raise StoreDenied("permission denied")
        return await super().read(prefix)


def test_the_problems_of_all_namespaces_are_found() -> None:
    store = _GuardedStore()
    models = [ConnectorModelKnobs(f"m-{name}", name, (ConnectorPoolKnobs("d", "decode"),)) for name in "cdba"]

    async def scenario() -> None:
        await store.commit([], [Write(f"v1/{name}/planner/decision_id", b"7") for name in "ac"])
        problems = await ConnectorActions(models, store).validate()
        assert [problem.split(" Start")[0] for problem in problems] == [
            "namespace a: decision 7 is not acknowledged.",
            "Dynamo's etcd: permission denied",
            "namespace c: decision 7 is not acknowledged.",
        ]

    asyncio.run(scenario())
