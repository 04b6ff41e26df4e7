"""Questions as people type them: other names, lower case, a typing error now and then.

How often stands in the templates' file under `variation`; what was done to a question stands behind
its template's number (`v6/Where/2/synonym+typo`).
"""

import re
from random import Random

from cxrjax.papers.vindr_cxr_vqa.construct.templates import ClassWords, VindrTemplates

_ARTICLE = re.compile(r"^(an?) (.*)$")
_SHORTEST = 5  # letters of a word with a typing error


def vary_name(words: ClassWords, templates: VindrTemplates, rng: Random) -> tuple[dict, str]:
    """(the slots of a class's name in a question, how it is named: "", "lower" or "synonym")."""
    drawn = rng.random()
    name = words.with_article
    how = ""
    # Where the name takes no article that the class needs, a question uses other names.
    if drawn < templates.variation["synonym"] or not name.startswith(words.article):
        name, how = rng.choice(words.synonyms), "synonym"
    elif drawn < templates.variation["synonym"] + templates.variation["lower"]:
        # A short form stays as it is.
        name, how = (name, "") if words.name.isupper() else (name.lower(), "lower")
    found = _ARTICLE.match(name)
    bare = found[2] if found else name
    slots = {"finding": bare, "a_finding": name, "the_finding": f"the {bare}" if found else name}
    return slots, how


def vary_question(question: str, templates: VindrTemplates, rng: Random) -> tuple[str, list[str]]:
    """(the question, what was done to it)."""
    done = []
    if rng.random() < templates.variation["careless"]:
        question = question[:1].lower() + question[1:].rstrip("?.")
        done.append("careless")
    if rng.random() < templates.variation["typo"]:
        question = _mistyped(question, rng)
        done.append("typo")
    return question, done


def _mistyped(question: str, rng: Random) -> str:
    """One long word with two letters swapped, or one left out or doubled; its ends stay."""
    words = [match.span() for match in re.finditer(rf"[A-Za-z]{{{_SHORTEST},}}", question)]
    if not words:
        return question
    start, end = rng.choice(words)
    at = rng.randrange(start + 1, end - 2)
    a, b = question[at], question[at + 1]
    changed = rng.choice([b + a, a, a + a + b])
    if changed == a + b:  # two letters alike, swapped
        changed = a
    return question[:at] + changed + question[at + 2 :]
