"""The rule by which a column of a table gets its value is in one module, whichever job writes the table."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from manifold.contracts import tables
from manifold.contracts.tables import EVERY_RUN_TABLE, SEGMENTS, Table
from tests.support.servers import ROOT

TABLES = {name: value for name, value in vars(tables).items() if isinstance(value, Table)}
WRITERS = ("append", "overwrite", "insert_or_delete_rows")  # methods of an attempt, and a function; rows follow the table
REFUSED = "refused"  # the frames that become rows of quarantine
ADDS_TO_LIST = "append"
OTHER_FRAMES = ("join", "where", "filter")  # methods whose arguments choose rows, and give them no values
NO_FRAMES = {"attempt", "table", *TABLES}  # arguments before the rows


@dataclass(frozen=True)
class Module:
    """A module of the pipelines."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """By local name: the module and the name in it."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom) and node.module]
        return {alias.asname or alias.name: (str(node.module), alias.name) for node in found for alias in node.names}


@cache
def _parsed(name: str, source: str) -> Module:
    return Module(name, source)


class Rules:
    """Where columns are made: by following the rows of each write to the expressions that name columns."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.modules = {name: _parsed(name, source) for name, source in modules.items()}
        self.found: dict[tuple[str, str], set[str]] = defaultdict(set)  # (table, column) → modules
        for module in self.modules.values():
            for function in module.functions.values():
                for table, rows in _writes(function):
                    for column, place in self._columns(table, rows, function, module, set()):
                        self.found[table.name, column].add(place)

    def _columns(
        self, table: Table, rows: ast.AST, function: ast.FunctionDef, module: Module, seen: set[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yield (column, module) for each column of the table that the expression, or what it calls, makes."""
        for node in self._values(rows, module):
            yield from ((column, module.name) for column in _made(table, node))
            if isinstance(node, ast.Name) and (place := (module.name, f"{function.name} {node.id}")) not in seen:
                seen.add(place)
                for value in _assigned(function).get(node.id, ()):
                    yield from self._columns(table, value, function, module, seen)
            if isinstance(node, ast.Call) and (called := self._called(node, module)) is not None:
                there, definition = called
                if (place := (there.name, definition.name)) not in seen:
                    seen.add(place)
                    yield from self._columns(table, definition, definition, there, seen)

    def _values(self, node: ast.AST, module: Module) -> Iterator[ast.AST]:
        """Walk an expression, or a function, without conditions and the frames that only choose rows."""
        yield node
        match node:
            case ast.IfExp():
                children: Sequence[ast.AST] = [node.body, node.orelse]
            case ast.FunctionDef():
                children = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
            case ast.Call(ast.Attribute(_, "mapInArrow")):  # the worker's records are not yet rows of the table
                children = []
            case ast.Call(ast.Attribute(_, method)) if method in OTHER_FRAMES:
                children = [node.func]
            case ast.Call() if self._called(node, module) is not None:
                children = [arg for arg in node.args if getattr(arg, "id", "") not in NO_FRAMES][:1]
            case _:
                children = list(ast.iter_child_nodes(node))
        for child in children:
            yield from self._values(child, module)

    def _called(self, call: ast.Call, module: Module) -> tuple[Module, ast.FunctionDef] | None:
        match call.func:
            case ast.Name(name) if name in module.functions:
                return module, module.functions[name]
            case ast.Name(name) if name in module.imports:
                home, name = module.imports[name]
            case ast.Attribute(ast.Name(alias), name) if alias in module.imports:
                home = ".".join(module.imports[alias])
            case _:
                return None
        there = self.modules.get(home)
        return (there, there.functions[name]) if there is not None and name in there.functions else None


def _writes(function: ast.FunctionDef) -> Iterator[tuple[Table, ast.AST]]:
    """Yield each write of rows in a function: the table, and the expression of the rows."""
    for node in ast.walk(function):
        match node:
            case ast.Call(ast.Attribute(ast.Name(name), method), [rows]) if name == REFUSED and method == ADDS_TO_LIST:
                yield TABLES["QUARANTINE"], rows
            case ast.AugAssign(ast.Name(name), ast.Add(), rows) if name == REFUSED:
                yield TABLES["QUARANTINE"], rows
            case ast.Call(ast.Attribute(_, method), [ast.Name(name), rows, *_]) if method in WRITERS:
                yield from ((table, rows) for table in _tables(function, name))
            case ast.Call(ast.Name(method), [_, ast.Name(name), rows, *_]) if method in WRITERS:
                yield from ((table, rows) for table in _tables(function, name))


def _tables(function: ast.FunctionDef, name: str) -> list[Table]:
    """The table of this name, or those over which a loop with this variable goes."""
    if name in TABLES:
        return [TABLES[name]]
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and getattr(node.target, "id", "") == name]
    return [TABLES[each.id] for loop in loops for each in ast.walk(loop.iter) if isinstance(each, ast.Name) and each.id in TABLES]


@cache
def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.AST]]:
    """The expressions that a function assigns, by name."""
    found: dict[str, list[ast.AST]] = defaultdict(list)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for each in (each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)):
                found[each.id].append(node.value)
    return found


def _made(table: Table, node: ast.AST) -> Iterator[str]:
    """Yield the table's columns that an expression names anew; all of them where it goes through the table's columns."""
    columns = {column.name for column in table.columns}
    match node:
        case ast.Call(ast.Attribute(_, "alias"), [ast.Constant(str(name))]) if name in columns:
            yield name
        case ast.Call(ast.Attribute(_, "withColumn"), [ast.Constant(str(name)), _]) if name in columns:
            yield name
        case ast.Dict(keys):
            yield from (key.value for key in keys if isinstance(key, ast.Constant) and key.value in columns)
        case ast.Attribute(ast.Name("table"), "columns"):
            yield from columns


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The source of every module of the pipelines."""
    return {_name(path): path.read_text() for path in sorted((ROOT / "pipelines").rglob("*.py"))}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_the_rule_of_a_column_is_in_one_module(sources: dict[str, str]) -> None:
    found = Rules(sources).found

    assert {table for table, _ in found} == {table.name for table in EVERY_RUN_TABLE} - {SEGMENTS.name}
    assert {rule: places for rule, places in found.items() if len(places) > 1} == {}


SECOND = {
    "in the job": 'run.append(OUTCOMES, ended.select("vin", instant_of("seq").alias("accepted_at")))',
    "through a variable": 'at = sf.lit(run.now).alias("ended_at")\n    run.append(OUTCOMES, ended.select("vin", at))',
    "in a dictionary": 'run.append(OUTCOMES, ended.withColumns({"attempts": sf.lit(1)}))',
    "in a function of the job": "run.append(OUTCOMES, _rows(ended))",
    "in a merge": 'insert_or_delete_rows(run, OUTCOMES, ended.withColumn("reason", sf.lit("old")), "is_new")',
    "in the refused": 'refused.append(ended.select(sf.lit("x").alias("reason")))',
}


@pytest.mark.parametrize("body", SECOND.values(), ids=[*SECOND])
def test_a_second_place_is_found(sources: dict[str, str], body: str) -> None:
    job = f'def _rows(ended):\n    return ended.select(sf.col("x").alias("attempts"))\n\n\ndef job(run, ended):\n    {body}\n'
    found = Rules(sources | {"pipelines.second": job}).found

    assert [places for places in found.values() if "pipelines.second" in places and len(places) > 1]
