"""HTML as a tree, to read a page back."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link", "hr"}


class Node:
    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.attributes = tag, attributes
        self.children: list[Node | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attributes[name] or ""

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    @property
    def text(self) -> str:
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    def all(self, tag: str | None = None, cls: str | None = None, **attributes: str):
        for child in self.children:
            if isinstance(child, Node):
                named = (tag is None or child.tag == tag) and (cls is None or cls in child.classes)
                wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
                if named and wanted.items() <= child.attributes.items():
                    yield child
                yield from child.all(tag, cls, **attributes)


class Tree(HTMLParser):
    """A tree of nodes; an unbalanced tag is an error, unlike in a browser."""

    def __init__(self, html: str):
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]
        self.feed(html)
        self.close()
        assert self.open == [self.root], f"unclosed {self.open[-1].tag}"

    def handle_starttag(self, tag, attrs):
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)
