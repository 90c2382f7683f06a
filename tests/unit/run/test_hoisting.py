"""Training steps found in the text of a program, their functions beside it, and advice."""

from __future__ import annotations

import ast
import textwrap
import traceback
from typing import Any

import pytest

from evener.run.liveness import is_deferrable, names_of
from evener.run.regions import HOOK, Hoisted, advice_for, hoist_steps

LOOP = """\
for x, y in data:
    with GradientTape() as tape:
        loss = measure(model(x), y)
    gradients = tape.gradient(loss, model.variables)
    optimizer.apply_gradients(zip(gradients, model.variables))
"""


def found_in(text: str) -> Hoisted:
    return hoist_steps(textwrap.dedent(text), "train.py")


def results_of(more: str) -> tuple[str, ...]:
    """Return what the step of `LOOP` leaves behind for more lines after it."""
    return found_in(LOOP + more).regions[0].results


@pytest.mark.parametrize(
    ("text", "read", "bound", "certain"),
    [
        ("a = b", "b", "a", "a"),
        ("a += 1", "a", "a", "a"),
        ("a = 1\nb = a", "", "ab", "ab"),
        ("if c: a = 1\nd = a", "ac", "ad", "d"),
        ("if c: a = 1\nelse: a = 2\nd = a", "c", "ad", "ad"),
        ("for a in b: c = a\nd = c", "bc", "acd", "d"),
        ("while a: b = 1", "a", "b", ""),
        ("with a as b: c = b", "a", "bc", "bc"),
        ("a = [b for b in c]", "c", "a", "a"),
        ("a = [b for c in d]", "bd", "a", "a"),
        ("a = lambda b: b + c", "c", "a", "a"),
        ("a.b = c", "ac", "", ""),
        ("a[b] = c", "abc", "", ""),
        ("a, (b, *c) = d", "d", "abc", "abc"),
        ("a = (b := c)", "c", "ab", "a"),
        ("a = 1\ndel a\nb = a", "a", "ab", "b"),
    ],
)
def test_names(text: str, read: str, bound: str, certain: str) -> None:
    names = names_of(ast.parse(text).body)
    assert (names.read, names.bound, names.certain) == (set(read), set(bound), set(certain))


@pytest.mark.parametrize(
    ("more", "results"),
    [
        ("", ()),
        ("    print(loss)", ("loss",)),
        ("print(loss)", ("loss",)),
        ("loss = 1\nprint(loss)", ()),
        ("def show(): print(loss)", ("loss",)),
        ("def show(loss): print(loss)", ()),
        ("print([loss for loss in range(3)])", ()),
        ("with GradientTape() as tape: loss = 1\nprint(loss, gradients)", ("gradients",)),
        ("try:\n    pass\nfinally:\n    print(loss)", ("loss",)),
    ],
)
def test_results_are_what_is_read_later(more: str, results: tuple[str, ...]) -> None:
    assert results_of(more) == results


def test_what_the_next_turn_of_a_loop_reads_is_a_result() -> None:
    before = "total = 0\nfor x in data:\n    print(total)\n"
    step = "    with GradientTape() as tape: total = f(x)\n    tape.gradient(total, w)\n"
    assert found_in(before + step).regions[0].results == ("total",)
    own = LOOP.replace("loss = measure(model(x), y)", "loss = loss + x")
    assert found_in(own).regions[0].results == ("loss",)
    assert "loss" in found_in(own).regions[0].parameters


def test_regions_shrink_from_the_step_with_its_surroundings_to_the_gradients() -> None:
    text = (
        LOOP.replace("    with", "    x = scale(x)\n    with", 1) + "    mean.update_state(loss)\n"
    )
    regions = found_in(text).regions
    assert [(region.first, region.last) for region in regions] == [(2, 7), (3, 6), (3, 5)]
    assert [region.results for region in regions] == [(), ("loss",), ("gradients", "loss")]


TAPE = "with GradientTape(persistent=True) as tape:\n    loss = f(x)\n"


@pytest.mark.parametrize(
    ("step", "span"),
    [
        (f"with tf.device(a):\n{textwrap.indent(TAPE, '  ')}opt.minimize(loss)", (2, 5)),
        (TAPE + "with tf.device(a): g = tape.gradient(loss, w)\nopt.apply_gradients(g)", (2, 5)),
        (TAPE + "for v in a:\n    o.apply_gradients(tape.gradient(loss, v))\ndel tape", (2, 6)),
        (TAPE + "    with tape.stop_recording(): n = g(loss)\nopt.minimize(loss)", (2, 5)),
        # It holds the whole step: the block in it is hoisted.
        (f"with tf.device(a):\n{textwrap.indent(TAPE, '  ')}  opt.minimize(loss)", (3, 5)),
        (f"with lock:\n{textwrap.indent(TAPE, '  ')}opt.minimize(loss)", None),
        (TAPE + "for x in more:\n    opt.apply_gradients(other.gradient(f(x), w))", None),
    ],
)
def test_blocks_and_loops_that_are_parts_of_a_step(step: str, span: tuple[int, int] | None) -> None:
    regions = found_in("for x in data:\n" + textwrap.indent(step, "    ")).regions
    assert (regions and (regions[0].first, regions[0].last)) == (span or ())


@pytest.mark.parametrize(
    "text",
    [
        "with GradientTape() as tape: loss = f(x)\ntape.gradient(loss, w)\n",
        LOOP.replace("for x, y in data:", "@tf.function\ndef step(x, y):"),
        LOOP.replace("for x, y in data:", "async def step(x, y):"),
        LOOP + "print(globals())",
        LOOP + "    tape.gradient(loss, x)\n    print(tape)",
        LOOP.replace("loss = measure", "y = next(data); loss = measure"),
        LOOP.replace("loss = measure", "self.x = x; loss = measure"),
        LOOP.replace("loss = measure", "seen.append(x); loss = measure"),
        LOOP.replace("loss = measure", "yield x; loss = measure"),
    ],
    ids=["once", "decorated", "async", "globals", "tape", "next", "attribute", "append", "yield"],
)
def test_what_is_not_hoisted(text: str) -> None:
    assert not [region for region in found_in(text).regions if region.first <= 2]


@pytest.mark.parametrize(
    ("statement", "line", "reason"),
    [
        ("self.x = x", 3, "it changes self.x"),
        ("seen.append(x)", 3, "seen.append() changes"),
        ("n = x.numpy()", 3, "x.numpy() gives a number"),
        ("z = tf.random.shuffle(x)", 3, "tf.random.shuffle() draws"),
        ("import a", 3, "`import`"),
    ],
)
def test_obstacles_name_their_line(statement: str, line: int, reason: str) -> None:
    text = LOOP.replace("        loss", f"        {statement}\n        loss", 1)
    [obstacle] = found_in(text).obstacles
    assert obstacle.line == line
    assert reason in obstacle.reason


def test_what_may_use_any_name_is_the_obstacle_of_all_steps() -> None:
    [obstacle] = found_in("eval(words)\n" + LOOP).obstacles
    assert (obstacle.line, obstacle.reason) == (1, "eval may use any name")


@pytest.mark.parametrize(
    ("text", "deferrable"),
    [
        ("print('loss %f' % loss.numpy())", True),
        ("print(f'{float(loss):.3f}', i)", True),
        ("if i % 10 == 0: print(i)", True),
        ("losses.append(float(loss))", True),
        ("losses.append(loss)", False),
        ("tf.print('loss', loss)", True),
        ("print(model(x))", False),
        ("print(self.count)", False),
        ("if i: print(i)\nelse: n = 1", False),
    ],
)
def test_what_may_run_behind_the_step(text: str, deferrable: bool) -> None:
    assert is_deferrable(ast.parse(text).body[0]) is deferrable


class Hook:
    """Runs the function of every region, or the text as written."""

    def __init__(self, *, takes: bool) -> None:
        self.takes, self.calls = takes, list[int]()

    def __call__(self, number: int, body: Any, read: Any) -> Any:
        self.calls.append(number)
        return body(*read()) if self.takes else None

    def as_written(self, number: int) -> Any:
        import contextlib

        return contextlib.nullcontext()


PROGRAM = """
class GradientTape:
    def __enter__(self): return self
    def __exit__(self, *_): return None
    def gradient(self, loss, w): return loss * w
seen = []
def step(x):
    with GradientTape() as tape:
        loss = 10 // x
        print("loss", loss)
    return tape.gradient(loss, 2) + 1
for x in (5, 2):
    with GradientTape() as tape:
        loss = 10 // x
    g = tape.gradient(loss, 3)
    seen.append((loss, g, step(x)))
"""


@pytest.mark.parametrize("takes", [True, False])
def test_both_ways_do_the_same(takes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = hoist_steps(PROGRAM, "train.py")
    names: dict[str, Any] = {HOOK: Hook(takes=takes)}
    exec(compile(found.tree, "train.py", "exec"), names)
    assert names["seen"] == [(2, 6, 5), (5, 15, 11)]
    assert capsys.readouterr().out == "loss 2\nloss 5\n"
    assert len(names[HOOK].calls) >= 4
    with pytest.raises(ZeroDivisionError) as error:
        names["step"](0)
    lines = [frame.lineno for frame in traceback.extract_tb(error.value.__traceback__)]
    assert lines[-1] == PROGRAM.splitlines().index("        loss = 10 // x") + 1


SOURCE = textwrap.dedent("""\
    import tensorflow as tensor

    class Trainer:
        def step(self, x):
            with tensor.GradientTape() as tape:
                loss = self.model(x)
            self.apply(tape.gradient(loss, self.w))

    def train(data):
        for x in data:
            with tensor.GradientTape() as tape:
                loss = model(x)
            optimizer.apply(tape.gradient(loss, w))

    @decorated
    def other(x):
        def inner():
            with tensor.GradientTape() as tape:
                loss = model(x)
            return tape.gradient(loss, w)
        optimizer.apply(inner())

    optimizer.apply(sums)
    """)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (7, "put @tensor.function above line 4, def step"),
        (13, "make a function of lines 11 to 13, with @tensor.function above it"),
        (21, "put @tensor.function above line 15, def other"),
        (23, "make a function of the step, with @tensor.function above it"),
    ],
)
def test_the_line_to_change_is_named(line: int, expected: str) -> None:
    assert advice_for(SOURCE, line) == f"{expected}, and all devices compute it"


def test_a_traced_function_needs_the_batch() -> None:
    assert "give the traced function the batch" in (advice_for(SOURCE, 13, is_traced=True) or "")
    assert advice_for(SOURCE, 23, is_traced=True) is None


def test_a_text_that_is_no_python_gets_general_advice() -> None:
    assert advice_for("def f(", 1) == (
        "make a function of the step, with @tf.function above it, and all devices compute it"
    )
