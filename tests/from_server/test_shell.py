import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.from_server.shell import commands


def only(text, variables=None):
    (words,) = commands(text, variables)
    return words


@given(st.lists(st.text(min_size=0, max_size=8), min_size=1, max_size=5))
def test_words_quoted_by_the_standard_library_come_back(words):
    assert only(shlex.join(words)) == words


@given(st.lists(st.text("ab'\"\\ -=.", max_size=6), min_size=1, max_size=4).map(shlex.join))
def test_quotes_and_escapes_are_split_as_the_standard_library_does(text):
    assert only(text) == shlex.split(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a \\\n  b \\  \n c", ["a", "b", "c"]),
        ("a \\\r\n b", ["a", "b"]),
        ("# first\na b # c\n", ["a", "b"]),
        ("a x#y", ["a", "x#y"]),
        ("a > log 2>&1", ["a"]),
        ("a --x=\"1 2\"'3'", ["a", "--x=1 23"]),
        ('a "\\"b\\" \\$c"', ["a", '"b" $c']),
        ("a ''", ["a", ""]),
        ("a $HOME/x ${HOME} $(cat x) `cat x`", ["a", "$HOME/x", "${HOME}", "$(cat x)", "`cat x`"]),
    ],
)
def test_a_command_of_a_script(text, words):
    assert only(text) == words


def test_commands_end_where_the_shell_ends_them():
    assert list(commands("a && b || c; d | e\n(f) &\n")) == [[name] for name in "abcdef"]


def test_variables_that_the_script_sets_are_put_in():
    script = "export A=x B='y z'\nC=1\nrun $A ${B} \"$B\" '$A' ${D:-4} ${D-} $(A) $E$C"
    expected = ["run", "x", "y", "z", "y z", "$A", "4", "", "x", "$E1"]
    assert list(commands(script))[-1] == expected
    assert only("run $A", {"A": "given"}) == ["run", "given"]
    assert only('run "\\$A$A"', {"A": "given"}) == ["run", "$Agiven"]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a b'"])
def test_an_open_quote_is_refused(text):
    with pytest.raises(InputError, match="not closed"):
        list(commands(text))


def test_words_are_added_to_a_variable():
    assert list(commands("A=x\nA+=' y'\nB+=z\nrun $A $B"))[-1] == ["run", "x", "y", "z"]


@pytest.mark.parametrize(
    "branch",
    [
        "if [ -n $D ]; then A=y; fi",
        "if [ -n $D ]; then\n  A=y\nfi",
        "if a; then b; else A+=y; fi",
        "for i in 1 2; do A=$i; done",
    ],
)
def test_what_a_branch_or_a_loop_sets_is_not_known(branch):
    assert list(commands(f"A=x B=y\n{branch}\nrun $A $B"))[-1] == ["run", "$A", "y"]
    assert list(commands(f"{branch}\nA=x\nrun $A"))[-1] == ["run", "x"]
