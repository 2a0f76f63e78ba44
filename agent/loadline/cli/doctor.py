"""Command ``doctor``."""

import argparse
import asyncio
from pathlib import Path

import msgspec

from loadline.adapters import logs
from loadline.cli.exit_codes import FAILED, reports_input_errors
from loadline.cli.output import plural, printable
from loadline.cli.packages import check_packages
from loadline.config import load, validate
from loadline.doctor.deployment import Deployment, of_config
from loadline.doctor.examination import examine
from loadline.doctor.findings import Finding, failed, ok, warning
from loadline.errors import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration of the agent (default: servers of this host)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


@reports_input_errors
def doctor(options: argparse.Namespace) -> int:
    """Check a deployment: print one line for each check, and the remedy of what is wrong."""
    logs.configure("auto", "error")  # each problem is printed below, once
    deployment, local = Deployment(), list[Finding]()
    if options.config is not None:
        config = load(options.config)
        warnings = validate(config)
        local.append(
            warning(
                "configuration", plural(len(warnings), "warning"), f"Run `loadline check --config {options.config}`."
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
    findings = [*local, *asyncio.run(examine(deployment))]
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        width = max(len(finding.check) for finding in findings)
        print(printable("\n".join(_lines(finding, width) for finding in findings)))
    return FAILED if any(finding.verdict == "failed" for finding in findings) else 0


def _lines(finding: Finding, width: int) -> str:
    line = f"{finding.verdict:<7}  {finding.check:<{width}}  {finding.text}"
    return f"{line}\n{'':<{width + 11}}-> {finding.remedy}" if finding.remedy else line
