"""Prints every key that TRL's GRPOConfig, DeepSpeed's configuration and PEFT's LoraConfig read, one a line and sorted.

keys.py      what `backends/deepspeed/keys-*.txt` holds
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator
from typing import Any


class Recorder(dict[str, Any]):
    """A dict that notes the keys that somebody asks for."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def keys(self) -> Any:
        """Return the dict itself: `name in keys()` is noted, too."""
        return self

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


def fields(model: Any, prefix: str) -> Iterator[str]:
    """Yield the dotted keys of a pydantic model, by alias where it has one, deprecated ones left out."""
    for name, field in model.model_fields.items():
        if (field.json_schema_extra or {}).get("deprecated"):
            continue
        key = f"{prefix}{field.alias or name}"
        nested = [kind for kind in _kinds(field.annotation) if hasattr(kind, "model_fields")]
        if nested:
            for kind in nested:
                yield from fields(kind, f"{key}.")
        else:
            yield key


def _kinds(annotation: Any) -> list[Any]:
    return [annotation, *getattr(annotation, "__args__", ())]


def deepspeed_keys() -> Iterator[str]:
    """Yield the keys of ds_config.json: those of its models, and those that are asked for at the top."""
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    checkpointing = Recorder()
    top = Recorder({"train_batch_size": 1, "activation_checkpointing": checkpointing})
    config = DeepSpeedConfig.__new__(DeepSpeedConfig)
    config._initialize_params(top)
    sections = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config}
    for name, model in sections.items():
        yield from fields(model, f"deepspeed.{name}.")
    for name in checkpointing.asked:
        yield f"deepspeed.activation_checkpointing.{name}"
    for name in inspect.signature(torch.optim.AdamW).parameters:
        if name != "params":
            yield f"deepspeed.optimizer.params.{name}"
    yield from ("deepspeed.optimizer.type", "deepspeed.optimizer.params.torch_adam")
    scalars = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
    for name in top.asked - {*sections, "optimizer", "activation_checkpointing"}:
        plain = name in scalars or _is_plain(name)
        yield f"deepspeed.{name}" if plain else f"deepspeed.{name}.*"


def _is_plain(name: str) -> bool:
    """Whether DeepSpeed takes a number or a word for a key of the top, not a block."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig.__new__(DeepSpeedConfig)
    for value in (1, "fp32", "avg"):
        try:
            config._initialize_params({"train_batch_size": 1, name: value})
        except Exception:  # another kind was wanted
            continue
        return True
    return False


def trl_keys() -> Iterator[str]:
    """Yield the fields of GRPOConfig."""
    from trl import GRPOConfig

    yield from (f"grpo.{field.name}" for field in dataclasses.fields(GRPOConfig) if field.init)


def lora_keys() -> Iterator[str]:
    """Yield the fields of LoraConfig."""
    from peft import LoraConfig

    yield from (f"lora.{field.name}" for field in dataclasses.fields(LoraConfig) if field.init)


def main() -> None:
    """Print all."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("deepspeed", "trl", "peft"))
    print(f"# Keys that are read by {versions}; `.*`: a block with free keys")
    print("\n".join(sorted({*deepspeed_keys(), *trl_keys(), *lora_keys()})))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
