"""Rewrite passes: one family a file."""
