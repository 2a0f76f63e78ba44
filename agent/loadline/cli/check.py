"""Command ``check``."""

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from loadline import app
from loadline.adapters import logs
from loadline.adapters.client_tls import load_context
from loadline.adapters.nats_logins import check_credentials, tls_context
from loadline.cli import event_loop, output, warmup
from loadline.cli.configuration import configuration_warnings, load_configuration, located
from loadline.cli.doctor import exit_code, format_findings
from loadline.cli.exit_codes import INVALID_INPUT
from loadline.config import Config, describe
from loadline.config.autoscalers import AUTOSCALERS_BYTES_MAX, read_autoscalers, tolerance_warnings
from loadline.core.planning.planner import PlannerGroup
from loadline.core.planning.planners import BUILT_IN
from loadline.doctor.deployment import of_config
from loadline.doctor.examination import examine_servers
from loadline.doctor.findings import Finding
from loadline.errors import ConfigError, DataError
from loadline.formatting import plural
from loadline.toml.regular_file import open_regular, os_error_text
from loadline.toml.secret_file import read_secret
from loadline.web.access import Access

_PURPOSES: Final[dict[PlannerGroup, str]] = {
    "recommended": "recommended",
    "compatible": "rules of Dynamo's planner or WVA",
    "baseline": "other autoscalers, to compare with",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``check``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "planners:\n" + "".join(f"  {purpose:35}{names}\n" for purpose, names in _planner_groups())
    warmup.arguments(parser)
    parser.add_argument("--connect", action="store_true", help="also connect to NATS and etcd, and try the permissions")
    output.arguments(parser)
    parser.add_argument(
        "--autoscalers",
        metavar="FILE",
        help="also check HPAs and ScaledObjects: the output of `kubectl get hpa,scaledobjects -A -o json`; -: stdin",
    )


def _planner_groups() -> Iterator[tuple[str, str]]:
    """Yield what planners are for, and the names of those for that."""
    for group, purpose in _PURPOSES.items():
        yield purpose, ", ".join(kind.name for kind in BUILT_IN if kind.group == group)


class ConfigProblem(Struct, frozen=True):
    """An error of a configuration."""

    where: str
    """File and line; empty: unknown."""
    place: str
    """Path of the key, such as ``models[0].planner``; empty: it is not one of a key."""
    problem: str
    remedy: str


class CheckResult(Struct, frozen=True):
    """Result of ``loadline check``."""

    config: str
    errors: list[ConfigProblem] = []
    """Without one the configuration is valid."""
    warnings: list[str] = []
    description: str = ""
    connections: list[Finding] = []
    """Findings of ``--connect``."""


def check(options: argparse.Namespace) -> int:
    """Validate a configuration; print its description and its warnings, or all errors."""
    try:
        result = _checked(options)
    except (ConfigError, DataError) as error:
        if options.output == "json":
            print(output.json_text(CheckResult(str(options.config), _problems(error))))
            return INVALID_INPUT
        raise
    lines = [result.description, *(f"warning: {warning}" for warning in result.warnings)]
    lines += [format_findings(result.connections)] if result.connections else []
    lines.append(f"{options.config}: valid, {plural(len(result.warnings), 'warning')}")
    output.print_result(options, result, "\n".join(lines))
    return exit_code(result.connections)


def _checked(options: argparse.Namespace) -> CheckResult:
    """Return what is found in a valid configuration.

    Raises:
        ConfigError: It is invalid.
        DataError: One of its files is.
    """
    config = load_configuration(options)
    warnings = configuration_warnings(config)
    found = itertools.chain(_journal_warnings(config.journal.directory), _secret_warnings(config))
    warnings += [located(config, warning) for warning in found]
    if options.autoscalers:
        warnings += tolerance_warnings(config, read_autoscalers(_read(options.autoscalers)))
    app.settings(config)  # reads the warm-up traces: an unusable one is an error
    logs.configure("auto", "error")  # a failed connection is a finding
    connections = event_loop.run(examine_servers(of_config(config))) if options.connect else []
    return CheckResult(str(options.config), [], warnings, describe(config), connections)


def _problems(error: ConfigError | DataError) -> list[ConfigProblem]:
    if isinstance(error, ConfigError):
        return [ConfigProblem(one.where, one.place, one.problem, one.remedy) for one in error.errors]
    return [ConfigProblem("", "", str(error), "")]


def _read(name: str) -> bytes:
    """Return the content of a file, or of stdin for ``-``.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        with sys.stdin.buffer if name == "-" else open_regular(Path(name)) as file:
            return file.read(AUTOSCALERS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "--autoscalers", f"cannot be read: {os_error_text(error)}", "Give a readable file."
        ) from error


def _journal_warnings(directory: str) -> Iterator[str]:
    """Warn if this user cannot write the journal; an agent without write access runs without a journal."""
    if not directory:
        return
    path = Path(directory).absolute()
    nearest = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    if not nearest.is_dir():
        yield f"journal.directory: {directory} cannot be created, since {nearest} is not a folder. Name another one."
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield f"journal.directory: this user may not write to {nearest}. Give the agent access, or name another one."


def _secret_warnings(config: Config) -> Iterator[str]:
    """Warn of files with secrets that an agent could not use here; it may run on another host, or as another user."""
    passwords = {"nats.password_file": config.nats.password_file, "etcd.password_file": config.etcd.password_file}
    for place, file in passwords.items():
        try:
            if file:
                read_secret(file)
        except (OSError, ValueError) as error:
            yield f"{place}: {file} cannot be read: {os_error_text(error)}. Name a readable file."
    for check_files in (_check_page_files, _check_credentials, _check_bus_certificates, _check_store_certificates):
        try:
            check_files(config)
        except ConfigError as error:
            yield str(error)


def _check_credentials(config: Config) -> None:
    check_credentials(config.nats)


def _check_bus_certificates(config: Config) -> None:
    tls_context(config.nats)


def _check_store_certificates(config: Config) -> None:
    etcd = config.etcd
    if any(url.startswith("https://") for url in etcd.endpoints):
        load_context("etcd.", etcd.ca_file, etcd.cert_file, etcd.key_file)


def _check_page_files(config: Config) -> None:
    Access(config.http.host, config.http.token_file).check()
