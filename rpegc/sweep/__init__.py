"""Many settings of one pipeline: every point is compiled as `rpegc compile` would, and becomes a row."""
