"""A first look: the sentence of the paper, through the model that comes with the package. No network, no data.

The model reads "the key to the cabinets" and predicts whether the next verb is singular. What is that based on?
"""

from __future__ import annotations

import attnflow as af

TEXT = "the key to the cabinets"


def bar(share: float) -> str:
    return ("█" * round(share * 16)).ljust(8)


def main() -> None:
    model = af.load()
    trace = model.trace(TEXT)
    (label, chance), *_ = trace.prediction.top
    print(f'"{TEXT} …": the verb is {label} (p = {chance:.3f}).\n')

    print("Where the [CLS] state, which decides in the end, comes from; and what each word is worth to the answer.")
    print("Each column is divided by its sum. Flow is shown at L3: above, it reaches its bound and tokens tie.")
    views = {
        "raw, L6": trace.raw(layer=-1),
        "rollout, L6": trace.rollout(layer=-1),
        "flow, L3": trace.flow(layer=2),
        "blank-out": model.blank_out(TEXT),
    }
    rows = {name: view.normalized().row() for name, view in views.items()}
    print(" " * 10 + "".join(name.rjust(6).ljust(17) for name in views))
    for position, token in enumerate(trace.tokens):
        print(token.ljust(10) + "".join(f"{row[position]:6.3f} {bar(row[position])}  " for row in rows.values()))

    graph, key = trace.graph(), trace.tokens.index("key")
    mf = af.max_flow(graph, query=0, token=key, layer=2)
    print(f'\nThe maximum flow from [CLS] at L3 to "key" is {mf.value:.4f};', end=" ")
    print(f"a cut of {len(mf.cut)} full edges proves it (gap {mf.gap:.1e}).")
    print("Its widest paths:")
    for path in mf.paths(limit=3):
        print(f"  {path.amount:.4f}  " + " → ".join(trace.tokens[p] for p in path.positions))
    print("\nNext, a page to look at (make demo puts the command into .venv/bin):")
    print(f'  attnflow show "{TEXT}" -o page.html')


if __name__ == "__main__":
    main()
