"""Sources of an answer: spans, units, rows, hops, paths and leave-one-out of small models against slow definitions."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers.cache_utils import DynamicCache, StaticCache

import attnflow as af
from attnflow.answer_rows import by_units
from attnflow.capture.fingerprint import fingerprint
from attnflow.capture.prompt import plain_ids
from attnflow.errors import InputError, ModelError
from helpers.small_models import bert, gpt2
from helpers.small_tokenizers import byte_level, unigram, wordpiece

PROMPT = "the key to the old cabinet is here. the books are there.\n\nwho has the key?"
ANSWER = "the cabinet has the key"


@cache
def llama(tokenizer: str = "byte_level", window: int | None = None) -> Any:
    kinds = {"byte_level": byte_level, "unigram": unigram, "wordpiece": wordpiece, "joining": joining}
    pieces = kinds[tokenizer]()
    torch.manual_seed(0)
    kind, more = ("Mistral", {"sliding_window": window}) if window else ("Llama", {})
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(pieces), hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
        pad_token_id=0, **more,
    )  # fmt: skip
    return af.wrap(getattr(transformers, f"{kind}ForCausalLM")(config).double(), pieces)


@cache
def t5() -> Any:
    torch.manual_seed(0)
    tokenizer = unigram()
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1, initializer_factor=3.0,
    )  # fmt: skip
    return af.wrap(transformers.T5ForConditionalGeneration(config), tokenizer)


@cache
def bart() -> Any:
    torch.manual_seed(0)
    tokenizer = byte_level()
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.3,
        decoder_start_token_id=0, pad_token_id=0, bos_token_id=0, eos_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    return af.wrap(transformers.BartForConditionalGeneration(config).double(), tokenizer)


@cache
def answer() -> Any:
    return llama().answer(PROMPT, answer=ANSWER)


def test_the_log_probability_is_the_models_own() -> None:
    a = answer()
    tokens = torch.tensor([[*a.prompt.ids, *a.ids]])
    with torch.no_grad():
        logits = llama().model(tokens)["logits"][0].log_softmax(-1)
    expected = [float(logits[len(a.prompt.ids) + k - 1, i]) for k, i in enumerate(a.ids)]
    np.testing.assert_allclose(a.log_probabilities, expected, atol=1e-6)
    assert a.probability == pytest.approx(np.exp(sum(expected)))
    assert not a.written and a.text.strip() == ANSWER


def test_rows_are_parts_of_the_log_odds_of_each_token() -> None:
    a = answer()
    signed = a.matrix(signed=True)
    about = signed.provenance["evidence"]
    assert signed.values.shape == (1, len(a.ids), len(a.prompt.ids) + len(a.ids))
    assert signed.values.sum() + about["constants"] == pytest.approx(about["log_odds"], rel=1e-9)
    p = np.exp(a.log_probabilities)
    assert about["log_odds"] == pytest.approx(np.log(p / (1 - p)).sum(), rel=1e-6)
    assert signed.query_tokens == a.tokens and set(signed.parts) == {"prompt", "answer"}
    n = len(a.prompt.ids)
    for row in range(len(a.ids)):  # token k is decided at the position before it
        assert not signed.values[0, row, n + row :].any()
    assert (signed.values[0] < 0).any()
    np.testing.assert_allclose(a.matrix().values.sum(-1), 1)


def joining() -> Any:
    """Return a tokenizer that has a stop and the blank line after it as one token, as those of Llama 3 and Qwen."""
    cut = pre_tokenizers.Split(Regex(r" ?\w+|[.?]\n*|\s+"), "isolated")
    pieces = [piece for text in (PROMPT, ANSWER, "\n\n.") for piece, _ in cut.pre_tokenize_str(text)]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(dict.fromkeys(["?", *pieces]))}, "?"))
    tokenizer.pre_tokenizer, tokenizer.decoder = cut, decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64)


@pytest.mark.parametrize("tokenizer", ["byte_level", "joining"])
def test_a_sentence_is_left_out_without_the_white_space_after_it(tokenizer: str) -> None:
    """The last sentence before a blank line leaves the blank line there, even where its stop and the line are one token."""
    model = llama(tokenizer)
    a = model.answer(PROMPT, answer=ANSWER)
    sentences = a.prompt.units("sentence")
    assert [PROMPT[start:end] for start, end in sentences.ranges] == list(sentences.texts)
    left = a.leave_out("sentence")
    assert len(left.tokens) == 2
    for (start, end), fall in zip(sentences.ranges, left.values[0, 0], strict=True):
        ids = [i for text in (PROMPT[:start], PROMPT[end:]) if text for i in plain_ids(model, text)]
        shorter = model.answer(ids, answer=list(a.ids)).log_probabilities.sum()
        assert fall == pytest.approx(a.log_probabilities.sum() - shorter, abs=1e-5)
    np.testing.assert_allclose(a.sources(unit="sentence", verify=2).values, left.values, atol=1e-9)


def test_the_row_of_a_span_is_made_of_the_rows_of_its_tokens() -> None:
    a = answer()
    for unit in ("token", "word", "sentence", "paragraph"):
        single = [a.sources(span=k, unit=unit, method="answer_rows") for k in range(len(a.ids))]
        for tokens, span in (((0, len(a.ids)), None), ((1, 3), (1, 3))):
            # tokens that nothing supports do not count
            rows = [x.values for x in single[slice(*tokens)] if x.values.any() or x.provenance["outside"]]
            whole = a.sources(span=span, unit=unit, method="answer_rows").values
            np.testing.assert_allclose(whole, np.mean(rows, 0), atol=1e-12)
        signed = [a.sources(span=k, unit=unit, signed=True).values for k in range(len(a.ids))]
        np.testing.assert_allclose(a.sources(unit=unit, signed=True).values, np.sum(signed, 0), atol=1e-12)
    rows = a.matrix(signed=True).values[0, :, : len(a.prompt.ids)]
    np.testing.assert_allclose(a.sources(signed=True).values[0, 0], rows.sum(0), atol=1e-12)


def test_units_are_sums_of_their_tokens() -> None:
    a = answer()
    tokens = a.sources(signed=True).values[0, 0]
    units = a.prompt.units("sentence")
    sentences = a.sources(unit="sentence", signed=True)
    np.testing.assert_allclose(
        sentences.values[0, 0], [tokens[list(group)].sum() for group in units.groups], atol=1e-12
    )
    assert sentences.tokens == units.texts and sentences.provenance["unit"] == "sentence"
    shown = a.sources(unit="sentence", method="answer_rows")
    assert shown.values.sum() + shown.provenance["outside"] == pytest.approx(1)
    assert shown.query_tokens == (ANSWER,)


def test_the_first_token_is_left_out_and_reported() -> None:
    a = answer()
    result = a.sources()
    assert result.values[0, 0, 0] == 0 and result.values.sum() == pytest.approx(1)
    assert result.provenance["evidence"]["first_token"] == pytest.approx(a.sources(signed=True).values[0, 0, 0])


def test_what_the_model_writes_is_explained_on_its_own_cache() -> None:
    model = llama()
    written = model.answer(PROMPT, max_new_tokens=6)
    again = model.answer(PROMPT, answer=list(written.ids))
    assert written.written and len(written.ids) == 6 and written.writing.cache is not None
    np.testing.assert_allclose(written.matrix(signed=True).values, again.matrix(signed=True).values, atol=1e-6)


@pytest.mark.parametrize("window", [None, 8])
def test_several_prompts_give_what_each_gives(window: int | None) -> None:
    model = llama(window=window)
    prompts = [PROMPT, "the key", "the books are in the old cabinet, and"]
    together = model.answer(prompts, max_new_tokens=5)
    for one, prompt in zip(together, prompts, strict=True):
        alone = model.answer(prompt, max_new_tokens=5)
        assert one.ids == alone.ids
        np.testing.assert_allclose(one.matrix(signed=True).values, alone.matrix(signed=True).values, atol=1e-6)


@pytest.mark.parametrize("kind", ["dynamic", "static", "tuples"])
def test_a_cache_of_somebody_elses_loop(kind: str) -> None:
    model = llama()
    ids = model.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    cache: Any = DynamicCache() if kind != "static" else StaticCache(model.model.config, max_cache_len=128)
    tokens, step = [], ids
    with torch.no_grad():
        for _ in range(5):
            out = model.model(step, past_key_values=cache, use_cache=True)
            tokens.append(int(out["logits"][0, -1].argmax()))
            step = torch.tensor([tokens[-1:]])
    given = cache if kind != "tuples" else tuple((layer.keys, layer.values) for layer in cache.layers)
    before = cache.layers[0].keys.clone()
    a = model.answer(ids, answer=tokens, cache=given)
    expected = model.answer(PROMPT, max_new_tokens=5)
    assert a.ids == expected.ids == model.answer(PROMPT, answer=np.array(tokens)).ids
    np.testing.assert_allclose(a.matrix(signed=True).values, expected.matrix(signed=True).values, atol=1e-6)
    assert torch.equal(cache.layers[0].keys, before)


def cache_of(ids: Any, kind: Any = DynamicCache) -> Any:
    cache = kind()
    with torch.no_grad():
        llama().model(torch.tensor([ids]), past_key_values=cache, use_cache=True)
    return cache


def test_an_answer_is_not_the_whole_text() -> None:
    ids = list(answer().prompt.ids)
    with pytest.raises(af.InputError, match=f"begins with all {len(ids)} tokens of the prompt: give .*, {len(ids)}:"):
        llama().answer(ids, answer=[*ids, 5, 6])


def test_a_cache_of_another_prompt_is_refused() -> None:
    """Its parts would add up but describe another text, and no other check would notice."""
    ids, static = list(answer().prompt.ids), StaticCache(llama().model.config, max_cache_len=128)
    pairs = [(layer.keys, layer.values) for layer in cache_of(ids).layers]
    two = [(torch.cat([k, k]), torch.cat([v, v])) for k, v in pairs]
    for wrong, message in (
        (cache_of(ids[::-1]), "cache does not belong to this prompt"),
        (cache_of([ids[1], *ids[1:]]), "cache does not belong to this prompt"),  # one token differs
        (cache_of([5, *ids]), "cache does not belong to this prompt"),  # every position is shifted by one
        (two, "cache contains 2 texts"),
        ([(k.to("meta"), v.to("meta")) for k, v in pairs], "cache is on meta and the model on cpu"),
        ([(k.numpy(), v.numpy()) for k, v in pairs], "cache is a list: expected a key-value cache"),
        ("cache", "cache is a str: expected a key-value cache"),
        (7, "cache is an int: expected a key-value cache"),
    ):
        with pytest.raises(InputError, match=message):
            llama().answer(ids, answer=[5, 6], cache=wrong)
    expected = llama().answer(ids, answer=[5, 6]).matrix(signed=True).values
    partly = cache_of(ids[:4], lambda: static)  # the rest is zeros
    unused = StaticCache(llama().model.config, max_cache_len=9)
    for right in (cache_of(ids), cache_of(ids[:4]), partly, DynamicCache(), unused):
        a = llama().answer(ids, answer=[5, 6], cache=right)  # caches that are too short are rebuilt
        np.testing.assert_allclose(a.matrix(signed=True).values, expected, atol=1e-6)


def test_a_model_that_counts_otherwise_when_it_writes_is_explained_without_that_cache() -> None:
    """RoBERTa counts positions from its padding token; generation makes it count from 0."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, is_decoder=True,
        max_position_embeddings=40, initializer_range=0.7, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model: Any = af.wrap(transformers.RobertaForCausalLM(config).double())
    model.model.generation_config.eos_token_id = None
    for written in (model.answer([7, 8, 9], max_new_tokens=4), *model.answer([[7, 8, 9], [5] * 6], max_new_tokens=4)):
        again = model.answer(list(written.prompt.ids), answer=list(written.ids))
        np.testing.assert_allclose(written.matrix(signed=True).values, again.matrix(signed=True).values, atol=1e-9)
        np.testing.assert_allclose(
            written.leave_out(unit="token").values, again.leave_out(unit="token").values, atol=1e-9
        )


def test_a_long_prompt_does_not_cut_other_answers_short() -> None:
    together = llama().answer([[5] * 253, [6] * 4], max_new_tokens=6)
    assert [len(a.ids) for a in together] == [3, 6]
    assert together[1].ids == llama().answer([6] * 4, max_new_tokens=6).ids


@pytest.mark.parametrize(
    "settings",
    [
        {"cache_implementation": "static"},
        {"num_return_sequences": 3, "num_beams": 4},
        {"prompt_lookup_num_tokens": 3},
        {"dola_layers": "low"},
        {"stop_strings": ["\x00"]},
        {"token_healing": True},
        {"do_sample": True, "top_k": 50, "temperature": 2.0},
    ],
)
def test_a_models_settings_for_writing_do_not_stand_in_the_way(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama()
    expected = [a.ids for a in model.answer([PROMPT, "the key"], max_new_tokens=4)]
    changed = transformers.GenerationConfig(**{**model.model.generation_config.to_diff_dict(), **settings})
    monkeypatch.setattr(model.model, "generation_config", changed)
    assert [a.ids for a in model.answer([PROMPT, "the key"], max_new_tokens=4)] == expected


def test_answers_are_explained_in_inference_mode() -> None:
    expected = answer().matrix(signed=True).values
    with torch.inference_mode():
        given = llama().answer(PROMPT, answer=ANSWER)
        np.testing.assert_allclose(given.matrix(signed=True).values, expected, atol=1e-9)
        assert llama().answer(PROMPT, max_new_tokens=3).sources().values.sum() == pytest.approx(1)


@pytest.mark.parametrize("given", [True, False], ids=["given", "written"])
@pytest.mark.parametrize("write", ["in place", "data"])
def test_weights_that_changed_since_the_answer_are_refused(given: bool, write: str) -> None:
    """What was computed before stays true; what would be computed with other weights is refused."""
    model = llama.__wrapped__()
    late, early = (model.answer(PROMPT, answer=ANSWER if given else None, max_new_tokens=3) for _ in range(2))
    expected, matrix = early.log_probabilities.copy(), early.matrix().values
    weight = model.model.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        (weight.data if write == "data" else weight)[3, 2] += 1
    np.testing.assert_array_equal(early.log_probabilities, expected)
    np.testing.assert_array_equal(early.matrix().values, matrix)
    readings = [late.sources, late.matrix, late.leave_out, early.leave_out]
    readings += [lambda: late.sources(unit="sentence"), lambda: late.sources(method="rollout")]
    for read in readings:
        with pytest.raises(af.InputError, match="weights were changed after this answer was made"):
            read()
    again = model.answer(PROMPT, answer=ANSWER if given else None, max_new_tokens=3)
    assert again.sources().values.sum() == pytest.approx(1)


@pytest.mark.parametrize("change", ["negated", "doubled", "rows swapped", "columns swapped", "mirrored"])
def test_no_change_of_a_tensor_has_the_old_fingerprint(change: str) -> None:
    """Sums of bits would miss most of these. The same values in another layout are no change."""
    changed = {
        "negated": lambda x: -x, "doubled": lambda x: 2 * x, "rows swapped": lambda x: x.roll(1, 0),
        "columns swapped": lambda x: x.roll(4, 1), "mirrored": lambda x: x.flip(-1),
    }[change]  # fmt: skip
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = torch.randn(8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
        assert fingerprint([changed(x)]) != fingerprint([x]) == fingerprint([x.t().contiguous().t()])


def test_compiled_models_answer_as_others_do() -> None:
    """A model compiled in place after another of its class once gave the other's log-probabilities."""
    expected = llama.__wrapped__().answer(PROMPT, answer=ANSWER).log_probabilities
    for where in ("", "model.layers.1"):
        model = llama.__wrapped__()
        model.model.get_submodule(where).compile(backend="eager")
        np.testing.assert_allclose(model.answer(PROMPT, answer=ANSWER).log_probabilities, expected, atol=1e-6)


def test_hops_pass_on_what_stands_on_the_answer() -> None:
    a = answer()
    n = len(a.prompt.ids)
    rows = a.matrix().values[0]
    mass = rows.mean(0)
    for hops in range(len(a.ids) + 1):
        result = a.hops(hops)
        np.testing.assert_allclose(result.values[0, 0], mass, atol=1e-12)
        assert result.values.sum() == pytest.approx(1)
        passed = mass.copy()
        passed[n:] = 0
        for k in range(len(a.ids)):
            passed += mass[n + k] * rows[k]
        mass = passed
    whole = a.hops("all")
    np.testing.assert_allclose(whole.values[0, 0], mass, atol=1e-12)
    assert not whole.values[0, 0, n:].any()
    assert whole.parts == ("prompt",) * n + ("answer",) * len(a.ids)
    sentences = a.hops("all", unit="sentence")
    assert sentences.values.sum() == pytest.approx(1, abs=0.2) and "sentence" in str(sentences.provenance["unit"])


def test_verified_values_are_told_from_estimated_ones() -> None:
    a = answer()
    estimates = a.sources(unit="sentence").values[0, 0]
    exact = a.leave_out(unit="sentence").values[0, 0]
    result = a.sources(unit="sentence", verify=2)
    first = set(np.argsort(-estimates, kind="stable")[:2].tolist())
    for number, part in enumerate(result.parts):
        assert part == ("verified" if number in first else "estimated")
        if number in first:
            assert result.values[0, 0, number] == pytest.approx(exact[number], abs=1e-6)
    everything = a.sources(unit="sentence", verify=99)
    np.testing.assert_allclose(everything.values[0, 0], exact, atol=1e-6)


def test_fading_is_of_the_span_and_its_units() -> None:
    a = answer()
    slopes = a.sources(method="fading", signed=True)
    assert slopes.provenance["values"] == "slopes of log p" and slopes.row().min() < 0 < slopes.row().max()
    parts = [a.sources((t, t + 1), method="fading", signed=True).row() for t in range(len(a.ids))]
    np.testing.assert_allclose(np.sum(parts, 0), slopes.row(), atol=1e-6)
    units = a.prompt.units("sentence")
    merged = a.sources(unit="sentence", method="fading", signed=True)
    np.testing.assert_allclose(merged.row(), by_units(slopes.row(), units.groups), atol=1e-9)
    cut = a.sources(unit="sentence", method="fading")
    assert cut.row().sum() + cut.provenance["outside"] == pytest.approx(1) and cut.row().min() >= 0


def test_combined_puts_what_was_read_and_fading_on_one_scale() -> None:
    a = answer()
    groups = a.prompt.units("sentence").groups
    groups = [*groups, [i for i in range(len(a.prompt.ids)) if not any(i in group for group in groups)]]
    rows = np.array(a.sources(signed=True).row(), np.float64)
    rows[0] = 0  # the first token collects attention that has nowhere else to go
    read, faded = (by_units(x, groups) for x in (rows, a.sources(method="fading", signed=True).row()))
    size = [float(np.sqrt(np.mean(x[:-1] ** 2))) for x in (read, faded)]  # tokens outside any unit do not set the scale
    expected = read / size[0] + 0.5 * faded / size[1]
    result = a.sources(unit="sentence", method="combined", signed=True)
    np.testing.assert_allclose(result.row(), expected[:-1], atol=1e-6)
    assert result.provenance["values"] == "relative"
    order = np.argsort(-expected[:-1], kind="stable")
    verified = a.sources(unit="sentence", method="combined", verify=1)
    assert verified.parts[order[0]] == "verified" and verified.parts.count("verified") == 1


def test_tokens_and_words_are_ranked_by_answer_rows_and_larger_units_by_both() -> None:
    a = answer()
    ways = {"token": "answer_rows", "word": "answer_rows", "sentence": "combined", "paragraph": "combined"}
    for unit, method in ways.items():
        result, same = a.sources(unit=unit), a.sources(unit=unit, method=method)
        assert result.method == method
        np.testing.assert_array_equal(result.values, same.values)
    assert a.sources(unit="sentence", signed=True).method == "answer_rows"  # only answer rows are parts of the log-odds
    assert a.to_dict()["sources"]["unit_method"] == "combined"
    assert a.to_dict(method="answer_rows")["sources"]["unit_method"] == "answer_rows"


def test_a_model_without_fading_is_ranked_by_answer_rows() -> None:
    """Its attention scores cannot be recomputed."""
    a = replace(answer())  # a copy: other tests share the answer
    a.__dict__["_pass"] = replace(a._pass, frozen=replace(a._pass.frozen, fades=False))
    assert a.sources(unit="sentence").method == "answer_rows"


@pytest.mark.parametrize("method", ["raw", "rollout", "flow"])
def test_methods_of_the_graph_are_means_over_the_span(method: str) -> None:
    a = answer()
    n = len(a.prompt.ids)
    trace = llama().trace({"input_ids": torch.tensor([[*a.prompt.ids, *a.ids[:-1]]])})
    queries = list(range(n - 1, n - 1 + len(a.ids)))
    expected = getattr(trace, method)(query=queries, layer=-1).values[0, :, :n].mean(0)
    np.testing.assert_allclose(a.sources(method=method).values[0, 0], expected, atol=1e-9)


def test_an_answer_that_the_model_would_not_give_says_so() -> None:
    a = answer()
    each = float(np.exp(a.log_probabilities.mean()))
    assert each < 0.01, "an untrained model finds nothing likely"
    sentence = f"The model is unlikely to give this answer (probability {each:.1g} per token): "
    for result in (a.sources(), a.sources(unit="sentence"), a.sources(signed=True), a.hops()):
        assert [note.startswith(sentence) for note in result.reliability].count(True) == 1, result
    rows = a.matrix().reliability
    assert rows[0].startswith(f"{len(a.ids)} of {len(a.ids)} queries, such as {a.tokens[0]!r}: The model is unlikely")
    assert a.sources(verify=1, unit="sentence").reliability == a.leave_out().reliability == ()
    likely = a.model.answer("the key to the cabinet", max_new_tokens=1)
    assert likely.probability > 0.01 and not any("unlikely to give" in note for note in likely.sources().reliability)


def test_results_say_what_their_numbers_are() -> None:
    a = answer()
    results = {
        "combined (sentences, shares)": a.sources(unit="sentence"),
        "answer_rows (log-odds)": a.sources(signed=True),
        "verified (sentences, falls of log p)": a.sources(unit="sentence", verify=1),
        "leave_out (sentences, falls of log p)": a.leave_out(),
    }
    for name, result in results.items():
        stream = io.StringIO()
        result.show(file=stream)
        assert f" · {name} · explains {ANSWER} " in " ".join(stream.getvalue().split())
        assert result.provenance["values"] == name.strip(")").split("(")[1].split(", ")[-1]
    assert [a.matrix(signed=signed).provenance["values"] for signed in (False, True)] == ["shares", "log-odds"]
    assert "values" not in a.sources(method="rollout").provenance


def test_edges_of_every_kind_go_with_a_span() -> None:
    a = answer()
    for method, edges in (("rollout", "attention-gradient"), ("rollout", "alti"), ("flow", "answer")):
        values = a.sources(method=method, edges=edges, span=(1, 4)).values
        assert values.shape == (1, 1, len(a.prompt.ids)) and values.min() >= 0 and values.max() > 0


@pytest.mark.parametrize("build", [t5, bart])
def test_an_encoder_decoder_answers_through_the_same_call(build: Any) -> None:
    model = build()
    a = model.answer("the key to the cabinet", answer="the books")
    signed = a.matrix(signed=True)
    about = signed.provenance["evidence"]
    assert signed.values.sum() + about["constants"] == pytest.approx(about["log_odds"], rel=1e-4)
    assert a.sources().values.sum() == pytest.approx(1) and len(a.sources().tokens) == len(a.prompt.ids)
    target = torch.tensor([[0, *a.ids[:-1]]])
    with torch.no_grad():
        out = model.model(input_ids=torch.tensor([a.prompt.ids]), decoder_input_ids=target)["logits"][0].log_softmax(-1)
    expected = [float(out[k, i]) for k, i in enumerate(a.ids)]
    np.testing.assert_allclose(a.log_probabilities, expected, atol=1e-4)
    with pytest.raises(InputError, match="need a model with one stack"):
        a.sources(method="rollout", edges="answer")
    assert a.sources(method="rollout").values.shape == (1, 1, len(a.prompt.ids))
    written = model.answer("the key to the cabinet", max_new_tokens=4)
    again = model.answer("the key to the cabinet", answer=list(written.ids))
    np.testing.assert_allclose(written.matrix().values, again.matrix().values, atol=1e-4)


def test_the_decoder_starts_as_it_does_when_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bart()
    monkeypatch.setattr(model.model.generation_config, "decoder_start_token_id", 9)
    a = model.answer("the key", max_new_tokens=3)
    with torch.no_grad():
        target = torch.tensor([[9, *a.ids[:-1]]])
        out = model.model(input_ids=torch.tensor([a.prompt.ids]), decoder_input_ids=target)["logits"][0].log_softmax(-1)
    np.testing.assert_allclose(a.log_probabilities, [float(out[k, i]) for k, i in enumerate(a.ids)], atol=1e-9)
    assert len(model.answer("the key", max_new_tokens=99).ids) <= 64  # its decoder has 64 positions


def test_tokens_that_a_model_rules_out_have_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = llama(), list(answer().prompt.ids)
    expected = model.answer(ids, answer=[5, 6]).matrix(signed=True).values
    bias = torch.zeros(model.vocabulary(), dtype=torch.float64)
    for out, size in ((7, 1e4), (7, torch.inf)):
        bias[out] = -size
        monkeypatch.setattr(
            model.model.lm_head, "forward", lambda x: model.model.lm_head.weight.matmul(x[0].T).T[None] + bias
        )
        values = model.answer(ids, answer=[5, 6]).matrix(signed=True).values
        assert np.isfinite(values).all()
        expected = values if size < torch.inf else expected
        np.testing.assert_allclose(values, expected, atol=1e-9)
    with pytest.raises(ModelError, match="the log-odds of this answer are -inf"):
        model.answer(ids, answer=[7]).sources()


def test_several_spans_of_one_text() -> None:
    a = answer()
    assert a.sources(span="cabinet").query_tokens == ("cabinet",)
    with pytest.raises(InputError, match=r"occurs 2 times in the answer: choose one of \('the', 1\)"):
        a.sources(span="the")
    with pytest.raises(InputError, match="does not occur in the answer"):
        a.sources(span="horse")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.answer(""), "is empty: expected at least one word"),
        (lambda m: m.answer(PROMPT, answer=""), "the answer '' is empty"),
        (lambda m: m.answer(PROMPT, answer=7), "answer=7: expected a text, or token numbers"),
        (lambda m: m.answer(PROMPT, answer=[10**6]), "the answer contains token 1000000: expected numbers from 0 to"),
        (lambda m: m.answer([10**6]), "the prompt contains the token 1000000: expected numbers from 0 to"),
        (lambda m: m.answer(PROMPT, max_new_tokens=0), "max_new_tokens=0: expected an int of at least 1"),
        (lambda m: m.answer(PROMPT, cache=object()), "cache needs answer="),
        (lambda m: m.answer(PROMPT, answer="key", cache=object()), "give answer= as token numbers"),
        (lambda m: m.answer([PROMPT, PROMPT], answer=["key"]), "for 2 prompts: expected a list with one for each"),
        (lambda m: m.answer("the key " * 200), "tokens and the model takes 256"),
        (lambda m: m.answer([{"role": "user", "content": "hi"}]), "chat template"),
        (lambda m: answer().sources(method="alti"), "method='alti': expected one of 'answer_rows', 'fading'"),
        (lambda m: answer().sources(method="raw", signed=True), "attention has no sign"),
        (lambda m: answer().sources(unit="line"), "expected one of token, word, sentence"),
        (lambda m: answer().sources(verify=-1), "verify=-1: expected an int of at least 0"),
        (lambda m: m.answer(np.array(["key"])), "the tokens are an array of <U3: expected whole numbers"),
        (lambda m: m.answer(torch.tensor([1j])), "torch.complex64: expected whole numbers"),
        (
            lambda m: bart().answer("the key", answer=[5] * 65),
            "the answer has 65 tokens, and the model writes at most 64",
        ),
        (lambda m: answer().leave_out(replacement=5), "replacement=5 needs how='replace', and how is 'remove'"),
        (lambda m: answer().save(7), "path is an int: expected the name of a file"),
        (lambda m: answer().show(file="answer.txt"), "file is a str: expected an open file"),
        (lambda m: answer().leave_out(only=99), "unit 99 does not exist"),
        (lambda m: answer().leave_out(only="horse"), "no unit of the prompt contains 'horse'"),
        (lambda m: answer().leave_out(only="the key"), "is in 2 units"),
        (lambda m: answer().sources(unit="word", method="flow"), 'do not add up: give unit="token"'),
    ],
)
def test_mistakes_are_told_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(llama())


def test_a_model_that_writes_nothing_says_so() -> None:
    model = gpt2()
    model.model.lm_head.weight = torch.nn.Parameter(
        torch.zeros_like(model.model.lm_head.weight)
    )  # the first token is the end of the text
    with pytest.raises(InputError, match="the model writes nothing: its first token ends the text"):
        model.answer("the key")


def test_models_that_write_no_text_are_refused() -> None:
    with pytest.raises(InputError, match="BertForSequenceClassification generates no text"):
        bert("BertForSequenceClassification").answer("the key")
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1) | {"d_model": 16, "vocab_size": 50}
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(**sizes, **heads, **ids)
    with pytest.raises(InputError, match=r"does not read text \(its input is input_features\)"):
        af.wrap(transformers.WhisperForConditionalGeneration(config)).answer([4, 5])
    assert issubclass(ModelError, InputError)


def test_a_prompt_is_read_once_for_both_passes() -> None:
    """Answer rows and fading without a cache take one pass over the prompt and two over the answer."""
    a = replace(answer(), writing=replace(answer().writing, cache=None))
    positions: list[int] = []
    hook = a.model.model.register_forward_pre_hook(
        lambda _, args, named: positions.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        replace(a).sources(unit="sentence")  # a model with another hook is checked again
        positions.clear()
        a.sources(unit="sentence")
    finally:
        hook.remove()
    assert positions == [len(a.prompt.ids) - 1, len(a.ids), len(a.ids)]


def test_signed_is_yes_or_no() -> None:
    for signed in ("shares", "x", 1):
        with pytest.raises(af.InputError, match=r"^signed=.*: expected True or False$"):
            answer().sources(signed=signed)  # type: ignore[arg-type]


def test_a_streamer_receives_the_text_while_it_is_written() -> None:
    class Tokens(list[int]):
        def put(self, ids: torch.Tensor) -> None:
            self.extend(ids.flatten().tolist())

        def end(self) -> None:
            pass

    seen = Tokens()
    written = llama().answer(PROMPT, max_new_tokens=4, streamer=seen)
    assert tuple(seen) == (*written.prompt.ids, *written.ids)
    with pytest.raises(
        InputError, match=r"^streamer needs an answer that the model writes, and this one is given: lea"
    ):
        llama().answer(PROMPT, answer=ANSWER, streamer=seen)
    with pytest.raises(InputError, match=r"^streamer needs a single prompt: give one at a time$"):
        llama().answer([PROMPT, PROMPT], streamer=seen)


def test_one_unit_is_left_out_by_itself() -> None:
    a = answer()
    every = a.leave_out("sentence")
    for number in range(len(every.tokens)):
        alone = a.leave_out("sentence", only=number)
        assert alone.tokens == (every.tokens[number],) and alone.parts == ("verified",)
        assert alone.row()[0] == pytest.approx(every.row()[number], abs=1e-6)
    by_text = a.leave_out("sentence", (1, 3), only="who has")
    assert by_text.row()[0] == pytest.approx(a.leave_out("sentence", (1, 3)).row()[1], abs=1e-6)
    with pytest.raises(InputError, match=r"^unit 2 does not exist: there are 2 units, expected 0 to 1$"):
        a.leave_out("sentence", only=2)
