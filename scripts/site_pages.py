"""A hook of mkdocs: the site also has README, other pages beside docs/, public docstrings, a table of benchmarks."""

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import microbench
from microbench.analysis import evidence, stats
from microbench.comparison import compare
from microbench.core import model
from microbench.core.bench import discover
from microbench.diagnosis import counts, diagnosis
from microbench.library import surface
from microbench.library.results import Drawn
from microbench.model import workload

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "lab/README.md", "lab/measurements/fleet.csv")
LONGEST_SIGNATURE = 100
# Every public name in the order of the page; a test reports missing ones.
SECTIONS = {
    "Functions": (
        "run", "measure", "graphed", "load", "compare", "predict", "constants", "diagnose", "watch", "counts",
    ),
    "Inside of a training run": ("trace_handler", "lightning_callback", "trainer_callback"),
    "Runs and their rows": ("RecordedRun", "Rows", "Row", "Problem", "Finding", "Sheet"),
    "Answers": ("ComparedRuns", "ComparedFigure", "PredictedStep", "DiagnosedTraces"),
    "Constants of a machine": ("MachineConstants", "MachineConstant"),
    "Recordings of this process": ("Recording", "Tables", "Counts"),
    "A step of work": ("Workload", "Kernels", "Copies", "Wait", "HostWork", "Event"),
    "Errors": ("MicrobenchError", "UsageError", "DeviceAbsentError", "RunUnreadableError", "ResultNotWrittenError"),
}  # fmt: skip
# The names that annotations use, each for one of several words or types.
ALIASES = {
    "Value": surface.Value, "Param": model.Param, "Part": workload.Part, "Severity": evidence.Severity,
    "Trust": stats.Trust, "Verdict": compare.Verdict, "Bound": diagnosis.Bound, "Direction": workload.Direction,
    "HostMemory": workload.HostMemory, "Number": counts.Number,
}  # fmt: skip
BEGIN = """# The Python library

`help(microbench.NAME)` shows the same text. [library.ipynb](library.ipynb) shows the library at work.

```python
import microbench as mb

run = mb.run("launch", quick=True)  # measures this machine; device="fake" simulates a GPU
run  # a notebook shows tables, figures and findings; elsewhere print(run)
run.rows("launch_cost", "submit").to_pandas()
mb.measure("train.py::step", setup="train.py::setup", axes={"batch": [1, 8, 64]})
mb.compare("nvidia-h200", run).verdict
mb.predict(kernels=1100, duration="6us", layer="torch").speedup
mb.constants()["launch.loop.0"].value
mb.diagnose("trace.json.gz").findings
with mb.watch() as recording:
    step()
recording.diagnosis().findings
```"""


def on_files(files: Any, config: Any) -> None:
    """mkdocs asks for the files of the site."""
    from mkdocs.structure.files import File  # tests read the page without it

    for path in BESIDE:
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    files.append(File.generated(config, "api.md", content=library_page()))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links as they are in the checkout lead to the same files of the site, whose root has what is in docs/."""
    return re.sub(r"\]\((docs|\.\.)/", "](", markdown.replace("<!-- table of benchmarks -->", benchmark_table()))


def benchmark_table() -> str:
    """A row a benchmark: its suite, its name, and its question, the first line of its docstring."""
    rows = (f"| {each.suite} | `{each.name}` | {each.about.splitlines()[0]} |" for each in discover().values())
    return "\n".join(["| suite | benchmark | question |", "|---|---|---|", *rows])


def library_page() -> str:
    """The page of the public names. Raises AssertionError at one without a docstring."""
    parts = [BEGIN, prose(microbench).partition("\n")[2].strip()]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += described(name, getattr(surface, name, None) or getattr(microbench, name))
    parts += ["## What a result draws", prose(Drawn), f"- {member('show', Drawn.show)}", "## Words of the signatures"]
    aliases = (f"- `{name} = {alias_words(alias)}`" for name, alias in ALIASES.items())
    return "\n\n".join([*parts, "\n".join(aliases)]) + "\n"


def described(name: str, thing: Any) -> Iterator[str]:
    """A function or a class with what is public in it."""
    yield f"### {name}"
    made_by_callers = hasattr(thing, "__struct_fields__") or hasattr(thing, "__dataclass_fields__")
    if made_by_callers or not inspect.isclass(thing):
        yield signature(f"microbench.{name}", thing)
    yield prose(thing)
    fields = inspect.signature(thing).parameters if made_by_callers else ()
    public = {key: value for key, value in vars(thing).items() if not key.startswith("_") and key not in fields}
    if members := [f"- {words}" for key, value in public.items() if (words := member(key, value))]:
        yield "\n".join(members)


def member(name: str, value: Any) -> str:
    """A property or a method of a class on one line; "" for anything else."""
    if isinstance(value, property | cached_property):
        function: Any = value.fget if isinstance(value, property) else value.func
        return f"`{name}: {plainly(inspect.signature(function).return_annotation)}`: {in_one_line(function)}"
    if inspect.isfunction(value):
        arguments = re.sub(r"self(, )?", "", str(inspect.signature(value)), count=1)
        return f"`{name}{plainly(arguments)}`: {in_one_line(value)}"
    return ""


def alias_words(alias: Any) -> str:
    """The type that an alias stands for."""
    return " | ".join(one.__name__ if inspect.isclass(one) else f'"{one}"' for one in get_args(alias))


def signature(name: str, function: Any) -> str:
    """The call in a block of code, one argument a line if it is long."""
    found = inspect.signature(function)
    if inspect.isclass(function):  # annotations as they are written, not what they stand for
        as_written = [each.replace(annotation=function.__annotations__[key]) for key, each in found.parameters.items()]
        found = found.replace(parameters=as_written)
    line = name + plainly(str(found)).removesuffix(" -> None")
    if len(line) > LONGEST_SIGNATURE:
        arguments, keywords = [], False
        for each in found.parameters.values():
            if each.kind is inspect.Parameter.KEYWORD_ONLY and not keywords:
                keywords = True
                arguments += ["*"] if not any(one.startswith("*") for one in arguments) else []
            arguments.append(plainly(str(each)))
        inside = "".join(f"    {argument},\n" for argument in arguments)
        returned = "" if inspect.isclass(function) else f" -> {plainly(found.return_annotation)}"
        line = f"{name}(\n{inside}){returned}"
    return f"```python\n{line}\n```"


def plainly(annotation: Any) -> str:
    """Annotations are texts; their quotes are dropped, those of default values stay."""
    without = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(annotation)).replace("<factory>", "...")
    return re.sub(r": \"([^\"]*)\"", r": \1", without)


def prose(thing: Any) -> str:
    """The docstring; code as Markdown writes it."""
    text = inspect.getdoc(thing)
    assert text, thing
    return text.replace("``", "`")


def in_one_line(thing: Any) -> str:
    """The docstring of a member of a class, which stands in a list."""
    return " ".join(prose(thing).split())
