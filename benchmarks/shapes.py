"""A small vision-language model and its task: coloured shapes in a noisy image, and a question about one of them.

``python -m benchmarks.shapes FOLDER`` trains the model and writes it with its processor, as `save_pretrained` does.
`benchmarks/shapes-model` was written this way. `benchmarks.picture_words` tests which patches its words come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from attnflow.capture.silence import silence
from attnflow.cli.options import progress
from benchmarks.command import run_command

FOLDER = Path(__file__).parent / "shapes-model"

PATCH, SIDE = 8, 6
"""Pixels of a patch, and patches per side: a shape fills one patch."""

COLOURS = {"red": (0.9, 0.15, 0.1), "green": (0.1, 0.75, 0.2), "blue": (0.15, 0.25, 0.95), "yellow": (0.95, 0.9, 0.1)}
DRAWN = 3
"""Shapes per image: one is asked about, the others have other colours."""

NOISE = 0.12
IMAGE = "<image>"
QUESTION = "what colour is the {} ?"
NAMING = "what do you see ?"
"""Asked about images with one shape: without it the model does not learn to find shapes."""
ANSWER = "the {} is {}"
MARKS = ("<pad>", "<s>", "</s>", "<unk>", IMAGE)


def _masks() -> dict[str, NDArray[np.bool_]]:
    y, x = np.mgrid[0:PATCH, 0:PATCH] - (PATCH - 1) / 2
    near = np.maximum(np.abs(x), np.abs(y))
    return {
        "square": near <= 3,
        "disc": np.hypot(x, y) <= 2.6,
        "cross": (near <= 3.5) & (np.minimum(np.abs(x), np.abs(y)) < 1),
        "triangle": (np.abs(x) <= (y + 3.5) / 2) & (y <= 3),
    }


SHAPES = _masks()


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images and their contents. The first shape of each image is asked about.

    pixels: uint8 ``[image, row, column, 3]``.
    shapes, colours, places: by number, ``[image, shape]``.
    """

    pixels: NDArray[np.uint8]
    shapes: NDArray[np.int64]
    colours: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pixels)

    def question(self, number: int) -> str:
        return QUESTION.format(list(SHAPES)[int(self.shapes[number, 0])]) if self.shapes.shape[1] > 1 else NAMING

    def colour(self, number: int) -> str:
        return list(COLOURS)[int(self.colours[number, 0])]

    def answer(self, number: int) -> str:
        return ANSWER.format(list(SHAPES)[int(self.shapes[number, 0])], self.colour(number))


def scenes(count: int, seed: int, shown: int = DRAWN) -> Scenes:
    """Return random images with `shown` shapes of different kinds, colours and places."""
    random = np.random.default_rng(seed)

    def drawn(kinds: int) -> NDArray[np.int64]:
        return random.random((count, kinds)).argsort(1)[:, :shown]

    shapes, colours, places = drawn(len(SHAPES)), drawn(len(COLOURS)), drawn(SIDE * SIDE)
    size = SIDE * PATCH
    images = np.full(
        (count, SIDE, PATCH, SIDE, PATCH, 3), 0.5
    )  # [image, patch row, row, patch column, column, channel]
    masks, paints = np.stack(list(SHAPES.values())), np.array(list(COLOURS.values()))
    every = np.arange(count)
    for one in range(shown):
        row, column = np.divmod(places[:, one], SIDE)
        mask = masks[shapes[:, one]][..., None]
        images[every, row, :, column] = np.where(mask, paints[colours[:, one]][:, None, None], 0.5)
    images = images.reshape(count, size, size, 3) + NOISE * random.standard_normal((count, size, size, 3))
    return Scenes((images.clip(0, 1) * 255).round().astype(np.uint8), shapes, colours, places)


def processor() -> Any:
    """Return a processor with words as tokens, and pixels from -1 to 1."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    words = dict.fromkeys(" ".join([QUESTION, NAMING, ANSWER, *SHAPES, *COLOURS]).replace("{}", "").split())
    vocabulary = {word: number for number, word in enumerate([*MARKS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=[IMAGE], model_max_length=64,
    )  # fmt: skip
    size = {"height": SIDE * PATCH, "width": SIDE * PATCH}
    pictures = CLIPImageProcessorPil(size=size, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return LlavaProcessor(
        pictures, fast, patch_size=PATCH, vision_feature_select_strategy="default", image_token=IMAGE,
        num_additional_image_tokens=1,
    )  # fmt: skip


def untrained(vocabulary: int, seed: int = 0) -> Any:
    """Return a vision tower of two layers below a Llama of three."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            **sizes, num_hidden_layers=2, image_size=SIDE * PATCH, patch_size=PATCH, initializer_factor=3.0
        ),
        text_config=LlamaConfig(
            **sizes, num_hidden_layers=3, num_key_value_heads=4, vocab_size=vocabulary, max_position_embeddings=64,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.1,
        ),
        image_token_id=MARKS.index(IMAGE), image_seq_length=SIDE * SIDE, vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    return LlavaForConditionalGeneration(config)


def batch(of: Scenes, its: Any) -> dict[str, torch.Tensor]:
    """Return questions with their answers, which are the labels."""
    tokenizer = its.tokenizer
    rows, labels = [], []
    for number in range(len(of)):
        question = tokenizer(of.question(number), add_special_tokens=False)["input_ids"]
        said = [*tokenizer(of.answer(number), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        before = [tokenizer.bos_token_id, *[MARKS.index(IMAGE)] * (SIDE * SIDE), *question]
        rows.append([*before, *said])
        labels.append([*[-100] * len(before), *said])
    pixels = torch.from_numpy(of.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(labels), "pixel_values": pixels}


def trained(steps: int, seed: int = 0) -> tuple[Any, Any]:
    """Train a model that answers; return it and its processor."""
    its = processor()
    model = untrained(len(its.tokenizer), seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(steps):
        loss = model(**batch(scenes(64, seed + 1000 + step, DRAWN if step % 3 else 1), its)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 1:
            progress(f"step {step + 1}: loss {float(loss.detach()):.4f}")
    return model.eval(), its


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for the model.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of 64 images.")] = 2400,
    seed: Annotated[int, typer.Option(help="Seed of weights and images.")] = 0,
) -> None:
    """Train the small vision-language model, and write it into a folder."""
    silence()
    model, its = trained(steps, seed)
    model.save_pretrained(folder)
    its.save_pretrained(folder)


if __name__ == "__main__":
    run_command(main)
