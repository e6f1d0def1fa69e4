"""Changes of a program that change nothing of what it does, by its syntax tree: names, comments, helpers, order."""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Iterator

Body = list[ast.stmt]
WRITERS = ("append", "clear", "pop", "reset", "step", "update")  # methods that change what they belong to


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def bodies(tree: ast.AST) -> Iterator[Body]:
    """All lists of statements within functions, also those of loops and conditions."""
    for function in functions(tree):
        for node in ast.walk(function):
            for field in ("body", "orelse"):
                if isinstance(found := getattr(node, field, None), list) and found:
                    yield found


def names(tree: ast.AST, *kinds: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, kinds)}


def of_module(tree: ast.Module) -> set[str]:
    """Names that every function sees."""
    found = set(dir(builtins))
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            found |= names(node, ast.Store)
    return found


def parameters(tree: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def each_renamed(tree: ast.Module, old: set[str], ending: str) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in old:
            node.id += ending
        elif isinstance(node, ast.arg) and node.arg in old:
            node.arg += ending


def variables_renamed(tree: ast.Module) -> None:
    local = {name for function in functions(tree) for name in names(function, ast.Store)}
    each_renamed(tree, local - of_module(tree) - parameters(tree), "_of_step")


def parameters_renamed(tree: ast.Module) -> None:
    by_keyword = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    each_renamed(tree, parameters(tree) - by_keyword - of_module(tree) - {"self"}, "_given")


def documented(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is None:
            node.body.insert(
                0, ast.Expr(ast.Constant(f"What {node.name} does is told here.\n\n    In two paragraphs."))
            )


def annotated(tree: ast.Module) -> None:
    for body in bodies(tree):
        for place, node in enumerate(body):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                body[place] = ast.AnnAssign(node.targets[0], ast.Name("object", ast.Load()), node.value, 1)


def extracted(tree: ast.Module) -> None:
    """What a variable is set to becomes a function of the module."""
    known = of_module(tree)
    made: Body = []
    for body in bodies(tree):
        for node in body:
            if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant | ast.Name | ast.Tuple):
                continue
            used = sorted(names(node.value, ast.Load) - names(node.value, ast.Store) - known)
            name = f"helper_{len(made)}"
            given = [ast.arg(one) for one in used]
            arguments = ast.arguments(posonlyargs=[], args=given, kwonlyargs=[], kw_defaults=[], defaults=[])
            made.append(ast.FunctionDef(name, arguments, [ast.Return(node.value)], []))
            node.value = ast.Call(ast.Name(name, ast.Load()), [ast.Name(one, ast.Load()) for one in used], [])
    tree.body += made


def statements_reordered(tree: ast.Module) -> None:
    """Two assignments in a row change places if neither uses what the other sets."""

    def plain(node: ast.stmt) -> bool:
        methods = [one.func.attr for one in ast.walk(node) if isinstance(one, ast.Call) and hasattr(one.func, "attr")]
        named = isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
        return named and not any(name in WRITERS or name.endswith("_") for name in methods)

    for body in bodies(tree):
        place = 0
        while place + 1 < len(body):
            one, other = body[place : place + 2]
            apart = not names(one, ast.Store) & names(other, ast.Load, ast.Store) and not (
                names(other, ast.Store) & names(one, ast.Load)
            )
            if plain(one) and plain(other) and apart:
                body[place : place + 2] = other, one
                place += 1
            place += 1


def definitions_reordered(tree: ast.Module) -> None:
    places = [place for place, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    defined = [tree.body[place] for place in places]
    for place, node in zip(places, reversed(defined), strict=True):
        tree.body[place] = node


def loops_and_comprehensions(tree: ast.Module) -> None:
    """A list that a loop fills becomes a comprehension, and a comprehension becomes such a loop."""
    for body in bodies(tree):
        for place in range(len(body) - 1, -1, -1):
            match body[place : place + 2]:
                case [
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=[])),
                    ast.For(
                        body=[ast.Expr(ast.Call(ast.Attribute(ast.Name(id=of), "append"), [each]))], orelse=[]
                    ) as loop,
                ] if of == name:
                    made = ast.ListComp(each, [ast.comprehension(loop.target, loop.iter, [], 0)])
                    body[place : place + 2] = [ast.Assign([ast.Name(name, ast.Store())], made)]
                case [
                    ast.Assign(
                        targets=[ast.Name(id=name)],
                        value=ast.ListComp(each, [ast.comprehension(target, over, [], 0)]),
                    ),
                    *_,
                ]:
                    grow = ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load()), [each], [])
                    body[place : place + 1] = [
                        ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load())),
                        ast.For(target, over, [ast.Expr(grow)], []),
                    ]


def explained(tree: ast.Module) -> None:
    """What is returned, and the first argument of a call, have a variable of their own."""
    for number, body in enumerate(bodies(tree)):
        for place in range(len(body) - 1, -1, -1):
            name = f"meant_{number}_{place}"
            match body[place]:
                case ast.Return(value=(ast.Call() | ast.BinOp()) as part) as node:
                    node.value = ast.Name(name, ast.Load())
                case ast.Assign(value=ast.Call(args=[(ast.Call() | ast.BinOp()) as part, *_]) as node):
                    node.args[0] = ast.Name(name, ast.Load())
                case _:
                    continue
            body.insert(place, ast.Assign([ast.Name(name, ast.Store())], part))


def constants_named(tree: ast.Module) -> None:
    found: dict[tuple[type, int | float], str] = {}

    class Named(ast.NodeTransformer):
        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
            return node

        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            if not isinstance(node.value, int | float) or isinstance(node.value, bool):
                return node
            return ast.Name(found.setdefault((type(node.value), node.value), f"NUMBER_{len(found)}"), ast.Load())

    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            Named().visit(node)
    set_here = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)) for (_, value), name in found.items()]
    first = next(place for place, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    tree.body[first:first] = set_here


def conditions_turned(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            node.test = ast.UnaryOp(ast.Not(), node.test)
            node.body, node.orelse = node.orelse or [ast.Pass()], node.body


def asserted(tree: ast.Module) -> None:
    for function in functions(tree):
        checks = [
            ast.Assert(ast.Compare(ast.Name(one.arg, ast.Load()), [ast.IsNot()], [ast.Constant(None)]))
            for one in function.args.args
        ]
        function.body[0:0] = checks


def reformatted(tree: ast.Module) -> None:
    """Only the lines change: the tree is written anew."""


def commented(text: str) -> str:
    """A comment and an empty line before each statement within functions."""
    lines = text.splitlines()
    starts = {node.lineno for body in bodies(ast.parse(text)) for node in body}
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in starts and not line.lstrip().startswith(("@", "elif", "else")):
            indent = line[: len(line) - len(line.lstrip())]
            found += ["", f"{indent}# what follows is done here, and nowhere else"]
        found.append(line)
    return "\n".join(found) + "\n"


OF_TREES: tuple[Callable[[ast.Module], None], ...] = (
    variables_renamed, documented, extracted, statements_reordered, explained, annotated, parameters_renamed,
    loops_and_comprehensions, constants_named, conditions_turned, definitions_reordered, asserted, reformatted,
)  # fmt: skip


def changed(text: str) -> Iterator[tuple[str, str]]:
    """The name of each change, and the text of the program with it; those that find nothing to change are left out."""
    plain = ast.unparse(ast.parse(text))
    yield "commented", commented(text)
    for change in OF_TREES:
        tree = copy.deepcopy(ast.parse(text))
        change(tree)
        made = ast.unparse(ast.fix_missing_locations(tree))
        if made != plain or change is reformatted:
            yield change.__name__, made + "\n"
