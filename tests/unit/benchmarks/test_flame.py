"""Checks that what perf prints becomes stacks, a table by library, and a flame graph."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.flame import group, parse, rooted, table
from benchmarks.flame_graph import flame_graph

PRINTED = """
 41
	ffffffff81000010 tcp_sendmsg+0x40 ([kernel.kallsyms])
	ffffffff81000020 do_syscall_64+0x10 ([kernel.kallsyms])
	7f0000000010 send+0x4 (/lib/x86_64-linux-gnu/libc.so.6)

 41
	7f0000000020 at::native::addmm(at::Tensor const&)+0x1 (/x/torch/lib/libtorch_cpu.so)
	7f0000000030 [unknown] (/x/uvloop/loop.cpython-311-x86_64-linux-gnu.so)

 42
	ffffffff81000030 futex_wait+0x40 ([kernel.kallsyms])
""".splitlines()


def test_stacks_begin_outside_and_name_libraries() -> None:
    samples = list(parse(PRINTED))
    assert [pid for pid, _ in samples] == [41, 41, 42]
    assert samples[0][1] == (("send", "libc"), ("do_syscall_64", "[kernel"), ("tcp_sendmsg", "[kernel"))
    assert samples[1][1] == (("[unknown]", "loop"), ("at::native::addmm(at::Tensor const&)", "libtorch_cpu"))
    assert [group(stack) for _, stack in samples] == ["kernel: sockets", "libtorch_cpu", "kernel: futex"]


def test_the_table_has_microseconds_of_a_request() -> None:
    lines = list(table(list(parse(PRINTED)), 1.0, requests=1000))
    assert lines[0] == "process 41: 4.0 us"  # two samples of 2,004 us over a thousand requests
    assert lines[1].split() == ["2.0", "us", "50.0", "%", "kernel:", "sockets"]
    assert lines[3] == "process 42: 2.0 us"
    assert lines[-1].split() == ["2.0", "us", "[kernel:", "futex_wait"]


def test_a_graph_begins_with_processes() -> None:
    pid, stack = list(parse(PRINTED))[1]
    assert rooted(pid, stack)[:2] == (("process 41", ""), ("libtorch_cpu", "libtorch_cpu"))
    assert [name for name, _ in rooted(pid, stack)[2:]] == ["at::native::addmm(at::Tensor const&)"]


def test_a_function_is_as_wide_as_its_samples() -> None:
    drawn = ElementTree.fromstring(flame_graph([stack for _, stack in parse(PRINTED)]))
    space = "{http://www.w3.org/2000/svg}"
    titles = [group.findtext(f"{space}title") for group in drawn.iter(f"{space}g")]
    assert titles[0] == "all (): 100.00 %"
    assert "at::native::addmm(at::Tensor const&) (libtorch_cpu): 33.33 %" in titles
    widths = [float(shape.attrib["width"]) for shape in drawn.iter(f"{space}rect")]
    assert max(widths) == 1600.0
