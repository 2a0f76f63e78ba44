"""Command ``doctor``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from loadline.adapters import logs
from loadline.cli import event_loop, output
from loadline.cli.exit_codes import FAILED
from loadline.cli.packages import check_packages
from loadline.config import load, validate
from loadline.doctor.deployment import Deployment, of_config
from loadline.doctor.examination import examine
from loadline.doctor.findings import Finding, failed, ok, warning
from loadline.errors import ConfigError
from loadline.formatting import plural
from loadline.toml.connection import load_connection


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration of the agent (default: variables, or this host)",
    )
    output.arguments(parser)


def doctor(options: argparse.Namespace) -> int:
    """Check a deployment: print one line for each check, and the remedy of what is wrong."""
    logs.configure("auto", "error")  # each problem is printed below, once
    local = list[Finding]()
    if options.config is not None:
        config = load(options.config)
        warnings = validate(config)
        local.append(
            warning(
                "configuration",
                plural(len(warnings), "warning"),
                f"Run `loadline check --config {options.config}`.",
            )
            if warnings
            else ok("configuration", "valid")
        )
        deployment = of_config(config)
        try:
            check_packages(config)
            local.append(ok("packages", "all that the configuration needs can be imported"))
        except ConfigError as error:
            local.append(failed("packages", f"{error.place}: {error.problem}", error.remedy))
    else:
        found = load_connection(None)
        names = found.agent
        deployment = Deployment(found.nats, found.etcd, names.root, names.namespace, names.only)
    findings = [*local, *event_loop.run(examine(deployment))]
    output.print_result(options, findings, format_findings(findings))
    return exit_code(findings)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code of a command that prints findings: failure if a check failed."""
    return FAILED if any(finding.verdict == "failed" for finding in findings) else 0


def format_findings(findings: Sequence[Finding]) -> str:
    """Format findings, one or two lines each."""
    width = max(len(finding.check) for finding in findings)
    return "\n".join(_lines(finding, width) for finding in findings)


def _lines(finding: Finding, width: int) -> str:
    line = f"{finding.verdict:<7}  {finding.check:<{width}}  {finding.text}"
    return f"{line}\n{'':<{width + 11}}-> {finding.remedy}" if finding.remedy else line
