"""How long engines take: measured profiles, and linear laws."""

from loadline.sim.profiles.linear import LinearProfile
from loadline.sim.profiles.measured import MeasuredProfile

__all__ = ["LinearProfile", "MeasuredProfile"]
