"""Why this plan, and why not another: questions answered by editing the search's input, never by another engine."""
