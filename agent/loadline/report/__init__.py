"""What people see of a simulation: rows of a table, plots, and a page that holds everything in one file."""

from loadline.report.comparison import comparison_page
from loadline.report.forecasts import SCORED, forecast_page, forecast_summary, forecast_verdict, scored
from loadline.report.plots import available
from loadline.report.rows import COMPARED, MOVED, arrived, compared, moved, results
from loadline.report.simulation import simulation_page

__all__ = [
    "COMPARED",
    "MOVED",
    "SCORED",
    "arrived",
    "available",
    "compared",
    "comparison_page",
    "forecast_page",
    "forecast_summary",
    "forecast_verdict",
    "moved",
    "results",
    "scored",
    "simulation_page",
]
