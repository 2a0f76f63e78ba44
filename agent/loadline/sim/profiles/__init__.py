"""Engine times: measured profiles and linear models."""

from loadline.sim.profiles.linear import LinearProfile
from loadline.sim.profiles.measured import MeasuredProfile

__all__ = ["LinearProfile", "MeasuredProfile"]
