"""Findings of `loadline doctor` from facts that real servers give only after a long time, or on another machine."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline import __version__
from loadline.adapters.etcd_probe import Lease, MemberStatus
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary, ModelStatus, SharingStatus, TrafficStatus
from loadline.doctor.agents import agent_findings, leader_finding
from loadline.doctor.bus_facts import AgentAnswer, BusFacts, ReportTimes
from loadline.doctor.clocks import clock_findings
from loadline.doctor.deployment import Deployment
from loadline.doctor.findings import Finding, Verdict
from loadline.doctor.local_vllm import aborts_at_sigterm
from loadline.doctor.scalers import scaler_finding
from loadline.doctor.servers import etcd_findings, nats_findings
from loadline.doctor.store_facts import Leader, StoreFacts
from loadline.servers import EtcdKnobs
from loadline.wire.codec import encode
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects

NOW_MS = 1_800_000_000_000
TRAFFIC = TrafficStatus(None, None, None, None, None, 0)


def status(name: str, *models: ModelStatus, version: str = __version__, digest: str = "d") -> AgentAnswer:
    found = AgentStatus(
        name, version, NOW_MS, 0, name == "a", 1, "a", bus_connected=True, store_connected=True, models=models,
        rejected={}, counters={}, config_digest=digest,
    )  # fmt: skip
    return AgentAnswer(found, 0)


def decided(state: str, age_ms: int, detail: str = "") -> ModelStatus:
    decision = DecisionSummary("d1", "llama", 1, 1, NOW_MS - age_ms, state, {"decode": 2}, (), detail)
    return ModelStatus(
        "llama", "auto", paused=False, no_operation=False, pools=(), traffic=TRAFFIC, decision=decision, hold=()
    )


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def test_agents_of_different_versions_or_configurations_are_reported() -> None:
    same = agent_findings(BusFacts(agents=(status("a"), status("b"))))
    assert verdicts(same) == {"agents": "ok", "versions": "ok"}
    mixed = agent_findings(BusFacts(agents=(status("a"), status("b", version="0.0.9", digest="e"))))
    assert verdicts(mixed) == {"agents": "ok", "versions": "warning", "configuration": "warning"}


@pytest.mark.parametrize(
    ("state", "age_ms", "verdict"),
    [
        ("committed", 6_000, "failed"),
        ("committed", 1_000, "skipped"),
        ("expired", 0, "warning"),
        ("refused", 0, "warning"),
        ("accepted", 60_000, "ok"),
        ("applied", 60_000, "ok"),
    ],
)
def test_a_decision_that_no_scaler_accepts_is_reported(state: str, age_ms: int, verdict: Verdict) -> None:
    answers = BusFacts(agents=(status("a", decided(state, age_ms)), status("b")))
    assert scaler_finding(answers, Deployment()).verdict == verdict


def test_the_decisions_of_all_agents_that_share_models_are_judged() -> None:
    answers = [status("a", decided("applied", 60_000)), status("b", decided("committed", 600_000))]
    answers[1] = replace(answers[1], status=replace(answers[1].status, leading=True))
    assert scaler_finding(BusFacts(agents=tuple(answers)), Deployment()).verdict == "failed"


@pytest.mark.parametrize("state", ["accepted", "applied"])
def test_the_reason_for_which_workers_are_missing_is_told(state: str) -> None:
    missing = BusFacts(agents=(status("a", decided(state, 60_000, "exceeded quota: gpus")),))
    found = scaler_finding(missing, Deployment())
    assert found.verdict == "warning"
    assert f"llama ({state}: exceeded quota: gpus)" in found.text


def test_the_age_of_the_leaders_lease_is_told() -> None:
    bus = BusFacts(agents=(status("a"), status("b")))

    def found(name: str, lease: Lease | None) -> Finding:
        return leader_finding(bus, StoreFacts(leader=Leader(name, int(time.time() * 1000), lease)))

    assert "renewed 3 s ago, of 10 s" in found("a", Lease(7, 10)).text
    assert found("a", Lease(7, 10)).verdict == "ok"
    assert found("a", Lease(-1, 0)).verdict == "failed"
    assert found("a", None).verdict == "warning"
    assert found("gone", Lease(7, 10)).verdict == "warning"
    assert leader_finding(bus, StoreFacts()).verdict == "failed"


def sharing(name: str, *led: int) -> AgentAnswer:
    return AgentAnswer(replace(status(name).status, sharing=SharingStatus(3, led, ("a", "b"))), 0)


def test_shards_whose_agent_does_not_answer_are_told_from_those_without_a_leader() -> None:
    def found(*answers: AgentAnswer) -> Finding:
        return leader_finding(BusFacts(agents=answers), StoreFacts())

    assert found(sharing("a", 0), sharing("b", 1, 2)).verdict == "ok"
    unled = found(sharing("a", 0), sharing("b", 1))
    assert (unled.verdict, unled.text) == ("failed", "1 of 3 shards have no leader; live agents: a, b")
    silent = found(sharing("a", 0))
    assert (silent.verdict, silent.text) == ("failed", "2 of 3 shards are led by nobody who answers; no answer from b")
    assert "agent.root" in silent.remedy


@pytest.mark.parametrize(("offset_ms", "verdict"), [(1_900, "ok"), (-2_100, "warning"), (60_001, "failed")])
def test_clocks_are_compared(offset_ms: int, verdict: Verdict) -> None:
    members: dict[str, MemberStatus | str] = {"e": MemberStatus(clock_offset_ms=offset_ms)}
    found = clock_findings(BusFacts(worker_clocks_ms={"w": offset_ms, "x": 0}), StoreFacts(members=members))
    assert verdicts(found) == {"clock of etcd": verdict, "clocks of agents": "skipped", "clocks of workers": verdict}


def found_in(times: ReportTimes) -> dict[str, str]:
    facts = BusFacts(
        worker_clocks_ms=times.clocks_ms, figure_ages_ms=times.ages_ms, single_lags_ms=times.single_lags_ms
    )
    return {one.check: f"{one.verdict}: {one.text}" for one in clock_findings(facts, StoreFacts())[2:]}


def of_workers(*reports: tuple[int, int]) -> dict[str, str]:
    """Return the findings of a worker from the ages of its figures and the times at which they arrived, in ms."""
    times = ReportTimes()
    for age_ms, at_ms in reports:
        times.add("w", NOW_MS + at_ms - age_ms, NOW_MS + at_ms, at_ms)
    return found_in(times)


@pytest.mark.parametrize(
    ("reports", "check", "verdict"),
    [
        pytest.param([(14_300, 0), (16_300, 2_000)], "figures", "ok", id="prometheus-reads-every-15-s"),
        pytest.param([(58_000, 0), (3_000, 2_000)], "figures", "ok", id="prometheus-has-read-meanwhile"),
        pytest.param([(14_300, 0)], "figures", "ok", id="one-report"),
        pytest.param([(61_000, 0), (61_200, 200)], "figures", "warning", id="its-source-has-no-news"),
        pytest.param([(61_000, 0), (61_000, 1_000)], "clocks", "failed", id="the-clock-of-the-worker-is-behind"),
        pytest.param([(90_000, 0), (90_700, 1_700), (90_000, 2_000)], "clocks", "failed", id="a-report-is-late"),
        pytest.param([(90_000, 0), (90_000, 1_000), (90_700, 2_700)], "clocks", "failed", id="the-last-one-is-late"),
        pytest.param([(60_000, 0)], "figures", "ok", id="one-report-of-a-source"),
        pytest.param([(60_001, 0)], "clocks or figures", "warning", id="one-report-of-a-source-or-a-clock"),
        pytest.param([(-61_000, 0), (-60_100, 900)], "clocks", "failed", id="the-figures-are-of-the-future"),
        pytest.param([(1_900, 0), (1_990, 90)], "clocks", "ok", id="fresh-figures"),
    ],
)
def test_old_figures_are_told_from_clocks_that_are_behind(
    reports: list[tuple[int, int]], check: str, verdict: Verdict
) -> None:
    """Those of a source have the time at which Prometheus read them, or at which an idle engine stored them."""
    [(found, text)] = of_workers(*reports).items()
    assert (found, text.partition(":")[0]) == (f"{check} of workers", verdict)


def test_a_clock_that_is_behind_is_told_while_that_of_this_host_is_set() -> None:
    times = ReportTimes()
    for at_ms, now_ms, monotonic_ms in ((-90_000, 0, 0), (-89_000, 6_000, 1_000)):
        times.add("w", NOW_MS + at_ms, NOW_MS + now_ms, monotonic_ms)
    assert found_in(times) == {"clocks of workers": "failed: w is 95.0 s behind this host"}


def test_both_reports_of_the_first_thousand_workers_count_by_model_and_pool() -> None:
    """The first 2,000 frames of 3,000 workers have one of each."""
    times, subjects = ReportTimes(), Subjects("loadline")
    for at_ms in (0, 1_000):
        for number in range(1_500):
            for model, behind_ms in (("late", 90_000), ("good", 5)):
                worker, sample = f"w-{number}", WorkerSample(1, NOW_MS + at_ms - behind_ms)
                report = encode(LoadReport(model, "p", worker, 1, [sample]))
                times.read(subjects.load(model, "p", worker), report, NOW_MS + at_ms, at_ms)
    assert len(times.clocks_ms) == 1_000
    assert found_in(times) == {"clocks of workers": "failed: late/p/w-99 is 90.0 s behind this host"}


@pytest.mark.parametrize(
    ("version", "user", "verdict"),
    [
        ("3.4.30", "", "failed"),
        ("3.5.29", "agent", "warning"),
        ("3.5.29", "", "ok"),
        ("3.5.30", "agent", "ok"),
        ("3.6.10", "agent", "warning"),
        ("3.6.11", "agent", "ok"),
        ("4.0.0-rc.1", "agent", "ok"),
    ],
)
def test_versions_of_etcd_are_compared(version: str, user: str, verdict: Verdict) -> None:
    facts = StoreFacts(members={"e": MemberStatus(version=version)})
    found = etcd_findings(facts, Deployment(etcd=EtcdKnobs(user=user)))
    assert verdicts(found)["etcd version"] == verdict


def test_a_database_near_its_quota_and_a_silent_member_are_reported() -> None:
    members: dict[str, MemberStatus | str] = {"e": MemberStatus(version="3.6.11", db_size=9, quota=10), "f": "refused"}
    found = etcd_findings(StoreFacts(members=members), Deployment())
    assert verdicts(found) == {"etcd": "warning", "etcd version": "ok", "etcd space": "warning"}


def test_an_old_nats_server_is_reported() -> None:
    old = BusFacts(version="2.9.25", payload_bytes_max=1_048_576)
    assert verdicts(nats_findings(old, Deployment())) == {"nats": "warning", "nats payload": "ok"}


@pytest.mark.parametrize(
    ("url", "command", "aborts"),
    [
        ("http://127.0.0.1:8001", "python3 /opt/vllm/bin/vllm serve m --port 8001", True),
        ("http://127.0.0.1:8001", "python3 /opt/vllm/bin/vllm serve m --port=8001 --shutdown-timeout=0", True),
        ("http://localhost:8001", "python3 /opt/vllm/bin/vllm serve m --port 8001 --shutdown-timeout 30", False),
        ("http://127.0.0.1:8001", "vllm serve m --port 8001 --shutdown_timeout=30", False),
        ("http://127.0.0.1:8000", "python3 -m vllm.entrypoints.openai.api_server --model m", True),
        ("http://127.0.0.1:8002", "python3 /opt/vllm/bin/vllm serve m --port 8001", False),
        ("http://10.0.0.7:8001", "python3 /opt/vllm/bin/vllm serve m --port 8001", False),
        ("http://127.0.0.1:8001", "grep vllm-serve --port 8001", False),
    ],
)
def test_vllm_without_a_shutdown_timeout_is_found(tmp_path: Path, url: str, command: str, *, aborts: bool) -> None:
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command.split()))
    (tmp_path / "18").mkdir()  # it has ended
    assert aborts_at_sigterm(url, tmp_path) is aborts
