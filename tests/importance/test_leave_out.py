"""Leave-one-out against fresh passes over each shorter text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="leave-one-out needs torch")
transformers = pytest.importorskip("transformers", reason="leave-one-out needs transformers")

import attnflow as af  # noqa: E402
from attnflow.importance import prefix as prefixes  # noqa: E402
from attnflow.importance.leave_out import leave_out  # noqa: E402
from helpers.architectures import ARCHITECTURES, VOCABULARY, built  # noqa: E402
from helpers.small_models import bert, gpt2  # noqa: E402

PROMPT = torch.randint(5, VOCABULARY, (17,), generator=torch.Generator().manual_seed(1)).tolist()
ANSWER = [7, 61, 30]
GROUPS = [[0], [0, 1, 2], [3, 4, 5], [5, 6], [11, 3], [8, 9, 9, 10], [15], [16], [14, 15, 16], list(range(1, 17))]
BLANK = 9
DECODERS = [a.name for a in ARCHITECTURES if a.kind == "decoder"]
EXPERTS = {"Mixtral", "DeepSeek-V3", "gpt-oss"}  # their products need single precision
SINGLE_INSIDE = {"BLOOM", "GPT-J", "Gemma 2"}  # some of their steps are always in single precision


def model_of(name: str, dtype: Any = None) -> Any:
    (architecture,) = (a for a in ARCHITECTURES if a.name == name)
    model = built(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # small random weights answer alike whatever they read
    return af.wrap(model.to(dtype or (torch.float32 if name in EXPERTS else torch.float64)))


def tolerance(name: str) -> float:
    return 1e-4 if name in EXPERTS else 1e-6 if name in SINGLE_INSIDE else 1e-9


def fresh(model: Any, ids: list[int], answer: list[int]) -> Any:
    """Return the log-probabilities by the definition: one full pass over one text."""
    with torch.no_grad():
        logits = model.model(input_ids=torch.tensor([[*ids, *answer[:-1]]]), use_cache=False).logits[0]
    table = logits.double().log_softmax(-1)
    return np.array([float(table[len(ids) - 1 + k, y]) for k, y in enumerate(answer)])


def by_definition(model: Any, how: str) -> Any:
    rows = []
    for group in GROUPS:
        if how == "replace":
            rows.append(fresh(model, [BLANK if i in group else x for i, x in enumerate(PROMPT)], ANSWER))
        else:
            rows.append(fresh(model, [x for i, x in enumerate(PROMPT) if i not in group], ANSWER))
    return np.array(rows)


@pytest.mark.parametrize("how", ["remove", "replace"])
@pytest.mark.parametrize("name", DECODERS)
def test_it_is_the_log_probability_of_the_shorter_text(name: str, how: str) -> None:
    model = model_of(name)
    expected, whole = by_definition(model, how), fresh(model, PROMPT, ANSWER)
    assert np.ptp(expected.sum(1)) > 1e-2
    result = leave_out(model, PROMPT, ANSWER, GROUPS, how=how, replacement=BLANK)
    assert result.shared_prefix  # even if layers have a window
    assert np.abs(result.whole - whole).max() < tolerance(name)
    assert np.abs(result.without - expected).max() < tolerance(name)


@pytest.mark.parametrize("how", ["remove", "replace"])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Gemma 3"])
def test_in_single_precision(name: str, how: str) -> None:
    model = model_of(name, torch.float32)
    result = leave_out(model, PROMPT, ANSWER, GROUPS, how=how, replacement=BLANK)
    assert result.shared_prefix
    assert np.abs(result.without - by_definition(model, how)).max() < 1e-4


def test_an_answer_of_one_token_and_every_token_as_a_group() -> None:
    model = model_of("Llama")
    result = leave_out(model, PROMPT, [61], [[i] for i in range(len(PROMPT))])
    expected = [fresh(model, PROMPT[:i] + PROMPT[i + 1 :], [61]) for i in range(len(PROMPT))]
    assert result.without.shape == (17, 1) and np.abs(result.without - expected).max() < 1e-9


@pytest.mark.parametrize("how", ["remove", "replace"])
@pytest.mark.parametrize("name", ["T5", "BART", "Marian"])
def test_an_encoder_decoder_reads_without_the_group(name: str, how: str) -> None:
    model = model_of(name)
    start = model.config.decoder_start_token_id
    target = torch.tensor([[start, *ANSWER[:-1]]])
    result = leave_out(model, PROMPT, ANSWER, GROUPS, how=how, replacement=BLANK)
    assert not result.shared_prefix
    for group, row in zip([*GROUPS, []], [*result.without, result.whole], strict=True):
        ids = [BLANK if how == "replace" and i in group else x for i, x in enumerate(PROMPT)]
        if how == "remove":
            ids = [x for i, x in enumerate(PROMPT) if i not in group]
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([ids]), decoder_input_ids=target).logits[0]
        expected = logits.double().log_softmax(-1)[range(3), ANSWER].numpy()
        assert np.abs(row - expected).max() < 1e-9
    assert np.ptp(result.without.sum(1)) > 1e-3


def test_a_model_without_keys_runs_every_text_whole() -> None:
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = af.wrap(transformers.MambaForCausalLM(config).double())
    result = leave_out(model, PROMPT, ANSWER, GROUPS)
    assert not result.shared_prefix
    assert np.abs(result.without - by_definition(model, "remove")).max() < 1e-6  # its scan is in single precision


def test_a_model_that_looks_ahead_fails_the_check_and_runs_every_text_whole() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, is_decoder=False, **sizes)
    model = af.wrap(transformers.BertLMHeadModel(config).double())
    result = leave_out(model, PROMPT, ANSWER, GROUPS)
    assert not result.shared_prefix
    assert np.abs(result.without - by_definition(model, "remove")).max() < 1e-9


def test_it_takes_the_cache_of_a_generation_and_leaves_it_alone() -> None:
    model = model_of("Llama")
    out = model.model.generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, 17, dtype=torch.long), max_new_tokens=4, do_sample=False,
        eos_token_id=None, return_dict_in_generate=True,
    )  # fmt: skip
    cache, answer = out.past_key_values, out.sequences[0, 17:].tolist()
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    alone = leave_out(model, PROMPT, answer, GROUPS)
    calls = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    result = leave_out(model, PROMPT, answer, GROUPS, cache=cache)
    handle.remove()
    assert np.array_equal(result.without, alone.without) and np.array_equal(result.whole, alone.whole)
    assert (1, 16) not in calls  # the prompt alone does not run again
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def test_a_cache_of_several_texts_is_refused() -> None:
    model = model_of("Llama")
    cache = model.model(input_ids=torch.tensor([PROMPT] * 3), use_cache=True).past_key_values
    with pytest.raises(
        af.InputError, match=r"^cache contains 3 texts: expected the key-value cache of this prompt alone$"
    ):
        leave_out(model, PROMPT, ANSWER, GROUPS, cache=cache)


@pytest.mark.parametrize(("limit", "most"), [("TOKENS", 20), ("BYTES", 9000), ("LOGITS", 500)])
def test_batches_stay_within_their_bounds(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If starting a batch is expensive, everything is one batch. A limit splits it without changing the numbers."""
    model = model_of("Llama")
    expected = leave_out(model, PROMPT, ANSWER, GROUPS)
    shapes: list[Any] = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    monkeypatch.setattr(prefixes, "OVERHEAD", {"cpu": 10**6})
    leave_out(model, PROMPT, ANSWER, GROUPS)
    assert shapes == [(1, 16), (11, 19)]
    del shapes[:]
    monkeypatch.setattr(prefixes, limit, most if limit == "LOGITS" else {"cpu": most})
    result = leave_out(model, PROMPT, ANSWER, GROUPS)
    assert len(shapes) > 4 and np.allclose(result.without, expected.without, atol=1e-12)
    if limit == "TOKENS":
        assert all(rows == 1 or rows * tokens <= most for rows, tokens in shapes)


def test_the_plan_of_batches_is_the_cheapest_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(1, 8))
        starts = rng.integers(0, 60, n).tolist()
        lengths = (np.array(starts) + rng.integers(1, 40, n)).tolist()
        overhead, most = int(rng.integers(0, 60)), int(rng.integers(1, n + 1))
        plan = prefixes.batches(starts, lengths, overhead, lambda size, *_, most=most: size <= most)
        assert sorted(i for numbers in plan for i in numbers) == list(range(n))

        def cost(
            numbers: list[int], starts: list[int] = starts, lengths: list[int] = lengths, more: int = overhead
        ) -> int:
            return more + len(numbers) * (max(lengths[i] for i in numbers) - min(starts[i] for i in numbers))

        order = sorted(range(n), key=lambda i: (starts[i], lengths[i]))
        ways = []
        for cuts in range(2 ** (n - 1)):
            edges = [0, *(i + 1 for i in range(n - 1) if cuts >> i & 1), n]
            way = [order[a:b] for a, b in pairwise(edges)]
            if max(map(len, way)) <= most:
                ways.append(sum(map(cost, way)))
        assert sum(map(cost, plan)) == min(ways)


def test_progress_from_the_start() -> None:
    calls: list[Any] = []
    leave_out(model_of("Llama"), PROMPT, ANSWER, GROUPS, progress=lambda *call: calls.append(call))
    assert calls == [("leave-one-out", done, 11) for done in range(12)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"groups": [[1], []]}, "group 1 is empty: expected at least one position in the prompt"),
        ({"groups": []}, "groups is empty: expected at least one group of positions"),
        ({"groups": [[17]]}, "group 0 has 17: expected positions in the prompt, from 0 to 16"),
        ({"groups": [[-1]]}, "group 0 has -1: expected positions in the prompt, from 0 to 16"),
        ({"groups": [[True]]}, "group 0 has True: expected positions in the prompt, from 0 to 16"),
        ({"ids": []}, "ids is empty: expected at least one token"),
        ({"answer": []}, "answer is empty: expected at least one token"),
        ({"answer": [120]}, "answer has 120: expected ids of tokens, from 0 to 119"),
        ({"ids": [5] * 62}, "prompt and answer have 65 tokens, and the model takes 64: shorten the prompt"),
        ({"how": "mask"}, "how='mask': expected one of 'remove', 'replace'"),
        (
            {"groups": [[1], list(range(17))]},
            "group 1 is the whole prompt, which leaves nothing to predict the answer's first token from: keep a token "
            "such as the one that begins every text, or use how='replace'",
        ),
        (
            {"how": "replace"},
            "replacement=None: the blank text must be as long as the text, so each token needs a replacement; expected 'unk', "
            "'mask', 'pad' or the id of a token",
        ),
        ({"how": "replace", "replacement": 120}, "replacement=120: expected the id of a token, from 0 to 119"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    call = {"ids": PROMPT, "answer": [7, 61, 30, 8], "groups": GROUPS, **arguments}
    with pytest.raises(af.InputError) as error:
        leave_out(model_of("Llama"), **call)
    assert str(error.value) == sentence


def test_a_whole_prompt_can_be_replaced() -> None:
    model = model_of("Llama")
    result = leave_out(model, PROMPT, ANSWER, [list(range(17))], how="replace", replacement=BLANK)
    assert np.abs(result.without[0] - fresh(model, [BLANK] * 17, ANSWER)).max() < 1e-9


def test_a_model_that_writes_nothing_is_refused() -> None:
    classifier = bert("BertForSequenceClassification")
    with pytest.raises(af.InputError, match=r"^leave-one-out for .*: expected a model that writes text$"):
        leave_out(classifier, [1, 2], [3], [[0]])
    assert leave_out(gpt2(), [1, 2], [3], [[0]]).without.shape == (1, 1)
