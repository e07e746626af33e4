"""Parts of the native engine that need no torch: advantages, rows, prompts, reward processes, logs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpegc.errors import InputError
from rpegc.runtime.advantages import Estimate, advantages
from rpegc.runtime.metrics import Log, chrome_trace, stage_figures
from rpegc.runtime.prompts import PromptFile
from rpegc.runtime.rewards import RewardWorkers, Sample
from rpegc.runtime.rows import Rows, merged


def estimate(name, samples=2, **changes):
    values = {"by_deviation": True, "discount": 1.0, "gae_lambda": 1.0, "kl_coefficient": 0.0, "kl_estimator": "k3"}
    return Estimate(estimator=name, samples=samples, **(values | changes))


def judged(rewards, lengths=None):
    rows = Rows()
    for row, reward in enumerate(rewards):
        rows.put(row, rewards=[reward], response_length=[(lengths or [2] * len(rewards))[row]])
    return rows


def first_tokens(result):
    return [float(result.column("advantages")[row][0]) for row in result.index]


def test_grpo_compares_with_the_group():
    result = advantages(judged([1.0, 0.0, 3.0, 1.0]), estimate("grpo"))
    half = 1 / np.sqrt(2)  # deviations of the sample (ddof 1) are 0.71 and 1.41
    assert first_tokens(result) == pytest.approx([half, -half, half, -half], rel=1e-4)
    plain = advantages(judged([1.0, 0.0, 3.0, 1.0]), estimate("grpo", by_deviation=False))
    assert first_tokens(plain) == pytest.approx([0.5, -0.5, 1.0, -1.0])


def test_rloo_compares_with_the_others():
    result = advantages(judged([1.0, 2.0, 6.0]), estimate("rloo", samples=3))
    assert first_tokens(result) == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])


def test_reinforce_whitens_over_all_tokens():
    result = advantages(judged([1.0, 0.0, 0.5], [3, 1, 2]), estimate("reinforce++"))
    tokens = np.concatenate([result.column("advantages")[row] for row in result.index])
    assert len(tokens) == 6
    assert tokens.mean() == pytest.approx(0, abs=1e-6)
    assert tokens.std() == pytest.approx(1, rel=1e-4)


def test_gae_with_lambda_one_returns_the_discounted_reward():
    rows = judged([1.0, 2.0], [3, 2])
    rows.put(0, values=[0.1, 0.2, 0.3])
    rows.put(1, values=[0.5, 0.5])
    result = advantages(rows, estimate("gae", discount=0.9))
    assert result.column("returns")[0] == pytest.approx([0.81, 0.9, 1.0])
    assert result.column("returns")[1] == pytest.approx([1.8, 2.0])


def test_a_penalty_in_the_reward_lowers_what_strays():
    rows = judged([1.0, 1.0])
    for row, old in enumerate((-1.0, -3.0)):
        rows.put(row, old_logprobs=[old, old], reference_logprobs=[-1.0, -1.0])
    result = advantages(rows, estimate("grpo", by_deviation=False, kl_coefficient=0.1, kl_estimator="k2"))
    assert first_tokens(result) == pytest.approx([0.2, -0.2])  # 0.1 * 2 tokens * 2^2 / 2 = 0.4 apart


ROWS = st.dictionaries(st.integers(0, 99), st.lists(st.integers(-9, 9), min_size=1, max_size=5), min_size=1)


@given(ROWS, ROWS)
def test_rows_survive_bytes_and_merging(one, other):
    tables = [Rows(), Rows()]
    for table, values, name in zip(tables, (one, other), ("a", "b"), strict=True):
        for row, value in values.items():
            table.put(row, **{name: value})
    back = merged(Rows.from_bytes(table.to_bytes()) for table in tables)
    assert {row: value.tolist() for row, value in back.column("a").items()} == one
    assert {row: value.tolist() for row, value in back.column("b").items()} == other


class Letters:
    def encode(self, text, add_special_tokens):
        return [ord(letter) for letter in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join(message["content"] for message in messages) + ">"


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a" * (number % 7 + 1), "answer": {"value": number}} for number in range(20)]
    rows.append({"prompt": [{"role": "user", "content": "chat"}], "answer": None})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_pass_over_the_prompts_takes_each_once(prompt_file):
    prompts = PromptFile(prompt_file, "prompt", "answer.value", Letters(), longest=6)
    assert len(prompts) == 19  # two are too long
    passes = [[prompts.at(place, 1).number for place in range(19 * turn, 19 * turn + 19)] for turn in range(3)]
    assert all(sorted(numbers) == sorted(set(numbers)) for numbers in passes)
    assert passes[0] != passes[1]
    assert prompts.at(3, 1) == prompts.at(3, 1)
    assert {prompts.at(place, 1).text for place in range(19)} >= {"chat>"}
    answers = {prompts.at(place, 1).answer for place in range(19)}
    assert {0, 1, 2} <= answers


def test_bad_prompt_files_are_wrong_input(prompt_file, tmp_path):
    for path, key, said in (
        (tmp_path / "absent.jsonl", "prompt", "cannot be read"),
        (tmp_path / "prompts.csv", "prompt", "are read from .jsonl and .parquet"),
        (prompt_file, "question", "has no `question`"),
    ):
        with pytest.raises(InputError, match=said):
            PromptFile(path, key, "answer", Letters(), longest=6)


REWARD = """
import os, time
def score(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "crash": os._exit(3)
    if solution_str == "hang": time.sleep(60)
    if solution_str == "raise": raise ValueError("no idea")
    if solution_str == "nan": return float("nan")
    if solution_str == "eat": return len(bytearray(8 * 2**30))
    if solution_str == "mapping": return {"score": 0.25}
    return len(solution_str) + ground_truth + len(extra_info["prompt"])
"""


def test_rewards_that_crash_or_hang_score_zero_and_say_why(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    workers = RewardWorkers(f"{tmp_path / 'reward.py'}:score", workers=2, limit_s=1.0, limit_bytes=2 * 2**30)
    texts = ["abc", "crash", "hang", "raise", "nan", "eat", "mapping", "abcd"]
    verdicts = workers.judge([Sample("test", text, 1, "p") for text in texts])
    workers.close()
    assert [verdict.score for verdict in verdicts] == [5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 6.0]
    why = [verdict.failure for verdict in verdicts]
    assert why[0] == why[6] == why[7] == ""
    assert "exit code 3" in why[1]
    assert "no answer within 1 s" in why[2]
    assert "no idea" in why[3]
    assert "nan" in why[4]
    assert "MemoryError" in why[5]


def test_a_reward_function_that_is_not_there_is_wrong_input(tmp_path):
    with pytest.raises(InputError, match="is no file"):
        RewardWorkers("absent.py:score", 1, 1.0, 2**31)
    (tmp_path / "reward.py").write_text("x = 1\n")
    with pytest.raises(InputError, match="has no attribute 'score'"):
        RewardWorkers(f"{tmp_path / 'reward.py'}:score", 1, 5.0, 2**31).judge([Sample("", "", 0, "")])


def test_a_log_forgets_what_will_be_run_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n{"st')
    Log(path, first_step=2).write({"step": 2, "again": True})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 0},
        {"step": 1},
        {"step": 2, "again": True},
    ]


def test_a_stage_takes_as_long_as_its_slowest_rank_without_waiting():
    span = {"stage": "train", "step": 0, "mesh": "pool", "start_s": 1.0}
    spans = [span | {"rank": 0, "end_s": 4.0, "wait_s": 2.0}, span | {"rank": 1, "end_s": 3.0, "wait_s": 0.5}]
    assert stage_figures(spans, 0) == {"stage_seconds": {"train": 1.5}, "stage_wait_seconds": {"train": 2.0}}
    events = json.loads(chrome_trace("run", spans))["traceEvents"]
    assert [(e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [(0, 0, 3_000_000), (1, 0, 2_000_000)]
