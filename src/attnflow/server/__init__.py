"""The local web app: the page, and its JSON API.

One thread does all computation, because torch and the solver already use all cores. The event loop reads requests, manages
the queue and sends responses. Tokenizing and image decoding run in the computing thread too: tokenizers cannot be shared
between threads, and long inputs must not block the event loop.

A request passes `guard`, is routed by `api`, becomes work in `service` and waits in `queue`. `wire` defines the shapes of
requests and responses, `limits` their maximum sizes. `writing` answers prompts, `edits` changes a word, `recent` is a cache
and `app` starts the server. This module imports nothing, so that the command works without the optional dependencies.
"""
