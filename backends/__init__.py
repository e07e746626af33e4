"""Backends: capabilities, rules and templates of each target."""
