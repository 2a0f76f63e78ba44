"""State of models, pools and workers as reported, with rolling windows and totals."""
