"""Engines that nobody here wrote, asked for their answer to one call. Each model is built and compiled afresh."""
