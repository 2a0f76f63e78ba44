"""Log of the oddities of pages."""

from structlog.testing import capture_logs

from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.sources.oddities import OddityLog

PAGE = 'llm_d_epp_request_total{{model_name="{model}",target_model_name="{model}"}} {count}\n'


def test_a_model_that_is_not_configured_is_named_once() -> None:
    reader = RouterReader(ROUTERS["llm-d"], {"Qwen/Qwen3-8B": "qwen"}, "", lambda _: None)
    oddities = OddityLog("http://epp:9090/metrics")
    with capture_logs() as lines:
        for count in range(1, 4):
            reader.read(PAGE.format(model="qwen/qwen3-8b", count=count).encode(), 1_000 * count)
            oddities.update(reader.warnings, reader.unknown_model)
    [line] = lines
    assert (line["event"], line["kind"], line["model"]) == ("metrics_odd", "model_ignored", "qwen/qwen3-8b")
    assert line["page"] == "http://epp:9090/metrics"


def test_other_kinds_have_their_count() -> None:
    oddities = OddityLog("p")
    with capture_logs() as lines:
        oddities.update({"counter_fell": 1})
        oddities.update({"counter_fell": 2, "above_capacity": 3})
    assert [(line["kind"], line["count"]) for line in lines] == [("counter_fell", 1), ("above_capacity", 3)]
