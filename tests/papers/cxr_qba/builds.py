"""Builds of CXR-QBA: what they wrote, and shards made in this process."""

import json

from cxrjax.papers.cxr_qba.construct.construction import merge_facts
from cxrjax.papers.cxr_qba.construct.pipeline import graphs_of, questions_of
from cxrjax.papers.cxr_qba.construct.shards import finish, prepare
from cxrjax.papers.cxr_qba.study_files import SCENE_GRAPH, study_path
from cxrjax.records import read_records


class Built:
    """What a build wrote: records by split and together, and its JSON files."""

    def __init__(self, out):
        files = sorted((out / "records").glob("*.jsonl"))
        self.out, self.splits = out, {file.stem: list(read_records(file)) for file in files}
        self.records = [record for own in self.splits.values() for record in own]

    def __getattr__(self, name):
        return json.loads((self.out / f"{name}.json").read_text())


def content(out):
    """Every file that should not depend on who made it when."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {path.relative_to(out): path.read_bytes() for path in files}


def run_shards(job, again=()):
    """What the engine does, in this process and in any order."""
    prepare(job)
    numbers = list(reversed(range(job.shards)))
    facts = merge_facts([graphs_of(number, job, again) for number in numbers])
    for number in numbers:
        questions_of(number, facts, job, again)
    finish(job)


def write_graph(root, graph):
    """Writes a scene graph at its place below a folder; returns its file."""
    path = root / (study_path(graph.patient_id, graph.study_id) + SCENE_GRAPH)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(graph.to_json()))
    return path
