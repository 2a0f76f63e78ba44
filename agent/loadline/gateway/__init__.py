"""Reverse proxy with the OpenAI API in front of registered engines, for fleets without a router."""
