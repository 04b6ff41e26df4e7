"""The package's HTML templates: text is escaped, and a name that is not given is an error."""

import jinja2


def template(name: str) -> jinja2.Template:
    """The template `name` of this folder."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("cxrjax.benchmarks", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)
