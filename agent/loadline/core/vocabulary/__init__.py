"""Types shared by the whole core: events, effects, samples, decisions, migrations, forecasts, reasons and status."""
