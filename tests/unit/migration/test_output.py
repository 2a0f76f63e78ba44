"""Migrations in the text of the status and of explanations."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.cli import journal, remote
from loadline.cli.explain_output import format_policy_report
from loadline.cli.main import parser
from loadline.cli.status_output import format_details
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.outcomes import MigrationCode, PairReport, PolicyReport
from loadline.core.queries import status as query
from loadline.core.vocabulary.status import DurationTotal, InFlightStatus, MigrationStatus
from loadline.wire.messages import ExplainReply
from tests.support.fleet_harness import START
from tests.support.migration_world import MigrationWorld
from tests.unit.adapters.test_metrics import MOVES, status_with

KNOBS = MigrationKnobs(
    policies=("decode_load",),
    decode_load_threshold=0.5,
    migrations_max=3,
    migrate_drains=False,
)


def lines(commands: MigrationStatus | None, emptied: DurationTotal) -> list[str]:
    (model,) = status_with({}, {}).models
    return format_details(replace(model, migrations=commands, emptied=emptied))


def test_the_status_lists_migrations_in_flight_and_totals() -> None:
    commands = replace(
        MOVES, in_flight_commands=(InFlightStatus("c", "decode-7", "decode-2", "decode_load", "copying", 1_250, 3, 1),)
    )
    text = lines(commands, DurationTotal(4, 12_000))
    first = text.index("migrations: 2 in flight; requests migrated: 5 by decode_load, 40 by drain")
    assert text[first + 1 : first + 4] == [
        "  decode-7 -> decode-2 (decode_load) copying: 1 of 3 requests, 1.2 s",
        "1 worker does not answer migration commands: secret-worker-name",
        "drained: 4 workers, 3.0 s on average",
    ]


def test_singular_counts_have_singular_nouns() -> None:
    one = replace(MOVES, silent=2, in_flight_commands=(InFlightStatus("c", "a", "b", "drain", "copying", 1_000, 1, 0),))
    text = "\n".join(lines(one, DurationTotal(1, 3_000)))
    assert "copying: 0 of 1 request, " in text
    assert "2 workers do not answer migration commands" in text
    assert "drained: 1 worker, 3.0 s on average" in text


def test_the_output_omits_migrations_of_a_model_without_any() -> None:
    assert not [line for line in lines(None, DurationTotal()) if "migrat" in line or "drained" in line]
    assert "migrations: 0 in flight; requests migrated: none" in lines(
        MigrationStatus(0, (), {}, {}, {}, {}, 0, ()), DurationTotal()
    )


def test_an_explanation_lists_each_pair_with_its_reason() -> None:
    world = MigrationWorld(KNOBS)
    world.join("a", 900, 9)
    world.advance(1_000)
    assert [policy_report.code for policy_report in query.explain_migrations(world.controller.state, "", "m")] == [
        MigrationCode.NO_DESTINATION
    ]
    world.join("b", 100, 1)
    (policy_report,) = query.explain_migrations(world.controller.state, "", "")
    assert format_policy_report(policy_report).splitlines()[1:] == [
        "  a migration of up to 3 requests, about 150 tokens, was commanded",
        "  possible sources: 1, possible destinations: 1",
        "    a -> b: a migration of up to 3 requests, about 150 tokens, was commanded",
    ]


def test_a_policy_without_a_source_keeps_its_last_report() -> None:
    world = MigrationWorld(KNOBS)
    world.join("a", 100, 1)
    (policy_report,) = query.explain_migrations(world.controller.state, "", "m")
    assert (policy_report.code, policy_report.sources, policy_report.destinations) == (MigrationCode.NO_SOURCE, 0, 1)
    world.handle(world.report("a", 900, 9))
    world.advance(1_000)
    world.handle(world.report("a", 100, 1))
    world.advance(1_000)
    (policy_report,) = query.explain_migrations(world.controller.state, "", "m")
    assert policy_report.code is MigrationCode.NO_DESTINATION


def test_migrations_are_explained_by_model_and_not_by_decision() -> None:
    world = MigrationWorld(KNOBS)
    world.join("a", 100, 1)
    state = world.controller.state
    assert query.explain_migrations(state, "", "another") == []
    assert query.explain_migrations(state, "some-decision", "m") == []


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_policy_reports_without_a_decision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    pair = PairReport("a\x1b[2J", "b", MigrationCode.IN_FLIGHT)
    policy_report = PolicyReport("m", "decode_load", "decode", START, MigrationCode.IN_FLIGHT, {}, 1, 2, (pair,))
    reply = ExplainReply([], [policy_report])
    monkeypatch.setattr(journal, "explain", lambda *_: reply)
    options = parser().parse_args(["explain", "--journal", "x", *(["--json"] if as_json else [])])
    assert remote.explain(options) == 0
    printed = capsys.readouterr().out
    if as_json:
        assert msgspec.json.decode(printed, type=ExplainReply) == reply
    else:
        assert "    a\\u001b[2J -> b: a migration between the two workers is in flight" in printed.splitlines()


def test_a_reply_without_policy_reports_is_valid() -> None:
    assert msgspec.json.decode(b'{"explanations":[]}', type=ExplainReply) == ExplainReply([])
