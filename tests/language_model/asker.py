"""A process that asks a server for cities: asker.py URL CACHE map|ask COUNT."""

import sys
from pathlib import Path

import pydantic

from cxrjax.language_model.account import AnswerCache
from cxrjax.language_model.client import Client
from cxrjax.language_model.request import Message, Request
from cxrjax.language_model.settings import Prices, Settings


class City(pydantic.BaseModel):
    city: str


if __name__ == "__main__":
    url, cache, how, count = sys.argv[1:]
    settings = Settings(url, "m", concurrency=4, prices=Prices(1, 1), timeout=60)
    client = Client(settings, AnswerCache(Path(cache)))
    asked = [Request((Message("user", (f"city {n}",)),), City) for n in range(int(count))]
    if how == "ask":
        print(client.ask(asked[0]))
    print([city.city for _, city in client.map(client.ask, asked)])
    print(client.account.to_json()["requests"])
