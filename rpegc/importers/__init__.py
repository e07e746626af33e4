"""Launch scripts of other people, read as text and never executed: what they fix of pipeline and plan."""
