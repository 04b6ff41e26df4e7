"""Lists of rows, as notebooks show them and as pandas takes them."""

from collections.abc import Mapping
from html import escape
from typing import Any

from cxrjax.errors import optional


class Table(list[dict[str, Any]]):
    """Rows, each a dictionary of the same columns. Notebooks show a table."""

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` of the rows.

        Raises:
            UserError: pandas is not installed.
        """
        remedy = "pip install pandas, or use the rows: they are a list of dictionaries"
        return optional("pandas", "", remedy).DataFrame(list(self))

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(name for row in self for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_cell(row, name))}</td>' for name in columns)}</tr>"
            for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
