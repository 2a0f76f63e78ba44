"""Recorded load: request traces and rate series, read into arrivals."""

from loadline.sim.traces.read import read_trace
from loadline.sim.traces.trace import PREFIX_BLOCK_TOKENS, REQUESTS_MAX, Arrival, RateKnobs, Trace

__all__ = ["PREFIX_BLOCK_TOKENS", "REQUESTS_MAX", "Arrival", "RateKnobs", "Trace", "read_trace"]
