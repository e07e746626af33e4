"""Runs verl's own checks on override files; prints one JSON object a file.

    validate.py REQUEST.json FOLDER      with  [{"module": driver, "overrides": file}, ...]

Runs in the environment of level validate. FOLDER receives a tiny model with a tokenizer, which stands in for every
model path: verl loads configuration and tokenizer of some models while it checks.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from compose import composed
from omegaconf import OmegaConf

MODEL_KEYS = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "critic.model.path",
    "critic.model.tokenizer_path",
    "reward.reward_model.model_path",
)


def tiny_model(folder: Path) -> str:
    """Write the configuration of a two-layer Qwen2 model and a tokenizer trained on two sentences; return its path."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=100, special_tokens=["<unk>", "<pad>", "<eos>"])
    tokenizer.train_from_iterator(["two plus two is four", "three times three is nine"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    return str(folder)


def sizes(engine: Any) -> list[Any]:
    """Return the degrees of a Megatron engine: tp, pp, vpp, cp, ep, etp, and whether its parameters are offloaded."""
    names = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "expert_tensor")
    return [*(getattr(engine, f"{name}_parallel_size") for name in names), engine.param_offload]


def validated(module: str, overrides: list[str], model: str) -> dict[str, Any]:
    """Compose one configuration, run `validate_config`, build every dataclass; return figures read back from them."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = composed(module, overrides)
    for key in MODEL_KEYS:
        if OmegaConf.select(config, key) is not None:
            OmegaConf.update(config, key, model)
    if "rollout" in config:  # the experimental drivers copy the pool's size before they check
        config.actor_rollout_ref.rollout.nnodes = config.rollout.nnodes
        config.actor_rollout_ref.rollout.n_gpus_per_node = config.rollout.n_gpus_per_node
    OmegaConf.resolve(config)
    # vLLM is not installed here; its LoRA ranks are a rule of the backend's own.
    model_config = config.actor_rollout_ref.model
    lora_ranks = model_config.lora_rank, model_config.lora.rank
    model_config.lora_rank = model_config.lora.rank = 0
    validate_config(config, need_reference_policy(config), need_critic(config))
    model_config.lora_rank, model_config.lora.rank = lora_ranks
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    omega_conf_to_dataclass(config.actor_rollout_ref.model)
    if config.reward.reward_model.enable:
        omega_conf_to_dataclass(config.reward.reward_model.rollout)
    read = {
        "actor_strategy": actor.engine.strategy,
        "actor_ulysses": getattr(actor.engine, "ulysses_sequence_parallel_size", 1),
        "actor_offload": [actor.engine.param_offload, actor.engine.optimizer_offload],
        "rollout_tp": rollout.tensor_model_parallel_size,
        "needs_reference": need_reference_policy(config),
        "needs_critic": need_critic(config),
    }
    if actor.engine.strategy == "megatron":
        reference = omega_conf_to_dataclass(config.actor_rollout_ref.ref.megatron)
        read |= {"actor_sizes": sizes(actor.engine), "reference_sizes": sizes(reference)}
    if config.distillation.enabled:
        omega_conf_to_dataclass(config.distillation)
    if need_critic(config):
        critic = omega_conf_to_dataclass(config.critic)
        read["critic_strategy"] = critic.engine.strategy
        # What the V1 trainer writes into the critic's engine, for training and values alike.
        if critic.engine.strategy == "megatron":
            read["critic_sizes"] = sizes(critic.engine)
        read["critic_budget"] = critic.ppo_infer_max_token_len_per_gpu
    return read


def report(request: dict[str, Any], model: str) -> dict[str, Any]:
    """Validate one file; return what verl read, or the error."""
    lines = Path(request["overrides"]).read_text(encoding="utf-8").splitlines()
    try:
        return {"ok": True, "values": validated(request["module"], lines, model)}
    except Exception as error:  # every failure is a finding
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    requests = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model_folder = tiny_model(Path(sys.argv[2]))
    print("\n" + json.dumps([report(request, model_folder) for request in requests]))
