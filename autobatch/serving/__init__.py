"""Serving: requests of one example each, run together as they arrive; `Batcher` in this process, `serve` over HTTP."""
