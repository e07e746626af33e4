"""A Transformers causal language model as the engine runs it: embedding, layers, norm and head, or a part of them.

Names of parameters are those of the Transformers checkpoint in every layout and every part, which is what lets weights
move between layouts by name. Shapes: B rows, S tokens, C channels, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from rpegc.errors import InputError, MissingPiece
from rpegc.runtime.attention import NAME, AttentionContext, register

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type` of the configurations that the engine's layouts are written for."""


class LanguageModel(nn.Module):
    """Some layers of a model; the first part embeds, the last part applies norm and head.

    `head` is "logits" (B, S, V) or "scalar" (B, S). Without embedding the input is hidden states (B, S, C).
    """

    def __init__(self, source: Any, head: str, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        base = source.model
        chosen = list(range(len(base.layers))) if layers is None else list(layers)
        self.config, self.head = source.config, head
        self.first = not chosen or chosen[0] == 0
        self.last = not chosen or chosen[-1] == len(base.layers) - 1
        self.recompute = "none"
        self.offload_activations = False
        self.model = nn.Module()
        self.model.layers = nn.ModuleDict({str(number): base.layers[number] for number in chosen})
        self.rotary = base.rotary_emb
        if self.first:
            self.model.embed_tokens = base.embed_tokens
        if self.last:
            self.model.norm = base.norm
            if head == "logits":
                self.lm_head = source.lm_head
            else:
                self.score = source.score

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one matrix."""
        return bool(self.config.tie_word_embeddings) and self.head == "logits"

    def forward(self, inputs: Tensor, positions: Tensor, context: AttentionContext | None = None) -> Tensor:
        """Return hidden states (B, S, C), or what the head makes of them in the last part."""
        hidden = self.model.embed_tokens(inputs) if self.first else inputs
        rotation = self.rotary(hidden, positions)
        for layer in self.model.layers.values():
            hidden = self._layer(layer, hidden, positions, rotation, context)
        if not self.last:
            return hidden
        hidden = self.model.norm(hidden)
        if self.head == "logits":
            logits: Tensor = self.lm_head(hidden)
            return logits
        values: Tensor = self.score(hidden)
        return values.squeeze(-1).clone()  # FSDP warns of views: later in-place work would lose its hooks

    def _layer(self, layer: Any, hidden: Tensor, positions: Tensor, rotation: Any, context: Any) -> Tensor:
        def run(states: Tensor) -> Tensor:
            result = layer(
                states,
                attention_mask=None,
                position_ids=positions,
                position_embeddings=rotation,
                attention_context=context,
            )
            return result[0] if isinstance(result, tuple) else result

        if not (torch.is_grad_enabled() and self.training):
            return run(hidden)
        if self.recompute == "none":
            if self.offload_activations:
                with torch.autograd.graph.save_on_cpu():
                    return run(hidden)
            return run(hidden)
        options = {"context_fn": _keep_products} if self.recompute == "selective" else {}
        result: Tensor = checkpoint(run, hidden, use_reentrant=False, **options)
        return result


def _keep_products() -> Any:
    """Keep the results of matrix products and attention, recompute the rest."""
    kept = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}

    def policy(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def load_model(folder: Path, head: str) -> Any:
    """Read a Transformers model from a local folder in fp32, with our attention and a head of the given kind.

    A scalar head is read from `score.weight` where the checkpoint has one, and starts at zero otherwise. Raises
    InputError for a folder that holds no model of a known family.
    """
    transformers = _transformers()
    register()
    config = _config(folder, transformers)
    options = {"config": config, "dtype": torch.float32, "attn_implementation": NAME, "local_files_only": True}
    if head == "logits":
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    source = nn.Module()
    base = transformers.AutoModel.from_pretrained(folder, **options)
    source.model, source.config = base, config
    source.score = nn.Linear(config.hidden_size, 1, bias=False)
    nn.init.zeros_(source.score.weight)
    stored = _stored(folder, "score.weight")
    if stored is not None:
        source.score.weight.data.copy_(stored.view_as(source.score.weight))
    return source


def load_tokenizer(folder: Path) -> Any:
    """Read a tokenizer from a local folder."""
    try:
        return _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: holds no tokenizer ({error})") from None


def _config(folder: Path, transformers: Any) -> Any:
    file = folder / "config.json"
    try:
        kind = json.loads(file.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error})", hint="`weights` names a folder on this machine") from None
    if kind not in FAMILIES:
        raise InputError(f"{file}: model_type {kind!r} is not run by the native engine", hint=", ".join(FAMILIES))
    return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)


def _stored(folder: Path, name: str) -> Tensor | None:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            if name in tensors.keys():  # noqa: SIM118
                found: Tensor = tensors.get_tensor(name)
                return found
    return None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingPiece("the native engine needs transformers: pip install 'rpegc[native]'") from None
    return transformers
