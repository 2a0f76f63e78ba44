"""Simulated inference engine in virtual time: queue, prefill passes, continuous batching and a KV cache in blocks."""

from loadline.sim.engine.engine import SimulatedEngine
from loadline.sim.engine.knobs import EngineKnobs
from loadline.sim.engine.request import EngineEvent, Request
from loadline.sim.engine.timing import EngineTiming

__all__ = ["EngineEvent", "EngineKnobs", "EngineTiming", "Request", "SimulatedEngine"]
