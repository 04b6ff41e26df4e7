"""Facts that two texts have in common (ViX-Ray, section 4.2): matched one to one, then counted.

With many-to-many matches the paper's |T ∩ G| would have two sizes (A24); one to one it has one.
"""

from collections.abc import Iterable

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_bipartite_matching


def one_to_one(same: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """As many of these pairs as go together without using an index twice on its side."""
    edges = sorted(set(same))
    if not edges:
        return ()
    rows, columns = np.array(edges).T
    graph = coo_array((np.ones(len(edges), bool), (rows, columns))).tocsr()
    partners = maximum_bipartite_matching(graph, perm_type="column")
    return tuple((row, int(column)) for row, column in enumerate(partners) if column >= 0)
