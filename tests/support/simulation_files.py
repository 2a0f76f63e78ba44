"""Files for `loadline simulate` and `loadline compare`: a minute of load on a small fleet."""

from pathlib import Path

TRACE = "arrival_s,isl,osl\n" + "".join(f"{n / 2},{200 + n},20\n" for n in range(120))
FLEET = """
[[pools]]
name = "main"
kv_blocks = 2000
linear = { alpha = 5.0, beta = 0.1, gamma = 5.0, delta = 0.05 }
workers = 2
start_delay = { mean_s = 5.0 }
"""
CONFIG = """
[[models]]
name = "llama"
planner = "static"
static.replicas = { main = 3 }
pools = [{ name = "main", role = "aggregated", replicas_max = 4 }]
"""


def write_options(directory: Path, **texts: str) -> list[str]:
    """Write trace, fleet and configuration, with ``texts`` in place of the defaults; return the options."""
    options = []
    for name, default, ending in (("trace", TRACE, "csv"), ("fleet", FLEET, "toml"), ("config", CONFIG, "toml")):
        path = directory / f"{name}.{ending}"
        path.write_text(texts.get(name, default), "utf-8")
        options += [f"--{name}", str(path)]
    return options
