"""A page to try models in: an X-ray and a question in, what several models answer out.

`answers` asks, `rendering` writes HTML, `phantoms` makes images to begin with; none of them needs
Gradio. `page` puts them together with it, and keeps it off the network.
"""
