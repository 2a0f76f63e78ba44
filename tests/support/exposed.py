"""Metrics of a controller, as a scrape reads them."""

from prometheus_client.parser import text_string_to_metric_families

from loadline.adapters.metrics import Metrics
from loadline.core.controller import Controller
from loadline.core.queries.status import status


def exposed(controller: Controller, now: int, name: str = "loadline_") -> dict[str, float]:
    """Return the samples whose name begins with ``name``, by name and label values, such as ``x_total m decode``."""
    found = status(controller.settings, controller.state, "0", now, now, controller.planners)
    text = b"".join(Metrics(dict, "0").render(found)).decode()
    return {
        " ".join([sample.name, *(sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(name)
    }
