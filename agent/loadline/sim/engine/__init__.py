"""One inference engine in virtual time: queue, prefill passes, continuous batching, a KV cache in blocks."""

from loadline.sim.engine.engine import Engine
from loadline.sim.engine.knobs import EngineKnobs
from loadline.sim.engine.request import EngineEvent, Request
from loadline.sim.engine.timing import Timing

__all__ = ["Engine", "EngineEvent", "EngineKnobs", "Request", "Timing"]
