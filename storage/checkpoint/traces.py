"""Releases objects of a traced graph that torch would keep for as long as the process runs."""

from __future__ import annotations

import linecache
import weakref

import torch


def release_trace(graph: torch.fx.Graph) -> None:
    """Releases what tracing or loading a graph left behind in torch; the graph stays usable.

    torch's caches of symbolic shapes and of generated source text have no bound and keep all of a trace that has ended.
    A trace refers to its tensors, and they, in C++, to the trace: a cycle that the garbage collector cannot see.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.fx.graph_module import _loader

    for node in graph.nodes:
        value = node.meta.get("val")
        shapes = value.fake_mode.shape_env if isinstance(value, FakeTensor) else None
        if shapes is not None:
            shapes.tracked_fakes = []
            shapes.fake_tensor_cache.clear()
    FakeTensorMode.cache_clear()
    for method in vars(ShapeEnv).values():
        if clear := getattr(method, "cache_clear", None):
            clear()
    for key in list(_loader.eval_cache):
        _release_source(key)


def graph_module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    """Makes a module that computes a graph. The source text that torch generates for it is released with it.

    torch keeps the text of every such module, some kilobytes, for as long as the process runs.
    """
    module = torch.fx.GraphModule(root, graph)
    weakref.finalize(module, _release_source, type(module).forward.__code__.co_filename)
    return module


def _release_source(key: str) -> None:
    from torch.fx.graph_module import _loader

    _loader.eval_cache.pop(key, None)
    linecache.cache.pop(key, None)
