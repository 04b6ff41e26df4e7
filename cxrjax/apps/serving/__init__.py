"""A server of our models: OpenAI's protocol over HTTP, and boxes in a field of their own.

    protocol  what requests may say, and how answers are written
    engine    slots in one cache: newcomers are read in between, all write one token a step
    programs  what of it the devices do, compiled once

docs/serving.md tells how it is run and what it promises.
"""
