"""Scaler whose workers are pods: it sets the replicas of Kubernetes workloads."""

from loadline.scalers.kubernetes.config import read
from loadline.scalers.kubernetes.platform import connect

__all__ = ["connect", "read"]
