"""The model card of a verb-number model, from its training report."""

from __future__ import annotations

from typing import Any

from attnflow import markdown
from attnflow.paper.result_text import GROUPS, share
from attnflow.reliability import percent


def card(report: dict[str, Any]) -> str:
    """Return the README.md of the model's folder. report: the contents of its training.json."""
    settings, versions, device = report["settings"], report["versions"], report["device"]
    rows = [["", *GROUPS.values()]]
    rows += [[part, *(share(scores[g]) for g in GROUPS)] for part, scores in report["accuracy"].items()]
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: token-classification
---

# Verb number

Is the verb that follows singular or plural? The model of Abnar & Zuidema (2020): {settings["layers"]} layers,
{settings["heads"]} heads, width {settings["width"]}, GPT-2 blocks without the causal mask, [CLS] first and [EOS] last;
{report["parameters"]:,} parameters, stored in half precision.

It is a stock `GPT2ForTokenClassification` with `is_causal=False`: the class is read at [CLS], position 0, and means
nothing elsewhere. Each word is one token, in lower case. Unknown words are [UNK], unless the text has their part-of-speech
tag in upper case instead ("the article on NNP large systems"). If a text has more than
{settings["positions"] - 2} words, give its last ones.

## Accuracy
By number of attractors (nouns of the other number between subject and verb), with the number of examples. In sets with
tags, rare words are replaced by their tag; the Linzen subset has no tags, and over-samples attractors.

{markdown.table(rows)}

## Training
Trained by `python -m reproduction verb-number`, recipe "{report["recipe"]}", seed {report["seed"]}, on {device} with torch
{versions["torch"]} and transformers {versions["transformers"]}; `training.json` has every setting and the SHA-256 of all
data.

{recipe(report)}
"""


def recipe(report: dict[str, Any]) -> str:
    """Return the training recipe as a list."""
    settings, weight = report["settings"], report["settings"]["distillation"]
    teachers = sum(name.startswith("teacher") for name in report["data"])
    lines = [f"{report['examples']['train']:,} examples, split as in the data."]
    if report["examples"]["more"]:
        left_out = f"; the last {percent(settings['refine'])} of the steps leave them out" if settings["refine"] else ""
        lines.append(
            f"{report['examples']['more']:,} further examples with weight {settings['more_weight']:g}{left_out}."
        )
    if "pretraining" in report["stages"]:
        lines.append(f"Before that, {settings['pretrain']} passes over plain text with masked words.")
    if teachers:
        lines.append(
            f"Distillation (weight {weight:g}) from the mean of {teachers} encoders of `python -m reproduction teacher`."
        )
    elif settings["teacher"] == "lstm":
        lines.append(f"Distillation (weight {weight:g}) from an LSTM of 2 layers of 256, as in the authors' code.")
    if settings["tagging"] or settings["pointing"]:
        lines.append(
            "Auxiliary heads, discarded after training, predict the tag of every word (weight "
            f"{settings['tagging']:g}) and the position of the subject (weight {settings['pointing']:g}). Attention "
            "is not supervised."
        )
    lines.append(
        f"Dropout: residual {settings['residual_dropout']:g}, embedding {settings['embedding_dropout']:g}, attention "
        f"{settings['attention_dropout']:g}."
    )
    if settings["unknown_words"] or settings["unknown_tags"]:
        lines.append(
            f"During training {percent(settings['unknown_words'])} of the words and "
            f"{percent(settings['unknown_tags'])} of the tags are replaced by [UNK]."
        )
    if report.get("adopted"):
        lines.append(
            f"After training, {report['adopted']:,} plurals of known words received the embedding of their tag, NNS, "
            "so that fewer words of free text are [UNK]."
        )
    return "\n".join(f"- {line}" for line in lines)
