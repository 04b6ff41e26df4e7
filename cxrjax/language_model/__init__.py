"""Language models over HTTP: structured answers, checked, cached, counted.

settings    which model, where, on what terms
request     messages and images, and the form of the answer
prompt_file instructions and demonstrations from files
client      ask, check, ask again; many at a time, in order; may it be sent at all
server      HTTP: retries, rate limit
account     tokens, cost, the limit
answer_cache    what was received
flags       all of it from a command line and the environment
"""

from cxrjax.language_model.answer_cache import AnswerCache, Completion
from cxrjax.language_model.client import Client, Estimate
from cxrjax.language_model.request import Category, Image, Message, NoAnswer, Request
from cxrjax.language_model.settings import Prices, Settings

__all__ = [
    "AnswerCache",
    "Category",
    "Client",
    "Completion",
    "Estimate",
    "Image",
    "Message",
    "NoAnswer",
    "Prices",
    "Request",
    "Settings",
]
