"""Names of machines and people are in no redacted export, each has one replacement, and a run stays a run."""

import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import DEVICE, make_run
from make_small_run import DEVICE as SMALL_DEVICE
from make_small_run import MEASUREMENT, OUTCOMES, RUN
from msgspec.structs import replace
from recorded_runs import write
from texts import any_text

from microbench.archive import export, redaction, schema, store
from microbench.archive.redaction import Redactor, redacted
from microbench.core.model import Case, Fact, Run, Telemetry
from microbench.library.runs import report_of
from microbench.report.markdown import to_markdown

NOBODY: redaction.Identity = ((), ())
UUID = "GPU-1a2d7986-4b79-e1ed-c951-afa4653d7453"
DIGITS = UUID.removeprefix("GPU-")


@pytest.mark.parametrize(("text", "shown"), [
    (f"device {UUID} is lost", "device GPU-1 is lost"),
    (f"{UUID.upper()}, {UUID.lower()}, {DIGITS}", "GPU-1, GPU-1, GPU-1"),
    (f"{UUID} by --device {UUID[:12]}; cut: {UUID[:20]}", "GPU-1 by --device GPU-1; cut: GPU-1"),
    (f"MIG-{UUID}/7/0, uuid{DIGITS}", "GPU-1/7/0, uuidGPU-1"), (f"boot id {DIGITS}", "boot id ID-1"),
    ("cannot open /home/alice/run.json: denied", "cannot open PATH-1: denied"),
    ("LD_PRELOAD=/opt/lib/a.so:/opt/lib/b.so", "LD_PRELOAD=PATH-1:PATH-2"),
    ("at /srv/code/x.py:12: and (/srv/code/x.py).", "at PATH-1:12: and (PATH-1)."),
    ("~/runs/a.json, ~alice/b", "PATH-1, PATH-2"), ("get https://alice:pw@host.corp/x failed", "get PATH-1 failed"),
    ("nvcc -I /srv/alice/include -lcudart", "nvcc -I PATH-1 -lcudart"), ("alice@node17 said", "USER-1@HOST-1 said"),
    ("ether 3c:ec:ef:12:34:5a: up, 3C-EC-EF-12-34-5A-", "ether MAC-1: up, MAC-1-"),
    ("10.1.2.3 to 10.1.2.4, 10.1.2.3:8080, 10.1.2.0/24", "IP-1 to IP-2, IP-1:8080, IP-3/24"),
    ("MASTER_ADDR=192.168.0.17, ssh bob@192.168.0.17.", "MASTER_ADDR=IP-1, ssh USER-1@IP-1."),
    ("root@10.1.2.3 carol@[2001:db8::2]", "root@IP-2 USER-1@[IP-1]"),
    ("host_10.0.0.5 at...10.0.0.5", "host_IP-1 at...IP-1"), ("fe80::3eec:efff:fe12:345a%eth0 is up", "IP-1%eth0 is up"),
    ("[2001:db8::1]:8080 = 2001:0DB8:0:0:0:0:0:1: ok", "[IP-1]:8080 = IP-1: ok"),
    ("hostname=node17, HOSTNAME: node17; nodename node18", "hostname=HOST-1, HOSTNAME: HOST-1; nodename node18"),
    ('{"host": "node17", "user":"alice"} host=node18', '{"host": "HOST-1", "user":"USER-1"} host=HOST-2'),
    ('\\"host\\": \\"node17\\"', '\\"host\\": \\"HOST-1\\"'),
    ("nodename=node17 MASTER_ADDR=node18:29500", "nodename=HOST-1 MASTER_ADDR=HOST-2:29500"),
    ("SLURM_NODELIST=gpu[01-04,07],cpu1 SLURM_JOB_USER=alice", "SLURM_NODELIST=HOST-1 SLURM_JOB_USER=USER-1"),
    ("user=alice, username: bob", "user=USER-1, username: USER-2"),
    ("board_serial=1650523001234. SN: PM12345678. S/N: 7", "board_serial=SERIAL-1. SN: SERIAL-2. S/N: SERIAL-3"),
    ("ip-10-17-23-199 is ip-10-17-23-199.ec2.internal.", "HOST-1 is HOST-2."),
    (f"uuid{DIGITS.replace('-', '')} uuid={'0a' * 16}", "uuidID-1 uuid=ID-2"),
    ("enx3cecef12345a is 3c:ec:ef:12:34:5a", "enxMAC-1 is MAC-1"),
    ("via fe80::/10 or ::ffff:10.0.0.9", "via IP-1/10 or IP-2"),
])  # fmt: skip
def test_paths_uuids_and_addresses_are_replaced(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown
    assert Redactor().text(shown) == shown


@pytest.mark.parametrize("text", [
    "55.4 GB/s, 3.61 µs/launch, B/clk/SM and TFLOP/s.", "stream / graph, host/device, and/or",
    "driver 580.159.04, CUDA 13.0.88, 96.00.A5.00.1A",
    "/proc/self/status Cpus_allowed_list, /sys/devices/system/cpu/cpu*/topology, /dev/nvidia0",
    "PCI 0000:00:06.0, commit 32904dfddf24111da71c24873c73089725c591b4, 20260102T030405Z-0011aabb",
    "GPU-accelerated, GPU-1, GPU 0, NVIDIA H200, GPU-P2P",
    "the host: touch it; node: 3, user: alone; serial: none, SN: unknown, launches are serial; host=200",
    "root complex, a user's own test on the host: 3.2 µs; root@localhost; 2026-11-21T10:54:40+00:00",
    "1.2.3.4.5, 1.2.3.256, 96.00.74.00.01, 127.0.0.1, ::1, 0.0.0.0:0, netmask 255.255.255.0",
    "12:34:56, 2026-01-02-10-54-40, 2026:01:02 12:34:56, 10de:2335, 2026.01.02, 1234.5678",
    "00000000:1B:00.0, 0000:1b:00.0, 10:54:40, 1::2, a::b, std::cafe::add, x[1:2:3], 1:2:3:4, [::2]",
])  # fmt: skip
def test_other_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_known_names_are_found_as_words_in_any_case() -> None:
    redactor = Redactor(hosts=("node17.corp",), users=("alice", "root", "7"))
    text = redactor.text("Alice ran on NODE17: alices node171, job_alice_2")
    assert text == "USER-1 ran on HOST-2: alices node171, job_USER-1_2"
    assert redactor.text("root 7 node17.corp") == "root 7 HOST-1"


@pytest.mark.parametrize(
    "piece",
    ["host=", "serial", "a_", "SN:", "enx", "ip-1-", "nodelist=a,", "0a", '"host": "', "hostname=", "user", "S/N",
     "a", ".", "-", "/", "/a", "a/", ":1", "~", '"', "@", "a@", " ", "0123-", "GPU-", "GPU-abcd-", "GPU-aaaaaaaa", "x://",
     "aaaa-aaaa-", "é", "/home/", "aaaa:", "1.", "1:", "::", "00:", "00-", "1.1.1.1 ", "a.a@", "(", "\n"],
)  # fmt: skip
def test_a_hostile_text_takes_linear_time(piece: str) -> None:
    """A pattern that started anew at each place would take hours and run into the time-out."""
    text = (piece * (100_000 // len(piece) + 1))[:100_000] + "!"
    assert Redactor().text(text)


@given(any_text())
def test_any_text_can_be_redacted(text: str) -> None:
    Redactor(("host17",), ("alice",)).text(text)


@pytest.mark.parametrize("where", [
    {"packages": {"nvidia-cublas-cu12": "12.8.4.1 @ file:///home/alice/x.whl"}}, {"driver_version": "12.8.4.1"},
    {"facts": (Fact("nccl_version", "12.8.4.1"), Fact("gateway", "12.8.4.2"))},
])  # fmt: skip
def test_a_version_of_four_numbers_stays(where: dict[str, Any]) -> None:
    environment = replace(RUN.sessions[0].environment, **where)
    session = replace(RUN.sessions[0], environment=environment)
    text = schema.encode(redacted(replace(RUN, sessions=(session,)), NOBODY)).decode()
    assert "12.8.4.1" in text
    assert "12.8.4.2" not in text
    assert "alice" not in text


HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
UUIDS = HEX.map(lambda digits: f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")
SEGMENTS = st.text(string.ascii_letters + string.digits + "_-é", min_size=3, max_size=8)
SECRETS = {
    "gpu": UUIDS.map(lambda uuid: f"GPU-{uuid}"),
    "user": st.from_regex(r"[a-z]{4,8}[0-9]{2}", fullmatch=True),
    "host": st.from_regex(r"[a-z]{4,8}-[0-9]{3}(\.[a-z]{4,6}\.internal)?", fullmatch=True),
    "path": st.lists(SEGMENTS, min_size=2, max_size=5).map(lambda parts: "/" + "/".join(parts)),
    "serial": st.from_regex(r"[0-9]{13}|[A-Z]{2}[0-9]{8}", fullmatch=True),
    "mac": st.binary(min_size=6, max_size=6).map(lambda parts: parts.hex(":")),
    "ipv4": st.ip_addresses(v=4).filter(lambda found: not found.is_loopback and 0 < found.packed[0] < 255).map(str),
    "ipv6": st.ip_addresses(v=6).map(str).filter(lambda text: any(len(group) > 2 for group in text.split(":"))),
}
CONTEXTS = st.sampled_from(
    ["{}", "error in {}: denied", "'{}'", '"{}"', "({})", "X={}", "{},{}", "at {}.", "a\nb {} c\td", "<{}>", "[{}]",
     "{}%eth0", "{}/24"]
)  # fmt: skip


def planted(secrets: dict[str, str], context: str) -> Run:
    gpu, user, host, path, serial = (secrets[name] for name in ("gpu", "user", "host", "path", "serial"))
    addresses = (secrets[name] for name in ("mac", "ipv4", "ipv6"))
    texts = (gpu, user, host, path, f"{user}@{host}", *addresses)
    text = " ".join(context.replace("{}", secret) for secret in texts)
    session = RUN.sessions[0]
    processes = (f"{path}/python (pid 7, {user})",)
    info = replace(session.environment.gpus[0], uuid=gpu, other_processes=processes)
    facts = (
        Fact("preloaded_libraries", f"{path}/x.so:lib/{user}.so", source=path),
        Fact("gpu0_serial", int(serial) if serial.isdigit() else serial),
        Fact("host_name", host), Fact("user", user), Fact("governor", None, reason=text),
    )  # fmt: skip
    packages = {"numpy": f"2.4 @ file://{path}"}
    environment = replace(session.environment, gpus=(info,), facts=facts, packages=packages, no_gpu_reason=text)
    asked = replace(session.settings, device=gpu, overrides={"gpu": (gpu, path)})
    measured = replace(
        OUTCOMES[0],
        case=Case("copy", {"peer": gpu, "direction": "h2d", "where": text}),
        measurements=(replace(MEASUREMENT, verified=text),),
        facts=(Fact("peer", gpu), Fact("said", text)),
        telemetry={gpu: Telemetry(temperature_c=41.0, throttle_reasons=(text,))},
        device=gpu,
    )
    crashed = replace(OUTCOMES[2], reason=f"killed by SIGSEGV\n{text}", device=gpu)
    sessions = (replace(session, environment=environment, settings=asked),)
    return replace(RUN, sessions=sessions, outcomes=(measured, crashed))


def exports(run: Run) -> dict[str, str]:
    return {
        "run file": schema.encode(run).decode(), "csv": export.to_csv(run), "json": export.to_json(run).decode(),
        "jsonl": export.to_json_lines(run).decode(), "markdown": to_markdown(report_of(run)),
    }  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries(SECRETS), CONTEXTS)
def test_no_secret_survives_in_any_export(secrets: dict[str, str], context: str) -> None:
    made = redacted(planted(secrets, context), ((secrets["host"],), (secrets["user"],)))
    for form, text in exports(made).items():
        for name, secret in secrets.items():
            assert secret.removeprefix("GPU-").casefold() not in text.casefold(), f"{name} in {form}"
    again = schema.decode(schema.encode(made))
    assert report_of(again).sections
    assert again.sessions[0].environment.gpus[0].uuid == "GPU-1"
    first = again.outcomes[0]
    assert (first.device, list(first.telemetry), first.case.params["peer"]) == ("GPU-1", ["GPU-1"], "GPU-1")
    assert first.facts[0].value == again.sessions[0].settings.device == "GPU-1"


def test_figures_and_findings_are_those_of_the_run() -> None:
    run = make_run(rounds=2)
    made = redacted(run, NOBODY)
    assert {outcome.device for outcome in made.outcomes} == {None, "GPU-1"}
    assert to_markdown(report_of(run)).replace(DEVICE, "GPU-1") == to_markdown(report_of(made))
    assert export.to_csv(run).replace(DEVICE, "GPU-1") == export.to_csv(made)


def test_the_tools_own_words_stay_whatever_a_user_or_host_is_called() -> None:
    run = make_run()
    made = redacted(run, (("submit",), ("launch_cost",)))
    assert {info.name for info in made.benchmarks} == {info.name for info in run.benchmarks}
    assert made.outcomes[0].case.benchmark == run.outcomes[0].case.benchmark
    assert len(report_of(made).sections) == len(report_of(run).sections)


def test_two_gpus_keep_apart_in_their_order() -> None:
    made = redacted(store.read(store.find("nvidia-h200-x2")), NOBODY)
    assert [gpu.uuid for gpu in made.sessions[0].environment.gpus] == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize("name", sorted(store.bundled()))
def test_only_gpus_and_paths_change_in_bundled_runs(name: str) -> None:
    run = store.read(store.find(name))
    changed = differences(msgspec.to_builtins(run.sessions), msgspec.to_builtins(redacted(run, NOBODY).sessions))
    assert {new for _, new in changed if new.startswith("GPU")} <= {"GPU-1", "GPU-2"}
    assert all(new.startswith("GPU") or "/" in old for old, new in changed)


def differences(old: Any, new: Any) -> list[tuple[str, str]]:
    if isinstance(old, dict):
        pairs = [*zip(old, new, strict=True), *zip(old.values(), new.values(), strict=True)]
        return [found for left, right in pairs for found in differences(left, right)]
    if isinstance(old, list | tuple):
        return [found for left, right in zip(old, new, strict=True) for found in differences(left, right)]
    return [(old, new)] if isinstance(old, str) and old != new else []


def test_this_machine_and_this_user_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setenv("HOSTNAME", "box.example")
    hosts, users = redaction.own_identity()
    assert "carol" in users
    assert "box.example" in hosts
    assert "" not in (*hosts, *users)


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_an_export_is_redacted_on_request(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", RUN)
    plain, hidden = (call("export", str(path), "--format", form, *more).stdout for more in ([], ["--redact"]))
    assert SMALL_DEVICE in plain
    assert SMALL_DEVICE not in hidden
    assert "GPU-1" in hidden


def test_a_redacted_json_export_can_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    path.write_bytes(call("export", "nvidia-h200-x2", "--format", "json", "--redact").stdout_bytes)
    result = call("show", str(path))
    assert result.exit_code == 0
    assert "NVIDIA H200" in result.stdout
