"""rpegc: a compiler that plans RL post-training of reasoning language models."""

__version__ = "0.1.0"
