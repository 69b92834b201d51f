"""Small tokenizers of the three families."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The key to the cabinets is rusty.",
    "Nobody's unbelievable well-known answer, said twice: don't!",
    "A naïve café in Zürich — 3.14 is not π. (Really?) ...",
    "the keys, the cabinet, the books and the shelves",
] * 5


def wordpiece(*more: str) -> Any:
    """Return a tokenizer with a fixed vocabulary plus these words: training breaks ties differently each time."""
    from transformers import BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{c}" for c in letters),
        *"0123.,:!?()'-π日本",
    ]
    pieces += [
        "the",
        "key",
        "to",
        "is",
        "cabinet",
        "book",
        "##able",
        "##bel",
        "##bod",
        "##own",
        "nobody",
        "answer",
        *more,
    ]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    return BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=32)


def byte_level() -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", model_input_names=["input_ids", "attention_mask"]
    )


def sentencepiece() -> Any:
    """Like Llama 2's: the normalizer turns spaces into ▁ and nothing splits the text, so all tokens are one "word"."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False)
    )
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]  # bytes are ordinary pieces
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = None
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> Any:
    """Like T5's and XLM-R's: a text's first word gets a ▁ that is not in the text, and a normalizer changes letters."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    names = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        SENTENCES, trainers.UnigramTrainer(vocab_size=120, special_tokens=names, unk_token="<unk>", show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 2)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def trimming() -> Any:
    """Like RoBERTa's: byte-level, with offsets that omit white space."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


FAMILIES = {"WordPiece": wordpiece, "byte-level BPE": byte_level, "SentencePiece": sentencepiece}
