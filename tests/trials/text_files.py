"""Data of every kind that a reader takes, with lines that end in any way."""

import json
from pathlib import Path

from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.evaluation.hallucination.data import generated_rows, load_examples
from diffattn.lab.evaluation.hallucination.tasks import TASKS as HALLUCINATION_TASKS
from diffattn.lab.evaluation.icl.data import load_icl_data
from diffattn.lab.evaluation.lm_tasks.documents import TASKS, read_task
from diffattn.lab.evaluation.long_context.ruler.questions import read_questions
from diffattn.lab.evaluation.long_context.ruler.words import read_words
from icl_files import write_all
from language_models import prose
from lm_documents import write_task

STYLES = {
    "lf": ("\n", b""),
    "crlf": ("\r\n", b""),
    "cr": ("\r", b""),
    "byte-order mark": ("\n", b"\xef\xbb\xbf"),
    "crlf and byte-order mark": ("\r\n", b"\xef\xbb\xbf"),
}
FRAME = (
    "The Project Gutenberg EBook of A Book\n\nTitle: A Book\n\n"
    "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n\nProduced by Somebody\n\n\n"
    "{body}\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n\nLicence\n"
)


def lines_of(text, every=7):
    """Prose in lines and paragraphs."""
    words = text.split()
    lines = [" ".join(words[i : i + every]) for i in range(0, len(words), every)]
    return "\n".join(line + "\n" * (i % 5 == 4) for i, line in enumerate(lines)) + "\n"


def write_data(root, *, num_texts=6, sentences=1_500):
    """All kinds of files, with the line ends that this system writes.

    Texts below ``texts``; ``rows.jsonl``; a book with its frame; ``words.txt``; ``squad.json`` and
    ``hotpotqa.json``; ``halu``, ``tasks`` and ``icl`` for the protocols of these names.
    """
    root.mkdir()
    (root / "texts").mkdir()
    texts = [lines_of(prose(sentences, seed=i)) for i in range(num_texts)]
    for i, text in enumerate(texts):
        (root / "texts" / f"{i}.txt").write_text(text, encoding="utf-8")
    # Also what no text should change in: other separators of Unicode.
    odd = "a\u2028b\u2029c\x0bd\x0ce\x85f\n" * 3
    rows = [{"text": text[:400] + odd, "title": "a\nb"} for text in texts]
    write_lines(root / "rows.jsonl", rows)
    write_lines(root / "lines" / "rows.jsonl", rows)
    (root / "book.txt").write_text(FRAME.format(body=texts[0]), encoding="utf-8")
    words = [a + b + c for a in ("ba", "do", "ki", "lu") for b in "mnprst" for c in "aeiou"]
    (root / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    passages = [lines_of(prose(8, seed=100 + i)) for i in range(40)]
    paragraphs = [
        {
            "context": passage,
            "qas": [{"question": f"who\nis {i}", "answers": [{"text": f"a\n{i}"}]}],
        }
        for i, passage in enumerate(passages)
    ]
    write_json(root / "squad.json", {"data": [{"paragraphs": paragraphs}]})
    entries = [
        {
            "question": f"which\n{i}",
            "answer": f"b\n{i}",
            "context": [[f"Title {i}", [passage[:90], passage[90:]]], ["B", ["other\ntext"]]],
        }
        for i, passage in enumerate(passages)
    ]
    write_json(root / "hotpotqa.json", entries)
    for task in HALLUCINATION_TASKS.values():
        rows = generated_rows(task, 4, seed=0)
        broken = [{key: in_lines(value) for key, value in row.items()} for row in rows]
        write_lines(root / "halu" / f"{task.name}.jsonl", broken)
    for task in TASKS:
        write_task(root / "tasks", task, 6, 6)
    write_all(root / "icl")
    return root


def in_lines(value):
    """The same texts, in lines."""
    if isinstance(value, list):
        return [in_lines(item) for item in value]
    return value.replace(". ", ".\n")


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


def write_lines(path, rows):
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def restyle(source, target, style):
    """A copy of a folder whose lines end otherwise, also those within JSON texts."""
    end, mark = STYLES[style]
    escaped = json.dumps(end)[1:-1].encode()
    for path in sorted(Path(source).rglob("*")):
        copy = Path(target) / path.relative_to(source)
        if path.is_dir():
            continue
        content = path.read_bytes().replace(b"\r\n", b"\n")  # CSV is written with \r\n
        if path.suffix in (".json", ".jsonl"):
            content = content.replace(rb"\n", escaped)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(mark + content.replace(b"\n", end.encode()))
    return Path(target)


def documents(source):
    return [(d.name, d.text) for d in load_corpus(str(source))]


def questions(kind, path):
    data = read_questions(str(path), kind)
    return data.documents, data.questions


def task_documents(folder, task):
    data = read_task(folder, task)
    return data.evaluated, data.training


READERS = {
    "text file": ("texts/0.txt", lambda f: documents(f / "texts" / "0.txt")),
    "JSON lines": ("rows.jsonl", lambda f: documents(f / "rows.jsonl")),
    "data set folder": ("set/rows.jsonl", lambda f: [t for _, t in documents(f"hub:{f / 'set'}")]),
    "word list": ("words.txt", lambda f: read_words(str(f / "words.txt"), 60)),
    "SQuAD": ("squad.json", lambda f: questions("SQuAD", f / "squad.json")),
    "HotpotQA": ("hotpotqa.json", lambda f: questions("HotpotQA", f / "hotpotqa.json")),
    **{
        f"hallucination {name}": (
            f"halu/{name}.jsonl",
            lambda f, task=task: load_examples(task, str(f / "halu"), 4, 0),
        )
        for name, task in HALLUCINATION_TASKS.items()
    },
    **{
        f"lm_tasks {task}": (
            f"tasks/{task}.jsonl",
            lambda f, task=task: task_documents(f / "tasks", task),
        )
        for task in TASKS
    },
}
"""A file by what it holds, and who reads it below a folder of :func:`write_data`."""


def read_icl(name):
    return lambda folder: load_icl_data(name, str(folder / "icl"))
