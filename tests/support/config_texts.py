"""Configurations as text, and the warnings and errors that they cause."""

import pytest

from loadline.config import parse, validate
from loadline.errors import ConfigError

BASE = """
[[models]]
name = "llama"
[[models.pools]]
name = "prefill"
role = "prefill"
[[models.pools]]
name = "decode"
role = "decode"
"""
LINEAR = """
[[models]]
name = "{name}"
planner = "{planner}"
{knobs}
[[models.pools]]
name = "main"
role = "aggregated"
linear = {{ alpha = 10, beta = 0.1, gamma = 5, delta = 0.02, max_kv_tokens = 1e6 }}
"""
"""Model with one pool and a linear engine profile."""
BY_THRESHOLD = BASE.replace("[[models.pools]]", 'planner = "threshold"\n[[models.pools]]', 1)


def config_warnings(text: str, *, base: str = BASE, environ: dict[str, str] | None = None) -> list[str]:
    return validate(parse(base + text, "loadline.toml", environ or {}))


def config_error(text: str, *, base: str = BASE, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config_warnings(text, base=base, environ=environ)
    assert caught.value.remedy.endswith((".", "?"))
    return caught.value


def model(body: str = "", *pools: str) -> str:
    return f'[[models]]\nname = "m"\n{body}\n' + "".join(f"[[models.pools]]\n{pool}\n" for pool in pools)


AGGREGATED = 'name = "a"\nrole = "aggregated"'
DECODE = 'name = "d"\nrole = "decode"'
FIXED = "\nreplicas_min = 3\nreplicas_max = 3"
