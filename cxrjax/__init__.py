"""Vision-language models that answer questions about chest X-rays and point at what they mean."""

__version__ = "0.1.0"
