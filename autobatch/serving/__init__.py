"""Requests of one example each, run together as they come: `Batcher` in one's own process, `serve` over HTTP."""
