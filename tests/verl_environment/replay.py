"""Runs verl's own replay buffer under the settings of an override file; prints the age of what each step trains on.

    replay.py REQUEST.json FOLDER      with  [{"module": driver, "overrides": file, "prompts": n, "steps": n}, ...]

Stands in for the queue between trainer and engines: prompts end in an order by lot, one after each look at the queue.
Steps submit, sample and age as in verl/trainer/ppo/v1/trainer_base.py: a step's prompts begin with the weights of the
step before.
"""

from __future__ import annotations

import json
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from compose import composed, package_folder


class Queue(ModuleType):
    """The part of the package `transfer_queue` that the buffer uses."""

    def __init__(self) -> None:
        super().__init__("transfer_queue")
        self.tags: dict[str, dict[str, Any]] = {}
        self.random = random.Random(0)

    class KVBatchMeta:
        """A sampled batch."""

        def __init__(self, **parts: Any) -> None:
            self.parts = parts

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return all tags by partition; then one more prompt is done."""
        seen = {"train": {key: dict(tag) for key, tag in self.tags.items()}}
        running = sorted(key for key, tag in self.tags.items() if tag["status"] == "running")
        if running:
            self.tags[self.random.choice(running)]["status"] = "finished"
        return seen

    def kv_clear(self, partition_id: str, keys: list[str]) -> None:
        """Forget prompts."""
        for key in keys:
            self.tags.pop(key)


def ages(config: Any, prompts: int, steps: int) -> list[list[int]]:
    """Return, by step, by how many versions the weights that began each sample lag behind the trainer's."""
    queue = Queue()
    sys.modules["transfer_queue"] = queue
    file = package_folder() / "trainer/ppo/v1/replay_buffer.py"  # its package imports much more of the real queue
    specification = spec_from_file_location("replay_buffer", file)
    assert specification is not None, f"{file} is Python"
    assert specification.loader is not None, f"{file} is Python"
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    v1 = config.trainer.v1
    sampler = v1.sampler
    buffer = module.ReplayBufferAsync(
        v1.trainer_mode,
        v1[v1.trainer_mode],
        sampler.max_off_policy_threshold,
        sampler.max_off_policy_strategy,
        {},
        poll_interval=0.0,
    )
    found = []
    began: dict[str, int] = {}
    for step in range(1, steps + 1):
        batches = 1 + (v1[v1.trainer_mode].num_warmup_batches if step == 1 else 0)
        for _ in range(batches * prompts):
            key = f"prompt{len(began)}"
            began[key] = step
            queue.tags[key] = {"is_prompt": True, "status": "running", "global_steps": step}
        before = set(queue.tags)
        buffer.sample(step, "train", prompts)
        found.append([step - began[key] for key in sorted(before - set(queue.tags))])
    return found


def main(file: str) -> None:
    """Answer every request of a file."""
    answers = []
    for request in json.loads(Path(file).read_text(encoding="utf-8")):
        overrides = Path(request["overrides"]).read_text(encoding="utf-8").splitlines()
        config = composed(request["module"], overrides)
        answers.append({"ages": ages(config, request["prompts"], request["steps"])})
    print()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
