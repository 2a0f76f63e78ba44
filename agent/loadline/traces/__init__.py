"""Recorded load: request traces and rate series, read as arrivals."""

from loadline.traces.read import read_trace
from loadline.traces.trace import PREFIX_BLOCK_TOKENS, REQUESTS_MAX, Arrival, RateKnobs, Trace

__all__ = ["PREFIX_BLOCK_TOKENS", "REQUESTS_MAX", "Arrival", "RateKnobs", "Trace", "read_trace"]
