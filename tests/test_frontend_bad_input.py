"""Wrong pipelines: the first offence, its place, the rule with its values, and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rpegc.errors import InputError
from rpegc.frontend.load import load_pipeline, pipeline_from_text

RESPONSES = "{mean: 1000, p99: 4000, max: 8192}"
ACTOR = "{config: Qwen/Qwen3-8B}"
REWARD = "reward: {seconds_per_sample: 0.01}"


def refusal(text: str, folder: Path = Path()) -> InputError:
    with pytest.raises(InputError) as caught:
        pipeline_from_text(text, "p.yaml", folder)
    return caught.value


# (what to replace, by what, place, part of the message, part of the hint)
EDITS = [
    # keys
    ("algorithm: grpo", "algoritm: grpo", "2:1", "unknown key `algoritm`", "did you mean `algorithm`?"),
    (
        "prompts_per_step",
        "prompt_per_step",
        "6:3",
        "unknown key `prompt_per_step` in `workload`",
        "`prompts_per_step`?",
    ),
    (ACTOR, "{confg: Qwen/Qwen3-8B}", "4:11", "unknown key `confg` in `models.actor`", "did you mean `config`?"),
    ("algorithm: grpo\n", "", "1:1", "`algorithm` is missing", "preset that expands to stages"),
    ("  prompts_per_step: 64\n", "", "5:1", "`workload.prompts_per_step` is missing", "Prompts of one RL step"),
    ("name: small", "name: small\nname: x", "2:1", "key `name` stands twice", ""),
    # names
    ("name: small", "name: ../../etc", "1:7", "`name` is the text `../../etc`, but must be 1 to 64 letters", ""),
    ("name: small", r'name: "a\nb"', "1:7", "but must be 1 to 64 letters", ""),
    ("name: small", "name: -rf", "1:7", "but must be 1 to 64 letters", ""),
    ("name: small", "name: " + "x" * 65, "1:7", "but must be 1 to 64 letters", ""),
    ("name: small", "name: 3", "1:7", "`name` is `3`, but must be a text", ""),
    (
        "algorithm: grpo",
        "algorithm: gpro",
        "2:12",
        "`gpro`, which is no preset",
        "did you mean `grpo`? allowed: cispo, dapo, distill, dpo, dr-grpo, grpo, gspo, online-dpo, ppo, reinforce++",
    ),
    # numbers
    ("nodes: 2", "nodes: 0", "12:40", "`cluster.nodes` is `0`, but must be at least 1", ""),
    ("nodes: 2", "nodes: -4", "12:40", "must be at least 1", ""),
    ("nodes: 2", "nodes: 99999999999999999999999", "12:40", "must be at most 100000", ""),
    ("nodes: 2", "nodes: 1e999", "12:40", "is `inf`, but must be a whole number", ""),
    ("nodes: 2", "nodes: two", "12:40", "is the text `two`, but must be a whole number", ""),
    ("nodes: 2", "nodes: 2.0", "12:40", "is `2.0`, but must be a whole number", ""),
    ("nodes: 2", "nodes: true", "12:40", "is true, but must be a whole number", ""),
    ("nodes: 2", "nodes: ", "12:33", "`cluster.nodes` is missing", "write `hardware` and `nodes`, or `pools"),
    ("nodes: 2", "nodes: 3000", "12:40", "gh200-alps has 2688 nodes; cluster.nodes is 3000", ""),
    ("prompts_per_step: 64", "prompts_per_step: 50000000", "6:21", "50000000 * 8 = 400000000", ""),
    ("prompts_per_step: 64", "prompts_per_step: 65", "10:25", "65 = 32 * 2 + 1", "1 or 5 would divide 65"),
    ("samples_per_prompt: 8", "samples_per_prompt: 1", "7:23", "must be at least 2, is 1", ""),
    # lengths
    (RESPONSES, "{mean: 5000, p99: 4000, max: 8192}", "9:27", "mean <= p99 must hold: mean is 5000, p99 is 4000", ""),
    (RESPONSES, "{mean: 50, p99: 9000, max: 8192}", "9:36", "p99 <= max must hold: p99 is 9000, max is 8192", ""),
    (RESPONSES, "{mean: 9000, max: 8192}", "9:27", "mean <= max must hold", ""),
    (RESPONSES, "{mean: 1000, p99: 4000}", "9:3", "`workload.response_tokens` gives mean, p99", "allowed: {fixed}"),
    (RESPONSES, "{fixed: 10, max: 10}", "9:3", "gives fixed, max", "allowed: {fixed}"),
    (RESPONSES, "{}", "9:3", "gives nothing", "allowed: {fixed}"),
    (RESPONSES, "3000", "9:20", "is `3000`, but must be a block", ""),
    (RESPONSES, "{mean: .nan, max: 10}", "9:27", "is `nan`, but must be a finite number", ""),
    (RESPONSES, "{mean: 1, p99: 8191, max: 8192}", "9:3", "`workload.response_tokens`: ", "histogram"),
    (RESPONSES, "{mean: 900, max: 40449}", "9:37", "512 + 40449 = 40961 > 40960", "at most 40448 tokens"),
    (RESPONSES, "{fixed: 99999}", "9:28", "at most the positions of `actor` (Qwen/Qwen3-8B)", ""),
    (RESPONSES, "{histogram: absent.csv, max: 10}", "9:32", "absent.csv does not exist", ""),
    # models and machines
    (ACTOR, "{config: Qwen/Qwen3-9B}", "4:19", "Qwen/Qwen3-9B", "did you mean `Qwen/Qwen3.5-9B`?"),
    (ACTOR, "{config: absent/config.json}", "4:19", "absent/config.json", ""),
    (ACTOR, "Qwen/Qwen3-8B", "4:10", "`models.actor` is the text `Qwen/Qwen3-8B`, but must be a block", ""),
    ("  actor:", "  aktor:", "3:1", "`models.actor` is missing", "did you mean `aktor`?"),
    ("  actor:", "  Actor!:", "4:3", "`Actor!` cannot be a name here", ""),
    (ACTOR, "{like: critic}", "4:17", "`models` has no role `critic`", ""),
    (ACTOR, "{like: actor}", "4:17", "`like` goes round in a circle: actor -> actor", ""),
    (ACTOR, "{}", "4:3", "neither `config` nor `like`", ""),
    (ACTOR, ACTOR + "\n  reference: {like: actor, weights: /x}", "5:37", "both `like` and `weights`", ""),
    (ACTOR, ACTOR + "\n  critic: {like: actor}", "5:3", "`models.critic` is used by no stage of grpo", "ppo"),
    (ACTOR, ACTOR + "\n  refrence: {like: actor}", "5:3", "`models.refrence` is used by no stage of grpo", "stages"),
    ("algorithm: grpo", "algorithm: ppo", "3:1", "ppo needs `models.critic`", "critic: {like: actor}"),
    ("gh200-alps", "gh200-alp", "12:21", "unknown hardware `gh200-alp`", "did you mean `gh200-alps`?"),
    ("nodes: 2", "nodes: 2, site: alp", "12:49", "`cluster.site` is the text `alp`", "did you mean `alps`?"),
    # reward
    (REWARD + "\n", "", "2:1", "nothing gives rewards", "add a `reward:` block"),
    (REWARD, "reward: {function: rewards.py}", "11:20", "but must be `path/to/file.py:function`", ""),
    (REWARD, 'reward: {function: "a.py:b; rm -rf /"}', "11:20", "but must be `path/to/file.py:function`", ""),
    (REWARD, "reward: {workers_per_node: 0}", "11:28", "must be at least 1", ""),
    (REWARD, "reward: {seconds_per_sample: -1}", "11:30", "must be at least 0", ""),
]


@pytest.mark.parametrize(("old", "new", "place", "message", "hint"), EDITS, ids=[edit[1][:40] for edit in EDITS])
def test_a_wrong_edit_is_refused_at_its_place(
    pipeline_text: str, old: str, new: str, place: str, message: str, hint: str
) -> None:
    assert old in pipeline_text
    error = refusal(pipeline_text.replace(old, new, 1))
    assert message in error.message
    assert str(error.position) == f"p.yaml:{place}"
    assert hint in (error.hint or "")
    assert error.exit_code == 2


ADDITIONS = [
    ("training: {temperature: 0}", "13:25", "must be greater than 0"),
    ("training: {clip: [0.3, 0.2]}", "13:12", "low is 0.3, high is 0.2"),
    ("training: {clip: [1.5, 2]}", "13:12", "the lower clip must be less than 1: it is 1.5"),
    ("training: {clip: [0.3]}", "13:12", "`training.clip` is a list of 1, but must be a list of 2 values"),
    ("training: {clip: [0.1, 0.2, 0.3]}", "13:12", "is a list of 3, but must be a list of 2 values"),
    ("training: {clip: [a, 1]}", "13:19", "`training.clip[0]` is the text `a`, but must be a number"),
    ("training: {kl: {coefficient: 0.1}}", "13:30", "`models` has no `reference` to stay near"),
    ("training: {kl: {coefficient: 0, where: los}}", "13:40", "`training.kl.where` is the text `los`"),
    ("training: {kl: {where: loss}}", "13:12", "`training.kl.coefficient` is missing"),
    ("training: {lora_rank: -1}", "13:23", "must be at least 0"),
    ("training: {learning_rate: 1_0}", "13:27", "is the text `1_0`, but must be a number"),
    ("training: {precision: fp8}", "13:23", "`training.precision` is the text `fp8`"),
    ("training: [1]", "13:1", "`training` is a list of 1, but must be a block"),
    ("training: {test_every: 5}\ndata: {train: a}", "13:24", "`data` has no `val` to test on"),
    ("objective: speed", "13:12", "`objective` is the text `speed`"),
    ("target: vrl", "13:9", "`target` is the text `vrl`"),
    ("allow: {max_staleness: -1}", "13:24", "must be at least 0"),
    ("allow: {partial_rollout: true}", "13:26", "needs max_staleness of at least 1, which is 0"),
    ("allow: {partial_rollout: yes, max_staleness: 1}", "13:26", "the text `yes`, but must be true or false"),
    ("allow: {model_changes: [reuse-rollout-logprob]}", "13:25", "called `reuse-rollout-logprob`"),
    (
        "allow: {model_changes: [reuse-rollout-logprobs, reuse-rollout-logprobs]}",
        "13:49",
        "`reuse-rollout-logprobs` stands twice",
    ),
    ("allow: {minimum_gain: 1}", "13:23", "must be less than 1"),
    ("data: {train: ''}", "13:15", "`data.train` is empty"),
    (r'data: {train: "a\nb"}', "13:15", "without control characters"),
    ("target_overrides: {a: [[1]]}", "13:20", "a list of 1, but must be a single text, number, or true or false"),
    ("target_overrides: {a: [{b: 1}]}", "13:20", "a list of 1, but must be a single text, number, or true or false"),
    ("target_overrides: {a: null}", "13:20", "is empty, but must be"),
    ("target_overrides: {a: .inf}", "13:23", "must be a finite number"),
    (r'target_overrides: {a: "x\ny"}', "13:23", "without control characters"),
    ('target_overrides: {"a; rm -rf /": 1}', "13:20", "must be dotted identifiers"),
    ("target_overrides: {+++a: 1}", "13:20", "with `+` before one that the target's files lack"),
    ("target_overrides: {~a.b: 1}", "13:20", "must be dotted identifiers"),
]


@pytest.mark.parametrize(("addition", "place", "message"), ADDITIONS, ids=[entry[0][:48] for entry in ADDITIONS])
def test_a_wrong_addition_is_refused_at_its_place(pipeline_text: str, addition: str, place: str, message: str) -> None:
    error = refusal(pipeline_text + addition + "\n")
    assert message in error.message
    assert str(error.position) == f"p.yaml:{place}"


def test_the_first_offence_of_the_file_is_reported(pipeline_text: str) -> None:
    text = pipeline_text.replace("nodes: 2", "nodes: 0").replace("max: 512", "max: 0")
    assert str(refusal(text).position) == "p.yaml:8:35"


def test_the_first_broken_rule_of_the_file_is_reported(pipeline_text: str) -> None:
    text = pipeline_text.replace("prompts_per_step: 64", "prompts_per_step: 65") + "allow: {partial_rollout: true}\n"
    assert str(refusal(text.replace("mean: 100, ", "mean: 600, ")).position) == "p.yaml:8:25"


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "3\n"])
def test_a_file_that_is_no_block(text: str) -> None:
    assert "the file is" in refusal(text).message
    assert "must be a block of `key: value` lines" in refusal(text).message


def test_a_message_quotes_the_line_and_points(pipeline_text: str, golden: Callable[[str, str], None]) -> None:
    errors = [
        refusal(pipeline_text.replace(old, new, 1)) for old, new, *_ in (EDITS[0], EDITS[12], EDITS[22], EDITS[24])
    ]
    golden("frontend/messages.txt", "\n\n".join(str(error) for error in errors) + "\n")


def test_a_broken_config_json_names_the_file_and_the_place_that_asked(pipeline_text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3",\n  oops\n}')
    error = refusal(pipeline_text.replace("Qwen/Qwen3-8B", "config.json"), tmp_path)
    assert "config.json:2" in str(error)
    assert "p.yaml:4:19" in str(error)


def test_an_unknown_architecture_is_refused_by_name(pipeline_text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "hyena", "architectures": ["HyenaForCausalLM"]}')
    assert "hyena" in str(refusal(pipeline_text.replace("Qwen/Qwen3-8B", "config.json"), tmp_path)).lower()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,number\n1,2\n", "the first line of a histogram must be `tokens,count`"),
        ("tokens,count\n1,2,3\n", "a row must be two whole numbers"),
        ("tokens,count\n0,2\n", "a row must be two whole numbers"),
        ("tokens,count\n5,-2\n", "a row must be two whole numbers"),
        ("tokens,count\n5,1e3\n", "a row must be two whole numbers"),
        ("tokens,count\n5,1\n5,2\n", "5 tokens stand twice"),
        ("tokens,count\n", "counts no lengths"),
        ("tokens,count\n5,0\n", "counts no lengths"),
        ("", "counts no lengths"),
    ],
)
def test_a_wrong_histogram_is_refused(pipeline_text: str, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "lengths.csv").write_text(content)
    error = refusal(pipeline_text.replace(RESPONSES, "{histogram: lengths.csv, max: 100}"), tmp_path)
    assert message in error.message
    assert error.position is not None


def test_files_that_are_no_pipeline(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    for path, message in ((empty, "is empty"), (tmp_path, "is a directory"), (tmp_path / "no.yaml", "does not exist")):
        with pytest.raises(InputError, match=message):
            load_pipeline(path)
