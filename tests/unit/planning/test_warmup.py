"""Warm start from a trace: intervals, first forecasts, and errors of unusable traces."""

from math import pi, sin
from pathlib import Path

import msgspec
import pytest

from loadline.cli.main import main
from loadline.config import load, parse
from loadline.core.controller import Controller
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, FitForecast
from loadline.core.vocabulary.events import ForecastFitted, TrafficReported
from loadline.core.vocabulary.forecasts import DAY_MS, POINTS_MAX, History
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import TrafficSample
from loadline.errors import ConfigError, DataError
from loadline.forecast import forecast
from loadline.runtime import journal_records
from loadline.runtime.settings import settings
from loadline.sim.result import SimulationResult
from loadline.traces.warmup import read_warmup
from tests.support.config_texts import LINEAR
from tests.support.fleet_harness import START
from tests.support.holds import hold_of
from tests.support.simulation_files import write_options as simulation

DATA = Path(__file__).parents[2] / "data"
DAYS = 3
# A wave of a day, in bins of 10 minutes with 60 to 540 requests; it ends where it rises fastest.
WAVE = "t,num_req,mean_isl,mean_osl\n" + "".join(
    f"{n * 600},{300 + 240 * sin(2 * pi * n / 144):.1f},500,100\n" for n in range(DAYS * 144)
)


def model(name: str = "m", planner: str = "throughput", knobs: str = "") -> str:
    return LINEAR.format(name=name, planner=planner, knobs=knobs)


def simulated(planner: str) -> str:
    """Return the configuration of the simulated fleet, for up to four workers."""
    linear = "linear = { alpha = 5, beta = 0.1, gamma = 5, delta = 0.05, max_kv_tokens = 32_000 }\nreplicas_max = 4\n"
    text = LINEAR.format(name="llama", planner=planner, knobs="throughput.forecast.min_points = 1")
    return f"{text.partition('linear')[0]}{linear}"


def write_options(folder: Path, text: str, name: str = "past.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def requests(*at_s: float, isl: int = 100, osl: int = 10) -> str:
    return "arrival_s,isl,osl\n" + "".join(f"{at},{isl},{osl}\n" for at in at_s)


# -- intervals of a trace ----------------------------------------------------------------------------------------------


def test_intervals_end_with_the_trace(tmp_path: Path) -> None:
    path = write_options(tmp_path, "arrival_s,isl,osl\n0,9,9\n5,100,10\n20,300,20\n25,50,5\n")
    history = read_warmup(path, 10.0, 10.0)
    assert history.requests.values == (2.0, 2.0), "within 10 s of the first 5 s, which are no whole interval"
    assert history.isl_tokens.values == (100.0, 175.0)
    assert history.osl_tokens.values == (10.0, 12.5)
    assert history.requests.interval_ms == 10_000


def test_an_idle_interval_is_0_and_repeats_the_lengths(tmp_path: Path) -> None:
    history = read_warmup(write_options(tmp_path, requests(5, 9, 30)), 10.0, 10.0)
    assert history.requests.values == (2.0, 0.0, 1.0)
    assert history.isl_tokens.values == (100.0, 100.0, 100.0)


def test_the_load_of_an_interval_is_that_of_its_busiest_part(tmp_path: Path) -> None:
    burst = [50 + n / 10 for n in range(30)]
    history = read_warmup(write_options(tmp_path, requests(0, *burst, 120)), 60.0, 6.0)
    assert history.requests.values == (300.0, 10.0), "30 requests within 6 s are 300 a minute"
    long = "arrival_s,isl,osl\n" + "".join(f"{n},{900 if n > 54 else 100},10\n" for n in range(61))
    (busy,) = read_warmup(write_options(tmp_path, long), 60.0, 6.0).requests.values
    mean_isl = (55 * 100 + 6 * 900) / 61
    assert busy == pytest.approx(10 * 6 * 900 / mean_isl, rel=1e-3), "by prompt tokens, in requests of mean length"


def test_rates_are_distributed_over_intervals_of_any_width(tmp_path: Path) -> None:
    text = "t,num_req,mean_isl,mean_osl\n0,600,100,10\n600,60,200,20\n1200,,,\n1800,6,300,30\n"
    history = read_warmup(write_options(tmp_path, text), 400.0, 30.0)
    assert history.requests.values == (400.0, 220.0, 40.0, None, 4.0, 4.0)
    assert history.isl_tokens.values[:3] == (100.0, 109.1, 200.0), "(200 x 100 + 20 x 200) / 220"
    assert history.osl_tokens.values[5] == 30.0


def test_half_an_interval_suffices_for_its_rate(tmp_path: Path) -> None:
    text = "t,num_req,mean_isl,mean_osl\n0,,,\n100,60,,20\n"
    (value,) = read_warmup(write_options(tmp_path, text), 200.0, 30.0).requests.values
    assert value == 120.0


@pytest.mark.parametrize(
    ("name", "interval_s"),
    [
        ("azure2023_conv_head.csv", 1.0),
        ("azure2024_conv_bin600.csv", 180.0),
        ("mooncake_conversation_head.csv", 1.0),
        ("mooncake_synthetic_cut.jsonl", 10.0),
        ("servegen_m-mid_cut_bin600.csv", 180.0),
    ],
)
def test_every_trace_format_gives_a_history(name: str, interval_s: float) -> None:
    history = read_warmup(DATA / name, interval_s, interval_s)
    assert 0 < len(history.requests.values) <= POINTS_MAX
    assert any(history.requests.values)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history


# -- use by the planner ------------------------------------------------------------------------------------------------


def warm(folder: Path, planner: str = "throughput", text: str = WAVE, knobs: str = "") -> Settings:
    write_options(folder, text)
    path = folder / "loadline.toml"
    section = "sla.throughput" if planner == "sla" else "throughput"
    knobs += f'\nload_predictor_warmup_trace = "past.csv"\n{section}.forecast.predictor = "seasonal"'
    path.write_text(model(planner=planner, knobs=knobs), encoding="utf-8")
    return settings(load(path, {}))


def fits(effects: list[AnyEffect]) -> list[FitForecast]:
    return [effect for effect in effects if isinstance(effect, FitForecast)]


@pytest.mark.parametrize("planner", ["throughput", "sla"])
def test_the_first_turn_requests_a_forecast_with_the_season(tmp_path: Path, planner: str) -> None:
    controller = Controller(warm(tmp_path, planner))
    (asked,) = fits(controller.handle([], START))
    load_series = asked.queries[0].series
    assert (load_series.end_ms, load_series.interval_ms) == (START, 180_000)
    assert len(load_series.values) == DAYS * 480
    answers = [forecast(query) for query in asked.queries]
    assert answers[0] is not None
    assert (answers[0].predictor, answers[0].fallback) == ("seasonal", "")
    last = load_series.values[-1]
    assert last is not None
    assert last < answers[0].mean[0] < answers[0].mean[1], "the forecast rises as on the days before"
    assert fits(controller.handle([], START + 60_000)) == [], "one request"


def test_the_first_report_is_sized_with_the_forecast(tmp_path: Path) -> None:
    controller = Controller(warm(tmp_path))
    (asked,) = fits(controller.handle([], START))
    answers = [forecast(query) for query in asked.queries]
    controller.handle([ForecastFitted("m", asked.request, answers)], START + 100)
    (silent,) = hold_of(controller.state, "m").recommendations
    assert {reason.code for reason in silent.reasons} == {ReasonCode.TRAFFIC_UNKNOWN}
    burst = TrafficSample(1, 1_000, 90, 0, isl_tokens=500.0)
    controller.handle([TrafficReported("m", "f", 1, burst)], START + 1_000)
    inputs = hold_of(controller.state, "m").recommendations[0].inputs
    assert answers[0] is not None
    assert inputs["requests_per_s"] == pytest.approx(answers[0].mean[0] / 180.0), "one second of a burst gives no rate"
    assert inputs["osl_tokens"] == pytest.approx(100.0), "although no request has finished"


def test_a_replay_needs_no_trace(tmp_path: Path) -> None:
    core_settings = warm(tmp_path)
    controller, lines = Controller(core_settings), list[bytes]()
    lines.append(
        journal_records.encode(
            journal_records.SegmentStart(
                journal_records.FORMAT,
                "0",
                START,
                continues=False,
                settings=core_settings,
                snapshot=controller.capture()(),
            )
        )
    )
    for now in range(START, START + 400_000, 10_000):
        lines.append(journal_records.encode(journal_records.TurnRecord(now, [])))
        effects = controller.handle([], now)
        if effects:
            lines.append(journal_records.encode(journal_records.EffectsRecord(effects)))
    assert len(lines[0]) < 100_000, "a history is small compared with a segment of 64 MB"
    (tmp_path / "past.csv").unlink()
    found = journal_records.replay([("journal", lines)])
    assert (found.difference, found.turns) == ("", 40)
    assert found.effects


@pytest.mark.parametrize(("late_h", "end"), [(0, "00:00"), (12, "00:00"), (12, "12:00"), (23, "06:30")])
def test_a_restart_at_another_time_keeps_the_phase_of_the_season(tmp_path: Path, late_h: int, end: str) -> None:
    core_settings = warm(tmp_path, knobs=f'load_predictor_warmup_end = "{end}"')
    start = START - START % DAY_MS + late_h * 3_600_000
    (asked,) = fits(Controller(core_settings).handle([], start))
    values = asked.queries[0].series.values
    hours, minutes = map(int, end.split(":"))
    phase = (late_h - hours - minutes / 60) / 24  # the wave begins when the trace ends
    for back in (1, 100, 240, 479):
        wave = 300 + 240 * sin(2 * pi * (phase - back / 480))
        assert values[-back] == pytest.approx(wave * 180 / 600, abs=3), "between 18 and 162 per interval"
    assert len({len(query.series.values) for query in asked.queries}) == 1


# -- unusable traces ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["past.csv: cannot be opened", "Name a trace"]),
        ("", ["past.csv, line 1: the file is empty", "Name a trace"]),
        ("arrival_s,isl,osl\n", ["past.csv", "there are no requests"]),
        ("arrival_s,isl,osl\n1,x,1\n", ["past.csv, line 2", "Correct or drop"]),
        (requests(0, 900), ["has 5 whole intervals of 180 s", "min_points, 6", "longer trace"]),
        ("t,num_req,mean_isl,mean_osl\n0,,,\n7200,,,\n", ["has 0 whole intervals"]),
    ],
)
def test_an_unusable_trace_is_an_error(tmp_path: Path, text: str | None, words: list[str]) -> None:
    path = tmp_path / "past.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    knobs = f'load_predictor_warmup_trace = "{path}"\nthroughput.forecast.min_points = 6'
    with pytest.raises(DataError) as refused:
        settings(parse(model(knobs=knobs), "x"))
    assert str(refused.value).startswith("load_predictor_warmup_trace of model m: ")
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_trace_with_an_end_has_a_time_of_day(tmp_path: Path) -> None:
    short = "".join(WAVE.splitlines(keepends=True)[:144])
    with pytest.raises(
        DataError, match=r"past\.csv has 476 intervals of 180 s .* a day has 480\. Name a trace of a day"
    ):
        warm(tmp_path, text=short, knobs='load_predictor_warmup_end = "00:00"')
    with pytest.raises(ConfigError, match="load_predictor_warmup_end"):
        parse(model(knobs='load_predictor_warmup_end = "24:00"'), "x")


# -- the command line --------------------------------------------------------------------------------------------------


def check(folder: Path, text: str, *warmups: str) -> int:
    path = write_options(folder, text, "loadline.toml")
    options = [option for one in warmups for option in ("--load-predictor-warmup-trace", one)]
    return main(["check", "--config", str(path), *options])


def test_the_option_sets_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past = str(write_options(tmp_path, WAVE))
    both = model("a") + model("b", "sla") + model("c", "static")
    assert check(tmp_path, model() + model("c", "static"), past) == 0
    assert check(tmp_path, both, f"a={past}", f"b={past}") == 0
    message = f"the first forecasts use {past} as if it ended when the agent starts"
    assert capsys.readouterr().out.count(message) == 3
    ends = "load_predictor_warmup_end = '18:15'"
    assert check(tmp_path, model(knobs=ends), past) == 0
    assert f"use {past} as if it ended at 18:15 UTC." in capsys.readouterr().out
    other = str(write_options(tmp_path, WAVE, "x=y.csv"))
    assert check(tmp_path, model(), other) == 0


def test_a_trace_of_several_models_gives_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for names, core_settings in ((("x", "y"), 1), (("x", "x"), 0), (("", "x"), 0)):
        rows = "".join(f"{names[n % 2]},{n * 10},100,10\n" for n in range(1_000))
        past = str(write_options(tmp_path, "\ufeffmodel,arrival_s,isl,osl\n" + rows))
        assert check(tmp_path, model(), past) == 0
        message = f"load_predictor_warmup_trace of model m: {past} has requests of several models, such as x and y"
        assert capsys.readouterr().out.count(message) == core_settings


def test_a_simulation_uses_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    past = write_options(tmp_path, "t,num_req,mean_isl,mean_osl\n0,360000,250,20\n900,360000,250,20\n")
    options = ["simulate", *simulation(tmp_path, config=simulated("throughput")), "--json", str(tmp_path / "out.json")]
    most = []
    for warmups in ([], ["--load-predictor-warmup-trace", str(past)]):
        assert main([*options, *warmups]) == 0
        outcome = msgspec.json.decode((tmp_path / "out.json").read_bytes(), type=SimulationResult)
        most.append(outcome.workers_max["main"])
    cold, warm = most
    assert warm > cold == 2, "sized for the load of the history, under little load"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "warmups", "words"),
    [
        (model("a") + model("b"), ["{past}"], ["may belong to a or b", "Write MODEL={past}, once per model"]),
        (model("a"), ["b={past}"], ["'b' is not a model", "Known are: a"]),
        (model("a"), ["a={past}", "a={past}"], ["names model a twice"]),
        (model("a", "static"), ["{past}"], ["static planner of model a does not forecast", "sla, throughput"]),
        (model("a", "static", 'load_predictor_warmup_trace = "x"'), [], ["models[0].load_predictor_warmup_trace"]),
        (model("a"), ["{past}x"], ["load_predictor_warmup_trace of model a", "cannot be opened"]),
    ],
)
def test_an_invalid_option_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, warmups: list[str], words: list[str]
) -> None:
    past = str(write_options(tmp_path, WAVE))
    assert check(tmp_path, text, *(one.format(past=past) for one in warmups)) == 2
    message = capsys.readouterr().err
    assert all(word.format(past=past) in message for word in words), message
