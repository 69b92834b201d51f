"""A first look at what attnflow computes, on attention that this script generates itself.

The weights are made up so that the answer is known: in layer 1 "key" is copied into "cabinets" and into "to"; above,
everybody looks at "cabinets". The attention of the last layer points at "cabinets" and hardly at "key"; what is in that
state came from "key" too, and rollout and flow say so.
"""

from __future__ import annotations

import numpy as np

import attnflow as af

TOKENS = ["[CLS]", "the", "key", "to", "the", "cabinets"]
LAYERS, HEADS = 4, 2


def made_up_attention() -> np.ndarray:
    n, key, cabinets = len(TOKENS), TOKENS.index("key"), TOKENS.index("cabinets")
    logits = np.random.default_rng(0).normal(scale=0.4, size=(LAYERS, HEADS, n, n))
    logits[0, :, cabinets, key] += 4
    logits[0, :, 3, key] += 3
    logits[1:, :, :, cabinets] += 2.5
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def bar(share: float) -> str:
    return ("█" * round(share * 24)).ljust(24)


def main() -> None:
    weights = made_up_attention()  # [layer, head, query, key]
    A = af.attention_graph(weights)  # [layer, query, key]
    views = {
        "raw": af.attention_graph(weights, residual=0)[-1, 0],
        "rollout": af.rollout(A, queries=0, layers=-1)[0, 0],
        "flow, divided by its sum": af.flow(A, queries=0, layers=-1, normalize=True)[0, 0],
    }
    print(f"Where does the last [CLS] state come from? {LAYERS} layers of generated attention; shares of each view.\n")
    print(" " * 10 + "".join(name.ljust(34) for name in views))
    for position, token in enumerate(TOKENS):
        cells = (f"{view[position]:6.3f} {bar(view[position])}   " for view in views.values())
        print(token.ljust(10) + "".join(cells))

    mf = af.max_flow(A, query=0, token=TOKENS.index("key"))
    print(f'\nThe maximum flow from [CLS] to "key" is {mf.value:.4f};', end=" ")
    print(f"a cut of {len(mf.cut)} full edges proves it (gap {mf.gap:.1e}).")
    print("Its widest paths:")
    for path in mf.paths(limit=3):
        print(f"  {path.amount:.4f}  " + " → ".join(TOKENS[p] for p in path.positions))


if __name__ == "__main__":
    main()
