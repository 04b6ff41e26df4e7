"""Names of regions in reports, and the regions that they mean."""

from collections.abc import Sequence

from cxrjax.radiology_text.definitions import Definitions


def resolve_regions(
    names: Sequence[str], side: str, definitions: Definitions
) -> tuple[list[str], list[str]]:
    """(regions, names that are no region's).

    Args:
        names: wordings; one without a side of its own takes the side given.
        side: left, right, both or "".

    Returns:
        Regions in order, each once, without those that another one lies in.
    """
    found: list[str] = []
    unknown: list[str] = []
    for name in names:
        region = name if name in definitions.regions else definitions.region_names.get(name)
        if region is None:
            unknown.append(name)
            continue
        found += definitions.on_side(region, side) if side else [region]
    found = list(dict.fromkeys(found))
    general = {parent for region in found for parent in definitions.region_ancestors(region)}
    return [region for region in found if region not in general], unknown
