"""The embedded engine really drafts and really verifies: acceptance is an outcome, and the answer never depends on it."""

from __future__ import annotations

from random import Random
from typing import Any

import httpx
import pytest
from engines import ask, engine, samples, stream
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.distilled import distil
from gateway.engine.drafting import Draft, Skill
from gateway.engine.sequence import Emission, Limits, Sequence, Target
from gateway.engine.tokenizer import TOKENIZER

PREDICTABLE = {
    "counting": "Count from 1 to 150.",
    "long numbers": "Count from 950 to 1100, separated by commas.",
    "repeating": "Repeat this line exactly 20 times, one per line: the cat sat on the mat.",
    "multiplication": 'Write the multiplication table of 12 up to 20, one line per product like "12 x 1 = 12".',
    "json": "Generate a JSON array of 20 users with id, name, email and age.",
    "csv": "Generate a CSV with 30 rows.",
    "table": "Make a markdown table of 25 products.",
    "sql": "Write 20 SQL inserts into a table called users.",
    "conversion": "Convert this CSV to a JSON array of objects.\n\nid,name,city,qty\n"
    + "\n".join(
        f"{100 + 37 * row},{name},Rome,{row * row}" for row, name in enumerate("Ann Bea Cy Dan Eve Flo".split())
    ),
    "edit": "Correct the grammar of this text.\n\nYesterday we was walking along the old harbour, and the weather were very "
    "nice for the time of the year. We have saw many boats, some of them with red sails, and my brother said that he want "
    "to buy one of them when he is older. In the evening we has gone home by train, which were late, as it usually is.",
    "rename": "Rename the variable foo to order_total in this function.\n```python\ndef handle(foo, total=0):\n"
    + "    if foo is None:\n        raise ValueError(foo)\n    print(foo)\n    foo = load(foo)\n    total += foo.size\n"
    * 3
    + "    return foo\n```",
}
OPEN = {
    "story": "Tell me a story about a dragon.",
    "essay": "Write an essay on the history of tea.",
    "question": "Why is the sky blue?",
    "translation": "Translate this into German.\n\n1. Please submit a file.\n2. Enter a valid address.\n3. No month given.",
}


async def acceptance(client: httpx.AsyncClient, prompt: str, **fields: Any) -> float:
    """Return tokens per verification step for one prompt, from the engine's own counters."""
    before = await samples(client)
    await ask(client, prompt, max_tokens=300, **fields)
    after = await samples(client)
    drafts, accepted = (
        after[name] - before[name] for name in ("spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total")
    )
    return 1 + accepted / drafts


@pytest.mark.parametrize("kind", PREDICTABLE)
async def test_predictable_output_is_accepted(kind: str):
    """Sequences, records, tables, conversions and edits come at four tokens a step or more."""
    async with engine(kind="speculative") as (_, client):
        assert await acceptance(client, PREDICTABLE[kind]) >= 4


@pytest.mark.parametrize("kind", OPEN)
async def test_open_output_is_not(kind: str):
    """Stories, essays, questions and translations stay below 1.75 tokens a step, far from break-even at 2.33."""
    async with engine(kind="speculative") as (_, client):
        assert 1 <= await acceptance(client, OPEN[kind]) < 1.75


async def test_code_lies_between():
    """Code is neither: its average over several functions lies between prose and records."""
    prompts = [f"Write a Python function that {what}." for what in ("merges two lists", "parses a line", "sorts words")]
    async with engine(kind="speculative") as (_, client):
        found = [await acceptance(client, prompt) for prompt in prompts]

    assert 1.75 < sum(found) / len(found) < 4


@pytest.mark.parametrize("prompt", [*PREDICTABLE.values(), *OPEN.values()], ids=[*PREDICTABLE, *OPEN])
async def test_both_kinds_say_the_same(prompt: str):
    """At temperature 0 the answer is the same with a draft, without one, and with a hopeless one."""
    kinds: list[dict[str, Any]] = [
        {"kind": "baseline"},
        {"kind": "speculative"},
        {"kind": "speculative", "draft_quality": 0.0},
    ]
    answers = []
    for settings in kinds:
        async with engine(**settings) as (_, client):
            answer = await ask(client, prompt, max_tokens=200)
            answers.append((answer["choices"], answer["usage"]))

    assert answers[0] == answers[1] == answers[2]


async def test_temperature_lowers_acceptance():
    """The hotter the sampler, the fewer drafted tokens of a story are accepted; sampled text differs from greedy text."""
    async with engine(kind="speculative") as (_, client):
        found = []
        for temperature in (0.0, 0.6, 1.2):
            stories = [
                await acceptance(client, f"Tell me a story about {topic}.", temperature=temperature, seed=1)
                for topic in ("a dragon", "the sea", "a baker")
            ]
            found.append(sum(stories) / len(stories))

    assert found[0] > found[1] > found[2]


async def test_a_worse_draft_is_accepted_less():
    """Draft quality changes acceptance while the engine runs, down to next to nothing."""
    async with engine(kind="speculative") as (running, client):
        found = []
        for quality in (1.0, 0.6, 0.0):
            running.settings.draft_quality = quality
            found.append(await acceptance(client, PREDICTABLE["json"]))

    assert found[0] > 1.5 * found[1] > found[2]
    assert found[2] < 1.1


@pytest.mark.parametrize("window", [1, 3, 7, 15])
async def test_the_window_bounds_a_step(window: int):
    """No step brings more than the window's tokens and the bonus token; predictable text comes close to that."""
    async with engine(kind="speculative", window=window) as (_, client):
        found = await stream(client, PREDICTABLE["repeating"], return_token_ids=True)

    sizes = [len(event["choices"][0]["token_ids"]) for event in found[1:]]
    assert max(sizes) == window + 1


@pytest.mark.parametrize("prompt", [PREDICTABLE["json"], OPEN["story"]], ids=["json", "story"])
async def test_metrics_counters_and_events_agree(prompt: str):
    """What the answer says of its drafting equals the counters, and the events that carried the tokens."""
    async with engine(kind="speculative", per_request_metrics=True) as (_, client):
        found = await stream(
            client, prompt, max_tokens=200, return_token_ids=True, stream_options={"include_usage": True}
        )
        counted = await samples(client)

    told = found[-1]["metrics"]["speculative_decoding"]
    sizes = [len(event["choices"][0]["token_ids"]) for event in found[1:-1]]
    steps = sizes[1:]  # the first came out of the prefill
    assert set(told) == {
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "acceptance_histogram",
        "num_spec_steps",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "num_spec_tokens",
    }
    assert told["num_spec_tokens"] == 7
    assert len(told["acceptance_histogram"]) == 8
    assert told["num_spec_steps"] == sum(told["acceptance_histogram"]) == len(steps)
    # Every step adds one token of the target's own, but for the last when max_tokens cuts it short.
    assert told["num_accepted_draft_tokens"] - (sum(steps) - len(steps)) in (0, 1)
    assert sum(sizes) == found[-1]["usage"]["completion_tokens"] == counted["generation_tokens_total"]
    assert told["num_spec_steps"] == counted["spec_decode_num_drafts_total"]
    assert told["num_draft_tokens"] == counted["spec_decode_num_draft_tokens_total"]
    assert told["num_accepted_draft_tokens"] == counted["spec_decode_num_accepted_tokens_total"]
    positions = [counted[f'spec_decode_num_accepted_tokens_per_pos_total{{position="{one}"}}'] for one in range(7)]
    assert sum(positions) == told["num_accepted_draft_tokens"]
    assert positions == sorted(positions, reverse=True)


async def test_per_request_metrics_only_where_they_mean_something():
    """They come with one choice on a speculative engine that offers them, whole or streamed with usage, not otherwise."""
    offer = {"per_request_metrics": True}
    async with engine(kind="speculative", **offer) as (_, client), engine(**offer) as (_, baseline):
        one = await ask(client, PREDICTABLE["counting"])
        two = await ask(client, PREDICTABLE["counting"], n=2)
        other = await ask(baseline, PREDICTABLE["counting"])
        unasked = await stream(client, PREDICTABLE["counting"])

    assert one["metrics"]["speculative_decoding"]["mean_acceptance_length"] > 4
    assert "metrics" not in two
    assert "metrics" not in other
    assert all("metrics" not in event for event in unasked)


async def test_prompt_lookup_skips_steps():
    """A prompt-lookup drafter makes steps without a draft, which its counters leave out; it still gains on repetition."""
    async with engine(kind="speculative", drafter="ngram", per_request_metrics=True) as (_, client):
        story = await ask(client, OPEN["story"], max_tokens=200)
        repeated = await ask(client, PREDICTABLE["repeating"])

    told = story["metrics"]["speculative_decoding"]
    assert told["num_spec_steps"] < story["usage"]["completion_tokens"] / 2
    assert repeated["metrics"]["speculative_decoding"]["mean_acceptance_length"] > 4


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 9),
    st.floats(0, 1),
)
def test_verification_keeps_the_target(prompt: list[int], output: list[int], window: int, quality: float):
    """Whatever is drafted, the output is the target's, at most a window and one tokens a step, and the counts add up."""
    ids = [TOKENIZER.encode(f" {value}")[0] for value in prompt]
    text = "".join(f" {value}" for value in output)
    emissions: list[Emission] = []
    draft = Draft(ids, distil(0), Skill.of(quality), Random(1))
    sequence = Sequence(len(ids), Target(iter([text]), iter(())), draft, Limits(max_tokens=50), emissions.append)
    sequence.prefill()
    while sequence.finish is None:
        sequence.advance(window)

    tokens = [token for emission in emissions for token in emission.tokens]
    tally = sequence.tally
    assert tokens == [*TOKENIZER.encode(text), TOKENIZER.end][:50]
    assert max(len(emission.tokens) for emission in emissions) <= window + 1
    assert tally.tokens == len(tokens)
    assert tally.tokens - tally.accepted <= tally.steps == len(emissions)
    assert "".join(emission.text for emission in emissions) == TOKENIZER.decode(tokens)
