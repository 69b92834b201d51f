"""The local web app: the page, and the JSON API behind it.

One thread computes, since torch and the solver use all cores themselves; the event loop reads requests, keeps the queue and
answers. Tokenizing and the decoding of images belong to that thread too: tokenizers cannot be shared between threads, and
nothing that depends on the length of what was sent may hold the event loop.

A request passes `guard`, is routed by `api`, becomes work in `service` and waits in `queue`; `wire` are the shapes of
requests and answers, `limits` what they may take. `writing` answers prompts, `edits` changes a word, `recent` keeps what
was used last. `app` holds it all together. Nothing is imported here, so that the command is there without what it needs.
"""
