"""API of an agent on a bus and a store in memory."""

from loadline import app
from loadline.adapters.system_clock import SystemClock
from loadline.config import Config
from loadline.core.controller import Controller
from loadline.runtime.loop import Runtime
from loadline.runtime.service import Service
from loadline.runtime.shards import Shards
from loadline.sim.world.fitter import InlineFitter
from tests.support.memory import FollowedStore, MemoryBus


def service_of(config: Config) -> tuple[Runtime, Service]:
    """Return an agent that is not running, and its API."""
    runtime = Runtime(
        controller=Controller(app.settings(config)),
        clock=SystemClock(),
        bus=MemoryBus(),
        store=FollowedStore(),
        fitter=InlineFitter(),
        journal=None,
        root="loadline",
        namespace="default",
        knobs=config.runtime,
        frame_bytes_max=config.nats.frame_bytes_max,
        version="0",
        on_turn=lambda _seconds: None,
        on_rejected=lambda _rejected: None,
    )
    return runtime, Service(Shards([runtime], None), runtime.bus, "0")
