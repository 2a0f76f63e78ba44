"""Reports of simulations, comparisons and backtests: table rows, plots, and single-file HTML pages."""

from loadline.report.comparison import comparison_page
from loadline.report.forecasts import SCORE_HEADER, forecast_page, forecast_ranking, forecast_summary, score_rows
from loadline.report.plots import available
from loadline.report.rows import (
    COMPARISON_HEADER,
    MIGRATION_HEADER,
    comparison_rows,
    migration_rows,
    result_rows,
    trace_summary,
)
from loadline.report.simulation import simulation_page

__all__ = [
    "COMPARISON_HEADER",
    "MIGRATION_HEADER",
    "SCORE_HEADER",
    "available",
    "comparison_page",
    "comparison_rows",
    "forecast_page",
    "forecast_ranking",
    "forecast_summary",
    "migration_rows",
    "result_rows",
    "score_rows",
    "simulation_page",
    "trace_summary",
]
