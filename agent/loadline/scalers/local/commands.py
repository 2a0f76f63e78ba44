"""Commands of worker processes: placeholders, and the sidecar around an engine."""

import sys
from collections.abc import Mapping, Sequence

from loadline.scalers.local.config import LocalKnobs, LocalPoolKnobs


def command_of(knobs: LocalKnobs, pool: LocalPoolKnobs) -> tuple[str, ...]:
    """Return the command of a pool's workers with its placeholders, in a sidecar if the pool asks for one."""
    if not pool.sidecar:
        return pool.command
    connection = ["--nats", knobs.nats.servers[0]]
    if knobs.sidecar_config:
        connection = ["--config", knobs.sidecar_config]
    identity = ["--worker", "{worker}", "--model", "{model}", "--pool", "{pool}", "--role", "{role}"]
    engine = ["--url", "http://127.0.0.1:{port}", "--gpus", str(max(1, pool.gpus))]
    if knobs.advertise_host:
        engine += ["--advertise", f"http://{knobs.advertise_host}:{{port}}"]
    sidecar = [sys.executable, "-P", "-m", "loadline", "sidecar", *identity, *engine, *connection, "--root", knobs.root]
    return (*sidecar, "--", *pool.command)


def fill_template(template: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Replace each ``{name}`` in a command; other braces stay, so that JSON arguments need no escaping."""
    filled = []
    for argument in template:
        for name, value in names.items():
            argument = argument.replace(f"{{{name}}}", value)  # noqa: PLW2901 - each name in turn
        filled.append(argument)
    return filled
