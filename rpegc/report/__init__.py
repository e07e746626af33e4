"""Renders plans; never computes."""
