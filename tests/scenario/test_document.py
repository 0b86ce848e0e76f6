import pytest

from kvsim.errors import InputError, Problem
from kvsim.scenario.document import read_document


def read(tmp_path, text):
    path = tmp_path / "d.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_document(path)


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    document = read(tmp_path, "a: 1e-3\nb: 12e3\nc: no\nd: 1:30\ne: true\nf: ~\ng: 'x'\nh: 010\n")
    assert document.data == {
        "a": 0.001, "b": 12000.0, "c": "no", "d": "1:30", "e": True, "f": None, "g": "x", "h": 10,
    }  # fmt: skip
    own = {type(value) for value in document.data.values()}
    assert own == {float, str, bool, int, type(None)}


def test_lines_are_those_of_the_keys(tmp_path):
    document = read(tmp_path, "# c\na:\n  b: {c: 1,\n      d: 2}\n  e:\n    - 1\n    - {f: 3}\n")
    assert document.line_of(()) is None
    assert document.line_of(("a",)) == 2
    assert document.line_of(("a", "b", "c")) == 3
    assert document.line_of(("a", "b", "d")) == 4
    assert document.line_of(("a", "e", 1, "f")) == 7


def test_the_line_of_something_absent_is_that_of_its_parent(tmp_path):
    document = read(tmp_path, "x: 1\na:\n  b: 2\n")
    assert document.line_of(("a", "z")) == 2
    assert document.line_of(("a", "b", "z", 3)) == 3
    assert document.line_of(("nothing",)) is None


def test_merge_keys_and_aliases(tmp_path):
    document = read(tmp_path, "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\n")
    assert document.data == {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}}
    assert document.line_of(("more", "y")) == 2
    assert document.line_of(("more", "x")) == 2


def test_the_comment_at_the_top(tmp_path):
    assert read(tmp_path, "# One\n# two?\n\n# not this\na: 1\n").comment == "One two?"
    assert read(tmp_path, "a: 1\n# not this\n").comment == ""


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 'duplicate key "a"'),
        ("a: 1\nb: [1,\nc: 2\n", 3, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("a: *nowhere\n", 1, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
        ("a: 1\nb: !!python/object:os.system 3\n", 2, "tags like"),
        ("a: !mine {b: 1}\n", 1, "tags like !mine"),
        ("&x\na: 1\nb: *x\n", 3, "contains it"),
        ("a: 1\n5: 2\n", 2, "the key 5 must be text"),
        ("a: 1\nb: {no: 1, 1.5: 2}\n", 2, "the key 1.5 must be text"),
        ("- 1\n", 1, "must hold a mapping"),
        ("", 1, "must hold a mapping"),
        ("just words\n", 1, "must hold a mapping"),
        ("a: 1\nb: \x00\n", 2, "not valid YAML"),
        (b"a: \xff\n", None, "not UTF-8"),
    ],
)
def test_broken_yaml_is_told_with_its_line(tmp_path, text, line, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        read(tmp_path, text)
    assert [(p.file, p.line) for p in caught.value.problems] == [(str(tmp_path / "d.yaml"), line)]


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(InputError, match="can't be read"):
            read_document(path)


def test_a_problem_is_located(tmp_path):
    document = read(tmp_path, "a:\n  b: 2\n")
    where = document.located(Problem("is wrong"), ("a", "b"))
    assert str(where) == f"{tmp_path / 'd.yaml'}:2: a.b: is wrong"


def test_a_file_that_is_nested_too_deep_is_refused(tmp_path):
    for depth in (51, 300, 5000):
        with pytest.raises(InputError, match="nested deeper than 50 levels"):
            read(tmp_path, "a: " + "[" * depth + "]" * depth)
    assert read(tmp_path, "a: " + "[" * 49 + "]" * 49).data


def test_aliases_can_not_blow_a_file_up(tmp_path):
    lines = ["a0: &a0 [1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(InputError, match="holds more than 100000 values"):
        read(tmp_path, "\n".join(lines))
    assert len(read(tmp_path, "\n".join(lines[:4])).data["a3"]) == 10
