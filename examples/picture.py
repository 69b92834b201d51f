"""Draws docs/first-look.svg, the picture of the README: the three views of the demo, layer by layer.

python examples/picture.py docs/first-look.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from demo import LAYERS, TOKENS, made_up_attention

import attnflow as af

CELL, LEFT, TOP, GAP = (54, 34), 56, 66, 40
LOW, HIGH = np.array([247, 247, 247]), np.array([8, 69, 148])


def views() -> dict[str, np.ndarray]:
    """[layer, input] for the first position, each row divided by its sum."""
    weights = made_up_attention()
    A = af.attention_graph(weights)
    return {
        "raw attention": af.attention_graph(weights, residual=0)[:, 0],
        "attention rollout": af.rollout(A, queries=0)[:, 0],
        "attention flow": af.flow(A, queries=0, normalize=True)[:, 0],
    }


def drawing() -> str:
    width = LEFT + 3 * len(TOKENS) * CELL[0] + 2 * GAP + 16
    height = TOP + LAYERS * CELL[1] + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" '
        'role="img" aria-label="Where the state of [CLS] comes from at each layer: raw attention, rollout and flow">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, values) in enumerate(views().items()):
        x0 = LEFT + number * (len(TOKENS) * CELL[0] + GAP)
        parts.append(f'<text x="{x0}" y="22" font-size="15" font-weight="bold">{name}</text>')
        for t, token in enumerate(TOKENS):
            parts.append(f'<text x="{x0 + (t + 0.5) * CELL[0]}" y="{TOP - 8}" text-anchor="middle">{token}</text>')
        for layer in range(LAYERS):
            y = TOP + (LAYERS - 1 - layer) * CELL[1]
            if number == 0:
                parts.append(f'<text x="{LEFT - 10}" y="{y + 22}" text-anchor="end">L{layer + 1}</text>')
            for t in range(len(TOKENS)):
                share = values[layer, t]
                r, g, b = (LOW + (HIGH - LOW) * min(1, share / 0.6)).round().astype(int)
                ink = "white" if share > 0.3 else "black"
                x = x0 + t * CELL[0]
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{CELL[0] - 2}" height="{CELL[1] - 2}" fill="rgb({r},{g},{b})"/>'
                    f'<text x="{x + CELL[0] / 2 - 1}" y="{y + 21}" text-anchor="middle" fill="{ink}">{share:.2f}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawing())
