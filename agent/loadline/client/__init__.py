"""Clients with which workers, frontends and scalers talk to the agent."""
