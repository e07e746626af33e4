"""Solvers of the integer problem: they know stages, meshes, rows and milliseconds, and nothing of models or targets."""
