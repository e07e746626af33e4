"""A tiny model, prompts and a reward for the native engine: run as `python native_model.py FOLDER [KIND] [SEED]`.

The reward has no plateaus: the share of early letters in the answer, and more for the prompt's own. Needs torch and
transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LETTERS = "abcdefghijklmnop"
REWARD = """
def score(data_source, solution_str, ground_truth, extra_info=None):
    letters = solution_str.replace(" ", "")
    return sum((letter in "abcdefgh") + 2 * (letter == ground_truth) for letter in letters) / 8
"""


def make(folder: Path, kind: str = "llama", seed: int = 0, **sizes: int) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<pad>": 0, "<end>": 1, **{letter: place + 2 for place, letter in enumerate(LETTERS)}}
    vocabulary |= {f"<{number}>": number for number in range(len(vocabulary), 32)}
    configs = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "qwen3_moe": transformers.Qwen3MoeConfig,
    }
    values = {
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "eos_token_id": 1,
        "bos_token_id": None,
        "pad_token_id": 0,
        "tie_word_embeddings": kind == "qwen2",
    }
    if kind == "qwen3_moe":
        values |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(configs[kind](**(values | sizes)))
    model.save_pretrained(folder / "model")
    config = (
        folder / "model" / "config.json"
    )  # Transformers 5 writes a name of Mixtral's; published files have this one
    config.write_text(config.read_text().replace("num_local_experts", "num_experts"))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(folder / "model")
    lines = [{"prompt": letter * length, "answer": letter} for length in (2, 3, 4) for letter in LETTERS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]), *sys.argv[2:3], *(int(seed) for seed in sys.argv[3:4]))
