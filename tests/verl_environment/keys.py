"""Prints every key of verl's composed configurations, one a line and sorted: what `backends/verl/keys-*.txt` holds.

keys.py [ENGINE]      with ENGINE an option of verl's `model_engine`, such as megatron; none is verl's default

Runs in the environment of level compose.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from typing import Any

from compose import CONFIGS, composed
from omegaconf import DictConfig, OmegaConf

PACKAGED = "hydra.searchpath=[pkg://verl.trainer.config]"


def keys(root: Any, section: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys below a section; sections themselves only where they are empty."""
    for name in section:
        key = f"{prefix}{name}"
        node = section._get_node(name)
        if isinstance(node, DictConfig) and not (node._is_none() or node._is_missing() or node._is_interpolation()):
            yield from keys(root, node, f"{key}.") if len(node) else [f"{key} {{}}"]
        else:
            # Hydra takes `+key` for a key that is there but has no value.
            yield f"{key} null" if OmegaConf.select(root, key, throw_on_missing=False) is None else key


def main(engine: str) -> None:
    """Print the union over all drivers."""
    overrides = [PACKAGED] + ([f"model_engine={engine}"] if engine else [])
    found: set[str] = set()
    for module in CONFIGS:
        config = composed(module, overrides)
        found |= set(keys(config, config))
    names = [line.split(" ")[0] for line in found]
    assert len(names) == len(set(names)), "a key has a value in one configuration only"
    version = importlib.metadata.version("verl")
    sources = " and ".join(f"verl/{folder}/{name}.yaml" for folder, name in CONFIGS.values())
    print(
        f"# Keys of the composed configurations {sources} of the verl {version} wheel (PyPI)"
        f"{f' with model_engine={engine}' if engine else ''}; "
        "`null`: no value, `{}`: free dict"
    )
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
