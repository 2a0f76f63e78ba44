"""Values of a configuration that an agent could not work with: ends of lines in names, and times beyond 2^53."""

import pytest

from loadline.config import parse, validate
from loadline.core.vocabulary.scalars import YEAR_MS
from loadline.errors import ConfigError
from tests.support.config_texts import BASE


@pytest.mark.parametrize("variable", ["AGENT__ROOT", "AGENT__NAME", "AGENT__NAMESPACE", "NATS__INBOX_PREFIX"])
def test_a_name_with_the_end_of_a_line_is_refused(variable: str) -> None:
    with pytest.raises(ConfigError, match=r"is '[^']*\\n'\. Write text"):
        parse(BASE, "loadline.toml", {f"LOADLINE__{variable}": "name\n"})


@pytest.mark.parametrize("folder", ["journal.directory", "tensorboard.log_dir"])
def test_a_folder_with_a_nul_is_refused(folder: str) -> None:
    """It passed, or ended `check` with a traceback, and `run` ended with one."""
    section, key = folder.split(".")
    with pytest.raises(ConfigError, match=rf"{folder}: is .*\. Write text without a NUL"):
        parse(f'[{section}]\n{key} = "a\\u0000b"\n{BASE}', "loadline.toml")


@pytest.mark.parametrize("section", ["nats.servers", "etcd.endpoints"])
def test_a_url_with_the_end_of_a_line_is_refused(section: str) -> None:
    scheme = "nats" if section == "nats.servers" else "http"
    table, key = section.split(".")
    config = parse(f'[{table}]\n{key} = ["{scheme}://localhost:4222\\n"]\n{BASE}', "loadline.toml")
    with pytest.raises(ConfigError, match=rf"{table}.{key}\[0\]: is not {scheme}://"):
        validate(config)


def test_a_lifetime_beyond_what_a_decision_can_store_is_refused() -> None:
    parse(f"[decisions]\nttl_ms = {YEAR_MS}\n{BASE}", "loadline.toml")
    with pytest.raises(ConfigError, match=f"Write a whole number from 1 to {YEAR_MS}"):
        parse(f"[decisions]\nttl_ms = {YEAR_MS + 1}\n{BASE}", "loadline.toml")
