"""The four tables of a run: what the engine fills and every question reads."""
