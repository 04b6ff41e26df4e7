"""Pages for people: results, the review of questions, and a page to try models in."""
