"""``pytest tests/vectors --vectors DIR``: runs every case of a folder and prints a table of the outcomes."""

from collections import Counter
from pathlib import Path

import pytest

from tests.vectors.cases import Case, cases_in

OWN = Path(__file__).parent / "data"
OUTCOMES = ("passed", "failed", "deviations", "not covered")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, default=OWN, metavar="DIR", help="Folder of vector files to run.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = _cases(metafunc.config)
        metafunc.parametrize("case", cases, ids=[case.id for case in cases])


@pytest.fixture
def all_cases(pytestconfig: pytest.Config) -> list[Case]:
    """Return the cases of the folder that this run uses."""
    return _cases(pytestconfig)


def _cases(config: pytest.Config) -> list[Case]:
    folder = config.getoption("--vectors", OWN) or OWN
    cases = cases_in(folder)
    if not cases:
        raise pytest.UsageError(f"--vectors {folder}: holds no vector file of a known name")
    return cases


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    gained: list[str] = []
    for report in (one for many in terminalreporter.stats.values() for one in many):
        properties = dict(getattr(report, "user_properties", ()))
        gained += properties.get("gained", ())
        if getattr(report, "when", "") != "call" or "group" not in properties:
            continue
        counts[properties["group"], "failed" if report.failed else properties["outcome"]] += 1
        if properties["outcome"] == "deviations" and not report.failed:
            reasons[properties["reason"]] += 1
    if counts:
        terminalreporter.section("vectors")
        _table(terminalreporter, counts)
        for reason, number in reasons.items():
            terminalreporter.write_line(f"deviation, {number}x: {reason}")
        for request in dict.fromkeys(gained):
            terminalreporter.write_line(request)


def _table(terminal: pytest.TerminalReporter, counts: Counter[tuple[str, str]]) -> None:
    groups = sorted({group for group, _ in counts})
    width = max(map(len, (*groups, "group"))) + 2
    terminal.write_line("".join(["group".ljust(width), *(outcome.rjust(13) for outcome in OUTCOMES)]))
    for group in groups:
        numbers = [counts[group, outcome] for outcome in OUTCOMES]
        terminal.write_line("".join([group.ljust(width), *(str(number).rjust(13) for number in numbers)]))
    totals = [sum(counts[group, outcome] for group in groups) for outcome in OUTCOMES]
    terminal.write_line("".join(["all".ljust(width), *(str(total).rjust(13) for total in totals)]))
