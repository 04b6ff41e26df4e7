"""The package's HTML templates: text is escaped, and a name that is not given is an error."""

import jinja2


def template(package: str, name: str) -> jinja2.Template:
    """The template `name` of the folder of `package`."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)
