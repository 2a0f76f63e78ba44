"""Two models beside the demo's, for which forecasts and the exact solver are asked: both want more GPUs than there are.

They have no workers and no scaler, so that each of their decisions expires.
"""

import asyncio
from contextlib import AsyncExitStack
from random import Random
from typing import Final

from loadline.client.frontend import FrontendClient
from loadline.demo import defaults
from loadline.servers import NatsKnobs

_MODELS: Final = ("neighbour-1", "neighbour-2")
_GPUS: Final = 8
_REQUESTS_PER_S: Final = (20, 200)
_TICK_S: Final = 0.5
CONFIG: Final = f"""
[[accelerators]]
name = "scarce"
type = "scarce"

[allocation]
solve_interval_ms = 1000

[allocation.capacity]
scarce = {_GPUS}
""" + "".join(
    f"""
[[models]]
name = "{model}"
planner = "throughput"
objectives = {{ ttft_ms = 500, itl_ms = 50 }}

[models.throughput]
throughput_adjustment_interval_ms = 10000
busiest_ms = 2000

[models.throughput.forecast]
predictor = "kalman"

[[models.pools]]
name = "decode"
role = "decode"
accelerator = "scarce"
replicas_max = {_GPUS}
decode_profile = "{defaults.DECODE_PROFILE}"
"""
    for model in _MODELS
)
"""Their part of an agent's configuration."""


async def report_traffic(nats: NatsKnobs, root: str, rng: Random) -> None:
    """Report traffic whose rate changes all the time, until cancelled."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(FrontendClient(model, "neighbours", nats=nats, root=root))
            for model in _MODELS
        ]
        while True:
            for client in clients:
                for _ in range(int(rng.uniform(*_REQUESTS_PER_S) * _TICK_S)):
                    client.arrived(1_000)
                    client.finished(200, 100.0, 20.0)
            await asyncio.sleep(_TICK_S)
