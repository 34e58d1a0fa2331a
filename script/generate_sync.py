"""Writes the synchronous versions of the clients and of the admin, from the asynchronous classes.

::

    .venv/bin/python script/generate_sync.py            # write the modules
    .venv/bin/python script/generate_sync.py --check    # change nothing; exit with 1 if one of them is out of date

Each public method of ``Producer``, of the consumers and of ``Admin`` appears in its ``Sync…`` class with the same
parameters, types and documentation, so that ``help()``, mypy and editors know them:

=====================================  ===========================================================================
In the asynchronous class              In the synchronous class
=====================================  ===========================================================================
``async def send(…)``                  ``def send(…)``, which waits for the result
``def subscribe(…)``, properties       the same, called on the loop's thread
``__aiter__``                          ``__iter__`` of the hand-written base class
``__aenter__`` and ``__aexit__``       ``__enter__`` and ``__exit__`` of the hand-written base class
``await``, ``async with`` in examples  the same without ``await`` and ``async``
=====================================  ===========================================================================

The modules of ``BASES`` are written by hand. ``HAND_WRITTEN``, ``LEFT_OUT`` and ``WRAPPED`` list what is not derived by
these rules, each with its reason.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from ternmq.admin.admin import Admin
from ternmq.admin.blocking_base import SyncAdminBase, SyncNoun
from ternmq.client.blocking.base import SyncClient, in_thread
from ternmq.client.blocking.loops import SyncLooping
from ternmq.client.blocking.sends import SyncSending
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.consume.share import ShareConsumer
from ternmq.client.send.producer import Producer

COMMAND: Final = ".venv/bin/python script/generate_sync.py"

#: Which classes get a synchronous version, and in which module it stands.
MODULES: Final = {
    "ternmq.client.blocking.producer": (Producer,),
    "ternmq.client.blocking.push": (PushConsumer,),
    "ternmq.client.blocking.pop": (PopConsumer,),
    "ternmq.client.blocking.share": (ShareConsumer,),
    "ternmq.client.blocking.pull": (PullConsumer, LitePullConsumer),
    "ternmq.admin.blocking": (Admin,),
}
#: The hand-written base class of each synchronous version.
BASES: Final[dict[type, type]] = {
    Producer: SyncSending,
    PushConsumer: SyncLooping,
    PopConsumer: SyncLooping,
    ShareConsumer: SyncLooping,
    PullConsumer: SyncClient,
    LitePullConsumer: SyncLooping,
    Admin: SyncAdminBase,
}
#: Public methods that are not derived; the base class has them.
HAND_WRITTEN: Final = {
    "Producer.send": "it is the hottest of all calls, and needs no task on the loop",
    "Producer.send_batch": "as `send`, it begins in the calling thread",
    "Producer.send_nowait": "its future is one for threads, and an invalid message is refused in the caller's thread",
    "Producer.transaction": "its result is a context manager, which has a synchronous version of its own",
    "ListeningConsumer.__aiter__": "its iterator is another class",
    "LitePullConsumer.__aiter__": "its iterator is another class",
}
#: Parameters that synchronous versions do not have.
LEFT_OUT: Final = {
    "env": "the simulator's clock and network belong to a loop of its own, not to a thread",
}
#: Parameters that are handed over in another form, by their type.
WRAPPED: Final = {
    "QueueListener": in_thread,  # it may block, which nothing on the loop's thread may do
}
#: What the class documentation says of threads, instead of the sentence that ``_LOOP_NOTE`` finds, and of callbacks.
THREADS: Final = (
    "Its methods may be called from any thread, and wait for their result. All synchronous clients of a process share "
    "one background thread with an event loop."
)
CALLBACKS: Final[dict[type, str]] = {
    Producer: " Hooks and selectors run in that thread and must not block.",
    PushConsumer: " Plain listeners run in threads of their own, and may use synchronous clients.",
    PopConsumer: " Plain listeners run in threads of their own, and may use synchronous clients.",
    ShareConsumer: " Plain listeners run in threads of their own, and may use synchronous clients.",
}
_LOOP_NOTE: Final = re.compile(r"^Call its methods on the event loop's thread;[^.]*\.", re.MULTILINE)

_LINE_LENGTH: Final = 120
_ASYNC_WORDS: Final = re.compile(r"\bawait |\basync (?=with |for )")


def main(arguments: list[str]) -> int:
    written = {_path_of(module): generated(module) for module in MODULES}
    stale = [path for path, text in written.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is out of date; run `{COMMAND}`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(written[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


def generated(module: str) -> str:
    """The text of a module with the synchronous versions of its classes."""
    classes = MODULES[module]
    imports = Imports()
    bodies: list[str] = []
    for source in classes:
        bodies += [_admin(imports), *_nouns(imports)] if source is Admin else [_client(source, imports)]
    names = " and ".join(f"``{source.__name__}``" for source in classes)
    head = f'''\
# Generated by `{COMMAND}`; do not edit.
"""Synchronous versions of {names}, for programs without asyncio.

They are derived from the asynchronous classes. To change them, change those, or the generator, and run it again.
"""

from __future__ import annotations

'''
    return _formatted(head + imports.text() + "\n\n".join(bodies), _path_of(module))


# --- Classes --------------------------------------------------------------------------------------------------------


def _client(source: type, imports: Imports) -> str:
    """``class SyncProducer``, from ``Producer``."""
    base = BASES[source]
    name = imports.of_class(source)
    parameter = f"[{name}]" if getattr(base, "__parameters__", ()) else ""
    body = [_class_docs(source)]
    for method in _methods(source):
        if method.name == "__init__":
            body.append(_method(method, f"super().__init__({name}({_passed_on(method, imports)}))", imports))
        elif not _is_by_hand(source, method.name):
            body.append(_derived(method, "self._async", imports))
    return f"class Sync{source.__name__}({imports.of_class(base)}{parameter}):\n" + _indented("\n\n".join(body))


def _admin(imports: Imports) -> str:
    """``class SyncAdmin``, whose nouns are made by ``_nouns``."""
    (start,) = (method for method in _methods(Admin) if method.name == "__init__")
    lines = [f"super().__init__({_passed_on(start, imports)})"]
    for attribute, noun in _nouns_of_admin():
        lines.append(f"self.{attribute} = Sync{noun.__name__}(lambda: self._admin().{attribute}, self._run)")
    body = [_class_docs(Admin), _method(start, "\n".join(lines), imports)]
    return f"class SyncAdmin({imports.of_class(SyncAdminBase)}):\n" + _indented("\n\n".join(body))


def _nouns(imports: Imports) -> Iterator[str]:
    """``class SyncTopicAdmin`` and the others, from ``TopicAdmin``."""
    base = imports.of_class(SyncNoun)
    for _, noun in _nouns_of_admin():
        methods = [_derived(method, "self._noun()", imports) for method in _methods(noun) if method.name != "__init__"]
        head = f"class Sync{noun.__name__}({base}[{imports.of_class(noun)}]):\n"
        yield head + _indented("\n\n".join([_class_docs(noun), *methods]))


def _nouns_of_admin() -> Iterator[tuple[str, type]]:
    """``("topics", TopicAdmin)`` and the others: the public attributes that ``Admin.__init__`` sets."""
    (start,) = (method for method in _methods(Admin) if method.name == "__init__")
    for statement in start.node.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=ast.Call(func=ast.Name(id=name))):
                if not attribute.startswith("_"):
                    yield attribute, getattr(start.module, name)


def _class_docs(source: type) -> str:
    docs = inspect.getdoc(source)
    assert docs, f"{source.__name__} has no documentation"
    docs = _LOOP_NOTE.sub(THREADS + CALLBACKS.get(source, ""), docs)
    for parameter in LEFT_OUT:
        docs = re.sub(rf"\n    {parameter}: .*(\n     .*)*", "", docs)
    return _docs(docs)


# --- Methods --------------------------------------------------------------------------------------------------------


class Method:
    """A method of an asynchronous class, as its source has it."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef, module: ModuleType) -> None:
        self.node = node
        #: Where the names in its signature are known.
        self.module = module
        self.name = node.name
        self.is_async = isinstance(node, ast.AsyncFunctionDef)
        self.is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
        args = node.args
        _leave_out(args)
        self.positional = args.args[1:]
        self.keywords = args.kwonlyargs
        unnamed = [*args.posonlyargs, *filter(None, (args.vararg, args.kwarg))]
        assert not unnamed, f"{self.name}: give its parameters names"
        assert node.returns is not None


def _methods(source: type) -> Iterator[Method]:
    """The methods of a class and of its base classes, each once: ``__init__``, iteration, and all that are public."""
    seen: set[str] = set()
    for cls in source.__mro__:
        if not cls.__module__.startswith("ternmq."):
            continue
        module = sys.modules[cls.__module__]
        tree = ast.parse(inspect.getsource(module))
        (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
        for node in definition.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in seen:
                continue
            if node.name in ("__init__", "__aiter__") or not node.name.startswith("_"):
                seen.add(node.name)
                yield Method(node, module)


def _is_by_hand(source: type, name: str) -> bool:
    is_listed = any(f"{cls.__name__}.{name}" in HAND_WRITTEN for cls in source.__mro__)
    has_one = hasattr(BASES[source], name.replace("__aiter__", "__iter__"))
    assert is_listed == has_one, f"{source.__name__}.{name}: HAND_WRITTEN and the base class disagree"
    return is_listed


def _leave_out(args: ast.arguments) -> None:
    """Remove the parameters of ``LEFT_OUT``, which are all keywords with a default."""
    kept = [at for at, argument in enumerate(args.kwonlyargs) if argument.arg not in LEFT_OUT]
    args.kwonlyargs = [args.kwonlyargs[at] for at in kept]
    args.kw_defaults = [args.kw_defaults[at] for at in kept]


def _derived(method: Method, target: str, imports: Imports) -> str:
    """A method that calls the one of ``target``."""
    call = f"{target}.{method.name}"
    if not method.is_property:
        call += f"({_passed_on(method, imports)})"
    result = f"self._run({call})" if method.is_async else f"self._do(lambda: {call})"
    returns_nothing = isinstance(method.node.returns, ast.Constant) and method.node.returns.value is None
    return _method(method, result if returns_nothing else f"return {result}", imports)


def _passed_on(method: Method, imports: Imports) -> str:
    """The arguments of a call with the parameters that the method itself was given."""
    return ", ".join(
        [_argument(one, imports) for one in method.positional]
        + [f"{one.arg}={_argument(one, imports)}" for one in method.keywords]
    )


def _argument(parameter: ast.arg, imports: Imports) -> str:
    wrap = WRAPPED.get(ast.unparse(parameter.annotation)) if parameter.annotation is not None else None
    if wrap is None:
        return parameter.arg
    imports.add(wrap.__module__, wrap.__name__)
    return f"{wrap.__name__}({parameter.arg})"


def _method(method: Method, body: str, imports: Imports) -> str:
    """A plain method with the signature and the documentation of ``method``."""
    node = method.node
    assert node.returns is not None
    imports.of_names(node.args, method.module)
    imports.of_names(node.returns, method.module)
    docs = ast.get_docstring(node)
    head = "@property\n" if method.is_property else ""
    head += f"def {method.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:\n"
    return head + _indented((_docs(docs) + "\n" if docs else "") + body)


# --- Text -----------------------------------------------------------------------------------------------------------


class Imports:
    """The imports of a generated module."""

    def __init__(self) -> None:
        self._home_of: dict[str, str] = {}

    def add(self, module: str, name: str) -> str:
        known = self._home_of.setdefault(name, module)
        assert known == module, f"{name} would be imported from {known} and from {module}; rename one of the two"
        return name

    def of_class(self, cls: type) -> str:
        return self.add(cls.__module__, cls.__name__)

    def of_names(self, tree: ast.AST, module: ModuleType) -> None:
        """All names in a signature, from where ``module`` has them."""
        homes = _homes(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.add(homes.get(node.id, module.__name__), node.id)

    def text(self) -> str:
        return "".join(f"from {module} import {name}\n" for name, module in self._home_of.items()) + "\n\n"


def _homes(module: ModuleType) -> dict[str, str]:
    """From which module each name of a module was imported."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def _docs(docs: str) -> str:
    """A docstring for synchronous use: examples without ``await``, and the names of the synchronous classes."""
    docs = _ASYNC_WORDS.sub("", docs)
    docs = re.sub(rf"(?<!\w)({'|'.join(source.__name__ for source in BASES)})(?=\(|``|\.)", r"Sync\1", docs)
    docs = "\n\n".join(_filled(paragraph) for paragraph in f'"""{docs}'.split("\n\n"))
    return docs + ('\n"""' if "\n" in docs else '"""')


def _filled(paragraph: str) -> str:
    """A paragraph with lines of full length again; examples and lists stay as they are."""
    is_prose = not any(line.startswith((" ", "-", "::")) for line in paragraph.splitlines())
    # The indentation of a method's documentation.
    return textwrap.fill(paragraph, _LINE_LENGTH - 8, break_on_hyphens=False) if is_prose else paragraph


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ") + "\n"


def _formatted(text: str, path: Path) -> str:
    """As ``ruff format`` has it, with the imports in order."""
    for arguments in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(path), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _path_of(module: str) -> Path:
    package, _, name = module.rpartition(".")
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], f"{name}.py").resolve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
