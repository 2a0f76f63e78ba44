"""The tutorial on Kubernetes: no cluster is at hand, so objects, configurations and commands are validated."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from loadline.cli.main import parser
from loadline.config import parse, validate
from loadline.demo.openai import server
from loadline.scalers.kubernetes.config import read
from tests.golden.make_helm import validate as validate_objects
from tests.support.tutorials import blocks_of, commands

TUTORIAL: Final = Path(__file__).parents[3] / "docs/tutorials/kubernetes.md"
FILES: Final = {text.split()[1]: text for language, text in blocks_of(TUTORIAL) if language != "console"}
OBJECTS: Final[list[dict[str, Any]]] = [
    one for name in ("servers.yaml", "programs.yaml") for one in yaml.safe_load_all(FILES[name])
]


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_objects_have_the_schema_of_kubernetes() -> None:
    for name in ("servers.yaml", "programs.yaml"):
        validate_objects(FILES[name])


def test_configurations_are_valid_and_name_the_same_pools(tmp_path: Path) -> None:
    config = parse(FILES["loadline.toml"], "loadline.toml")
    assert validate(config) == []
    path = tmp_path / "kubernetes.toml"
    path.write_text(FILES["kubernetes.toml"], "utf-8")
    [model], [own] = read(path).models, config.models
    assert (model.name, [pool.name for pool in model.pools]) == (own.name, [pool.name for pool in own.pools])
    assert named("Deployment", model.pools[0].object)


def test_the_role_is_that_of_the_scaled_object() -> None:
    [pool] = tomllib.loads(FILES["kubernetes.toml"])["models"][0]["pools"]
    rules = named("Role", "scaler")["rules"]
    assert [rule["resourceNames"] for rule in rules if rule["apiGroups"] == ["apps"]] == [[pool["object"]]] * 2


@pytest.mark.parametrize("name", ["agent", "scaler", "gateway", "engine"])
def test_arguments_of_programs_are_accepted(name: str) -> None:
    pod = named("Deployment", name)["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    options = parser().parse_args([text.replace("$(POD_IP)", "10.0.0.1") for text in arguments])
    assert Path(options.config).name in FILES
    if name == "engine":
        module = options.engine_command.index("loadline.demo.openai.server")
        server._options(options.engine_command[module + 1 :])


def test_commands_are_those_of_this_repository() -> None:
    found = [command for language, text in blocks_of(TUTORIAL) if language == "console" for command in commands(text)]
    for command in found:
        program, *arguments = shlex.split(command)
        if program == "loadline":
            parser().parse_args(arguments)
        assert program in {"kind", "docker", "kubectl", "alias", "loadline", "python"}
    applied = " ".join(found)
    assert set(re.findall(r"(?:-f |--from-file=)(\w+\.\w+)", applied)) == FILES.keys()
    for deployment in re.findall(r"deployment/(\w+)", applied):
        assert named("Deployment", deployment)
