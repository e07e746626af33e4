"""Make what examples/native/copy.yaml needs: a tiny random model with its tokenizer, and prompts.

    python examples/native/copy_task.py FOLDER

The task: copy two digits. The weights are random (seeded), so that everything the model can do in the end it has
learned from the reward. Needs `pip install 'rpegc[native]'`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DIGITS = "0123456789"
WORDS = ["<pad>", "<end>", "=", *DIGITS]


def main() -> None:
    """Write the model, the tokenizer and the prompts."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(Path(__file__).parent)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(folder / "model")
    rows = [{"prompt": f"{first}{second}=", "answer": f"{first}{second}"} for first in DIGITS for second in DIGITS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
