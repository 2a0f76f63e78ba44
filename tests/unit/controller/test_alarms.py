"""Alarms that the status lists: the newest of each kind and model, bounded, for an hour; one that lasts, each hour."""

from loadline.core.state.alarms import ALARMS_MAX, RECENT_MS, TEXT_CHARS_MAX, Alarms
from loadline.core.vocabulary.alarm_actions import ALARM_ACTIONS
from loadline.core.vocabulary.effects import RaiseAlarm
from loadline.core.vocabulary.events import LeaderChanged
from loadline.core.vocabulary.status import RaisedAlarm
from tests.support.controller_harness import ControllerHarness, make_settings


def test_the_newest_alarm_of_a_kind_and_model_is_listed_with_the_number_of_times() -> None:
    alarms = Alarms()
    alarms.add(RaiseAlarm("drain_overdue", "m", "a is late"), 1_000)
    alarms.add(RaiseAlarm("drain_overdue", "n", "c is late"), 2_000)
    alarms.add(RaiseAlarm("drain_overdue", "m", "b is late"), 3_000)
    newest, other = alarms.recent(3_000)
    action = ALARM_ACTIONS["drain_overdue"]
    assert newest == RaisedAlarm("drain_overdue", "m", "b is late", 3_000, 2, action)
    assert other == RaisedAlarm("drain_overdue", "n", "c is late", 2_000, 1, action)


def test_an_alarm_is_listed_for_an_hour_and_counted_anew_after_that() -> None:
    alarms = Alarms()
    alarms.add(RaiseAlarm("commit_refused", "m", "text"), 0)
    assert len(alarms.recent(RECENT_MS)) == 1
    assert alarms.recent(RECENT_MS + 1) == ()
    alarms.add(RaiseAlarm("commit_refused", "m", "text"), RECENT_MS + 1)
    assert [one.count for one in alarms.recent(RECENT_MS + 1)] == [1]


def test_any_number_of_alarms_with_any_text_is_bounded() -> None:
    alarms = Alarms()
    for number in range(3 * ALARMS_MAX):
        alarms.add(RaiseAlarm("workers_missing", f"m{number}", "w" * 10_000), number)
    found = alarms.recent(1_000)
    assert [one.model for one in found] == [f"m{3 * ALARMS_MAX - 1 - number}" for number in range(ALARMS_MAX)]
    assert {len(one.text) for one in found} == {TEXT_CHARS_MAX}


def raised(harness: ControllerHarness, event: LeaderChanged) -> list[str]:
    return [effect.kind for effect in harness.handle(event) if isinstance(effect, RaiseAlarm)]


def test_a_key_without_a_lease_is_reported_once_however_often_it_is_written() -> None:
    """Its writes keep all agents from leading; each would count as an alarm of its own."""
    harness = ControllerHarness(make_settings())
    written = [LeaderChanged("all", "ghost", 0, revision, beat=revision) for revision in range(5, 105)]
    assert [kind for one in written for kind in raised(harness, one)] == ["leader_without_lease"]
    (alarm,) = [
        one for one in harness.controller.state.alarms.recent(harness.now) if one.kind == "leader_without_lease"
    ]
    assert alarm.count == 1
    for key in (LeaderChanged("all", "", 0, 200), LeaderChanged("all", "other", 9, 200, beat=200)):
        assert raised(harness, key) == []
        assert raised(harness, written[0]) == ["leader_without_lease"], "it has returned"


def test_a_key_without_a_lease_is_reported_once_an_hour_while_it_is_written_even_under_the_agents_own_name() -> None:
    harness = ControllerHarness(make_settings())
    name, kinds = harness.controller.settings.agent, []
    for revision in range(5, 155):
        kinds.append(raised(harness, LeaderChanged("all", name, 0, revision, beat=revision)))
        harness.now += RECENT_MS // 60
    assert [at for at, found in enumerate(kinds) if found] == [0, 61, 122]
    assert {kind for found in kinds for kind in found} == {"leader_without_lease"}
