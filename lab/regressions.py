"""Regressions of public histories, and changes without effect, against `diagnose --fail-on` and `mb.counts`, on a GPU.

``python lab/regressions.py OUT [NAME …] --jobs 10`` writes OUT/regressions.csv and a summary. A program of
programs/regressed/ is recorded by `microbench watch` for its baseline. Then each REGRESSION undoes in a copy what a
public commit fixed, in a fresh process: is it flagged, and is its line named? The program itself must pass again, and
so must it after each of the changes of refactorings.py. NAME is a program, a regression or a kind.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from refactorings import changed

ROOT, HERE = Path(__file__).resolve().parent.parent, Path(__file__).resolve().parent / "programs" / "regressed"
GITHUB = "https://github.com/"
FAIL_ON = "launches>+0, waits>+0, copies>+0, pageable>+0, allocations>+0, memsets>+0"
WARM_UP = 10  # turns ahead of the time that a program is given
KINDS = ("again", "regression", "counted", "refactored")
COLUMNS = (
    "program", "kind", "fault", "source", "flagged", "line", "expected", "right", "limits", "lines", "recordings",
    "seconds", "note",
)  # fmt: skip
# The loop of each program, which a user would have written into it.
LOOP = """

if __name__ == "__main__":
    import itertools
    import sys
    import time

    turn, ends = make(), 0.0
    for number in itertools.count():
        if number == {warm_up}:
            ends = time.monotonic() + float(sys.argv[1])
        turn(number)
        if number > 4 * {warm_up} and time.monotonic() > ends:
            break
"""


class Regression(NamedTuple):
    """What a public commit fixed: its address, and texts of the program with those that undo the fix.

    The line that must be named is one of those that the regression adds, or one that has a text of ``at``.
    """

    name: str
    program: str
    source: str
    undo: tuple[tuple[str, str], ...]
    at: tuple[str, ...] = ()

    def text(self, good: str) -> str:
        for new, old in self.undo:
            if good.count(new) != 1:
                raise ValueError(f"{self.name}: {new!r} is not once in {self.program}.py")
            good = good.replace(new, old)
        return good

    def lines(self, good: str) -> list[int]:
        """The numbers of the lines of which one must be named."""
        bad = self.text(good)
        if self.at:
            return [number for number, line in enumerate(bad.splitlines(), 1) if any(part in line for part in self.at)]
        marks = (line[0] for line in difflib.ndiff(good.splitlines(), bad.splitlines()) if line[0] in "+ ")
        return [number for number, mark in enumerate(marks, 1) if mark == "+"]


REGRESSIONS = (
    # classify
    Regression(
        "item each step",
        "classify",
        "meta-pytorch/torchtune/pull/522",
        (('running["loss"] += loss', 'running["loss"] += loss.item()'),),
    ),
    Regression(
        "copy that blocks",
        "classify",
        "huggingface/accelerate/pull/2685",
        (("images = images.to(DEVICE, non_blocking=True)", "images = images.to(DEVICE)"),),
    ),
    Regression(
        "synchronize each step",
        "classify",
        "pytorch/torchtitan/pull/134",
        (
            (
                "        loss, right = train(images, labels)\n",
                "        loss, right = train(images, labels)\n        torch.cuda.synchronize()\n",
            ),
        ),
    ),
    Regression(
        "batches not pinned",
        "classify",
        "mllam/neural-lam/pull/236",
        (("images, labels = images.pin_memory(), labels.pin_memory()", "pass"),),
        at=("non_blocking=True",),
    ),
    # average
    Regression(
        "average by parameter",
        "average",
        "ultralytics/ultralytics/pull/25315",
        (
            (
                "torch._foreach_lerp_(self.weights, now, 1 - DECAY)",
                "for mean, weight in zip(self.weights, now, strict=True):\n"
                "            mean.mul_(DECAY).add_(weight, alpha=1 - DECAY)",
            ),
        ),
    ),
    Regression(
        "optimizer not fused",
        "average",
        "deepmodeling/deepmd-kit/pull/4463",
        ((", fused=True", ""),),
        at=("optimizer.step()",),
    ),
    Regression(
        "check of a clipped norm",
        "average",
        "pytorch/pytorch/pull/61042",
        (("model.parameters(), LIMIT", "model.parameters(), LIMIT, error_if_nonfinite=True"),),
    ),
    Regression(
        "gradients set to zero",
        "average",
        "MIC-DKFZ/nnUNet/pull/1630",
        (("set_to_none=True", "set_to_none=False"),),
        at=("set_to_none", "loss.backward()"),
    ),
    Regression(
        "norm of each gradient read",
        "average",
        "SeonghwanSeo/kfold/pull/195",
        (
            (
                "        optimizer.step()\n",
                "        each = [weight.grad.norm().item() for weight in model.parameters()]\n"
                "        assert len(each) > 1\n        optimizer.step()\n",
            ),
        ),
    ),
    Regression(
        "clipping by parameter",
        "average",
        "facebookresearch/fairseq/pull/4904",
        (("model.parameters(), LIMIT", "model.parameters(), LIMIT, foreach=False"),),
    ),
    # sentences
    Regression(
        "weights of the host",
        "sentences",
        "allenai/OLMo-core/pull/68",
        (("weight=weights", "weight=torch.tensor(WEIGHTS, device=DEVICE)"),),
    ),
    Regression(
        "places made on the host",
        "sentences",
        "CompVis/stable-diffusion/pull/477",
        (
            (
                "torch.arange(words.shape[1], device=words.device)[None]",
                "torch.arange(words.shape[1]).to(words.device)[None]",
            ),
        ),
    ),
    Regression(
        "condition on a mask",
        "sentences",
        "lucidrains/x-transformers/pull/355",
        (
            (
                "        hidden = hidden.masked_fill(~mask[..., None], 0)\n",
                "        if not mask.all():\n            hidden = hidden.masked_fill(~mask[..., None], 0)\n",
            ),
        ),
    ),
    Regression(
        "optimizer by parameter",
        "sentences",
        "facebookresearch/d2go/pull/448",
        (("foreach=True", "foreach=False"),),
        at=("optimizer.step()",),
    ),
    # decode
    Regression(
        "end asked each token",
        "decode",
        "huggingface/transformers/pull/47975",
        (("number % 16 == 15 and decoder.ended.all()", "decoder.ended.all().item()"),),
    ),
    Regression(
        "mask built each token",
        "decode",
        "rasbt/LLMs-from-scratch/pull/389",
        (
            (
                "        mask = self.allowed.index_select",
                '        allowed = torch.full((LONGEST, LONGEST), float("-inf"), device=DEVICE).triu(1)\n'
                "        mask = allowed.index_select",
            ),
        ),
    ),
    # frames
    Regression(
        "check of a deviation",
        "frames",
        "pytorch/vision/pull/6821",
        (
            (
                "        return (frames - mean) / deviation",
                '        if (deviation == 0).any():\n            raise ValueError("no deviation")\n'
                "        return (frames - mean) / deviation",
            ),
        ),
    ),
    Regression(
        "mean of the host",
        "frames",
        "pytorch/vision/pull/9621",
        (
            (
                "mean, deviation = self.mean, self.deviation",
                "mean = torch.tensor(MEAN, device=frames.device).view(3, 1, 1)\n"
                "        deviation = torch.tensor(DEVIATION, device=frames.device).view(3, 1, 1)",
            ),
        ),
    ),
    Regression(
        "grid made on the host",
        "frames",
        "princeton-vl/RAFT/pull/113",
        (("grid = self.grid", 'grid = grid_on("cpu").to(frames.device)'),),
    ),
    Regression(
        "grid made each frame",
        "frames",
        "huggingface/transformers/pull/40007",
        (("grid = self.grid", "grid = grid_on(frames.device)"),),
        at=("grid = grid_on", "torch.arange", "meshgrid"),
    ),
    # molecules
    Regression(
        "number of graphs asked",
        "molecules",
        "pyg-team/pytorch_geometric/pull/7216",
        (("graphs.batch, size=GRAPHS)", "graphs.batch)"),),
    ),
    Regression(
        "number of nodes asked",
        "molecules",
        "pyg-team/pytorch_geometric/pull/10660",
        (("graphs.batch, max_num_nodes=NODES, batch_size=GRAPHS)", "graphs.batch)"),),
    ),
    Regression(
        "size of a repetition asked",
        "molecules",
        "pytorch/torchtitan/pull/3274",
        ((", output_size=GRAPHS * NODES", ""),),
    ),
    # language
    Regression(
        "item of each part",
        "language",
        "hao-ai-lab/FastVideo/pull/1217",
        (
            (
                "total += part(PARTS * number + piece)",
                "one = part(PARTS * number + piece)\n            total += one.item()",
            ),
        ),
    ),
    Regression(
        "cache emptied each step",
        "language",
        "huggingface/transformers/pull/31530",
        (("        scaler.update()\n", "        scaler.update()\n        torch.cuda.empty_cache()\n"),),
    ),
    Regression(
        "scale read each step",
        "language",
        "huggingface/accelerate/issues/1714",
        (
            (
                "        scaler.update()\n",
                "        scale = scaler.get_scale()\n        scaler.update()\n"
                "        skipped = scaler.get_scale() < scale\n        assert not skipped or number < 9\n",
            ),
        ),
    ),
    Regression(
        "each gradient checked",
        "language",
        "HyperGAN/HyperGAN/pull/355",
        (
            (
                "        scaler.step(optimizer)\n",
                "        for weight in model.parameters():\n"
                "            if not torch.isfinite(weight.grad).all():\n                print(number)\n"
                "        scaler.step(optimizer)\n",
            ),
        ),
    ),
    # boxes
    Regression(
        "boolean mask of boxes",
        "boxes",
        "pytorch/vision/pull/9518",
        (
            (
                "    return width * height",
                "    kept = (width > 0) & (height > 0)\n    found = torch.zeros_like(width)\n"
                "    found[kept] = width[kept] * height[kept]\n    return found",
            ),
        ),
    ),
    Regression(
        "losses in a bar",
        "boxes",
        "openvdb/fvdb-reality-capture/pull/144",
        (
            (
                "        optimizer.zero_grad()\n",
                '        bar = f"{box_loss.item():.3f} {score_loss.item():.3f}"\n        assert bar\n'
                "        optimizer.zero_grad()\n",
            ),
        ),
    ),
    # compiled
    Regression(
        "break of a graph",
        "compiled",
        "sgl-project/SpecForge/pull/222",
        (("share = right / labels.numel()", "share = right.item() / labels.numel()"),),
    ),
    # fitted
    Regression(
        "loss read each step",
        "fitted",
        "tillahoffmann/jax-mps/pull/180",
        (('state["losses"].append(loss)', 'state["losses"].append(float(loss))'),),
    ),
)
PROGRAMS = tuple(dict.fromkeys(one.program for one in REGRESSIONS))


class Failed(Exception):
    """A part that could not be done, in a line."""


class Lab(NamedTuple):
    """Where and how the programs run."""

    out: Path
    seconds: float
    ends_s: float
    each_s: float

    def run(self, folder: Path, name: str, *command: str) -> tuple[int, str]:
        """A command in a folder: its exit code, and what it printed. It has a session of its own, and ends with it."""
        left_s = min(self.each_s, self.ends_s - time.monotonic())
        if left_s < 5:
            raise Failed("out of time")
        environment = {
            **os.environ, "NO_COLOR": "1", "COLUMNS": "400", "TERM": "dumb", "OMP_NUM_THREADS": "2",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "HF_HUB_OFFLINE": "1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        with (folder / f"{name}.txt").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(left_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Failed(f"{name} stopped after {left_s:.0f} s") from None
            output.seek(0)
            return process.returncode, output.read()

    def recorded(self, folder: Path, program: str, text: str) -> str:
        """The recording of a program that `microbench watch` made."""
        folder.mkdir(parents=True)
        (folder / f"{program}.py").write_text(text + LOOP.format(warm_up=WARM_UP))
        watch = ("-m", "microbench", "watch", "-o", "recording", "--", sys.executable, f"{program}.py")
        code, said = self.run(folder, "watch", *watch, f"{self.seconds:g}")
        files = sorted((folder / "recording").glob("*.rows"), key=lambda path: path.stat().st_size)
        if code or not files:
            raise Failed(f"watch ends with {code}: {last(said)}")
        return str(files[-1])

    def baseline(self, program: str) -> tuple[Path, str]:
        """The counts of a program as it should be, and its recording."""
        folder = self.out / program / "good"
        rows = self.recorded(folder, program, good(program))
        code, said = self.run(folder, "counts", "-m", "microbench", "diagnose", rows, "--counts", "--json")
        if code:
            raise Failed(f"diagnose --counts ends with {code}: {last(said)}")
        path = folder / "counts.json"
        path.write_text(said)
        return path, rows

    def compared(self, folder: Path, program: str, text: str, baseline: Future[tuple[Path, str]]) -> dict[str, Any]:
        """What a user reads of a changed program."""
        rows = self.recorded(folder, program, text)
        try:
            counts, before = baseline.result()
        except Failed as error:
            raise Failed(f"no baseline: {error}") from None
        limits = ("--fail-on", FAIL_ON)
        code, said = self.run(folder, "compared", "-m", "microbench", "diagnose", str(counts), rows, *limits)
        if code not in (0, 5):
            raise Failed(f"diagnose ends with {code}: {last(said)}")
        found = {"flagged": code == 5, "limits": "; ".join(re.findall(r"failed: (.+)", said))}
        code, also = self.run(folder, "recordings", "-m", "microbench", "diagnose", before, rows, *limits)
        return {**found, "named": named(said, program), "also": named(also, program) if code in (0, 5) else []}


def good(program: str) -> str:
    return (HERE / f"{program}.py").read_text()


def last(text: str) -> str:
    return " ".join(text.split())[-300:]


def named(said: str, program: str) -> list[int]:
    """The lines of a program at which a step does more, as they stand on the screen, each once."""
    places = re.findall(rf"\+[\d.,]+ [^,]*?\b{program}\.py:(\d+)", said)
    return list(dict.fromkeys(map(int, places)))


def judged(lab: Lab, one: Regression, baseline: Future[tuple[Path, str]]) -> list[dict[str, Any]]:
    """The row of a regression."""
    text, lines = good(one.program), one.lines(good(one.program))
    folder = lab.out / one.program / one.name.replace(" ", "_")
    found = lab.compared(folder, one.program, one.text(text), baseline)
    shown = found["named"] or found["also"]
    return [{
        "program": one.program, "kind": "regression", "fault": one.name, "source": GITHUB + one.source,
        "flagged": found["flagged"], "limits": found["limits"], "line": shown[0] if shown else "",
        "expected": " ".join(map(str, lines)), "right": bool(shown) and shown[0] in lines,
        "lines": " ".join(map(str, found["named"])), "recordings": " ".join(map(str, found["also"])),
    }]  # fmt: skip


def again(lab: Lab, program: str, baseline: Future[tuple[Path, str]]) -> list[dict[str, Any]]:
    """The row of a program that was not changed."""
    found = lab.compared(lab.out / program / "again", program, good(program), baseline)
    row = {"program": program, "kind": "again", "fault": "nothing", "flagged": found["flagged"]}
    return [row | {"limits": found["limits"], "right": not found["flagged"]}]


def in_one_process(lab: Lab, program: str, most: int) -> list[dict[str, Any]]:
    """The rows of the changes without effect, and of the regressions, of a program, by `mb.counts` in one process."""
    folder = lab.out / program / "counted"
    folder.mkdir(parents=True)
    why = ""
    try:
        code, said = lab.run(folder, "child", str(Path(__file__).resolve()), str(folder), "--child", program, str(most))
        why = f"ends with {code}: {last(said)}" if code else ""
    except Failed as error:
        why = str(error)
    path = folder / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if why:
        rows.append({"program": program, "kind": "refactored", "fault": "the rest", "note": why})
    return rows


def child(folder: Path, program: str, most: int) -> None:
    """Count all changes of a program; a line of JSON each."""
    import microbench as mb
    from microbench.core.errors import MicrobenchError
    from microbench.diagnosis.changed import Side, change_words, compare
    from microbench.diagnosis.counts import Counts

    def counts_of(name: str, text: str) -> Counts:
        path = folder / f"{program}_{re.sub(r'[^a-z]+', '_', name)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        turn = module.make()
        for number in range(2):
            turn(number)
        return mb.counts(turn, 1)

    text = good(program)
    before = counts_of("good", text)
    jobs = [("refactored", *one) for one in changed(text)][:most]
    jobs += [("counted", one.name, one.text(text)) for one in REGRESSIONS if one.program == program]
    for kind, name, other in jobs:
        began = time.monotonic()
        row: dict[str, Any] = {"program": program, "kind": kind, "fault": name}
        try:
            differences = compare(Side("before", before), Side("now", counts_of(name, other))).differences
            more = [change_words(one) for one in differences if one.more > 0 and not one.named]
            row |= {"flagged": bool(more), "right": bool(more) == (kind == "counted"), "limits": "; ".join(more)}
            row["note"] = "; ".join(change_words(one) for one in differences)[:300]
        except (MicrobenchError, RuntimeError, TypeError, ValueError, NameError, AttributeError) as error:
            row["note"] = f"{type(error).__name__}: {error}"[:300]
        row["seconds"] = round(time.monotonic() - began, 1)
        with (folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def timed(job: Any, what: dict[str, Any], *arguments: Any) -> list[dict[str, Any]]:
    """The rows of a job, or one that says why there are none."""
    began = time.monotonic()
    try:
        rows: list[dict[str, Any]] = job(*arguments)
    except (Failed, OSError, ValueError) as error:
        rows = [what | {"note": f"{type(error).__name__}: {error}"[:400]}]
    return [{"seconds": round(time.monotonic() - began, 1), **row} for row in rows]


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """What is asked for, in lines."""
    found = []
    for kind in KINDS:
        chosen = [row for row in rows if row["kind"] == kind]
        known = [row for row in chosen if "flagged" in row]
        flagged = sum(row["flagged"] for row in known)
        words = f"{kind}: {flagged} of {len(known)} flagged"
        if kind == "regression":
            words += f", {sum(bool(row['right']) for row in known)} with the right line first"
            among = sum(
                bool({*row["expected"].split()} & {*f"{row['lines']} {row['recordings']}".split()}) for row in known
            )
            words += f", {among} with it among those named"
        found.append(words + (f"; {len(chosen) - len(known)} not measured" if len(chosen) > len(known) else ""))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="programs, regressions or kinds; all by default")
    parser.add_argument("--jobs", type=int, default=10, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each recorded loop")
    parser.add_argument("--limit", type=float, default=240.0, help="the most seconds of all")
    parser.add_argument("--each", type=float, default=120.0, help="the most seconds of a process")
    parser.add_argument("--refactored", type=int, default=12, help="the most changes without effect of a program")
    parser.add_argument("--child", nargs=2, metavar=("PROGRAM", "MOST"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.out, asked.child[0], int(asked.child[1]))
        return
    known = {*PROGRAMS, *KINDS, *(one.name for one in REGRESSIONS)}
    if wrong := [name for name in asked.names if name not in known]:
        raise SystemExit(f"not known: {', '.join(wrong)}; known are {', '.join(sorted(known))}")
    lab = Lab(asked.out.resolve(), asked.seconds, time.monotonic() + asked.limit, asked.each)
    kinds = [kind for kind in KINDS if kind in asked.names] or KINDS
    chosen = [one for one in REGRESSIONS if one.name in asked.names]
    programs = [name for name in PROGRAMS if name in asked.names] or ([] if chosen else PROGRAMS)
    chosen += [one for one in REGRESSIONS if one.program in programs and one not in chosen]
    everywhere = [name for name in PROGRAMS if any(one.program == name for one in chosen)]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        jobs: list[Future[list[dict[str, Any]]]] = []
        recorded = {"again", "regression"} & {*kinds}
        bases = {name: pool.submit(lab.baseline, name) for name in everywhere if recorded}
        if {"counted", "refactored"} & {*kinds}:
            for name in programs:
                what = {"program": name, "kind": "refactored", "fault": "all"}
                jobs.append(pool.submit(timed, in_one_process, what, lab, name, asked.refactored))
        for one in chosen if "regression" in kinds else ():
            what = {"program": one.program, "kind": "regression", "fault": one.name, "source": GITHUB + one.source}
            jobs.append(pool.submit(timed, judged, what, lab, one, bases[one.program]))
        for name in programs if "again" in kinds else ():
            what = {"program": name, "kind": "again", "fault": "nothing"}
            jobs.append(pool.submit(timed, again, what, lab, name, bases[name]))
        for job in jobs:
            for row in job.result():
                rows.append(row)
                print(",".join(str(row.get(column, "")) for column in COLUMNS), flush=True)
            write(lab.out, rows)
    print("\n".join(summary(rows)))


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "regressions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
