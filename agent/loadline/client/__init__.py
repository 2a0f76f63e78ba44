"""The other side of the bus: worker, frontend and scaler in ten lines."""
