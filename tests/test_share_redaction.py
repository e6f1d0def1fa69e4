"""What names a machine or a person is in no export, the same thing has one name everywhere, and a run stays a run."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from make_run import DEVICE, make_run
from make_small_run import DEVICE as SMALL_DEVICE
from make_small_run import MEASUREMENT, OUTCOMES, RUN
from texts import any_text
from typer.testing import CliRunner

from microbench.cli.app import app
from microbench.cli.runs import report_of
from microbench.core.model import Case, Fact, Outcome, Run, Telemetry
from microbench.report.markdown import to_markdown
from microbench.runs import export, redaction, schema, store
from microbench.runs.redaction import Identity, Redactor, redacted

NOBODY = Identity()
UUID = "GPU-1a2d7986-4b79-e1ed-c951-afa4653d7453"


def learnt(*texts: str, hosts: tuple[str, ...] = (), users: tuple[str, ...] = ()) -> list[str]:
    """The texts, redacted together."""
    redactor = Redactor(hosts, users)
    for text in texts:
        redactor.learn(text)
    return [redactor.text(text) for text in texts]


def alone(text: str) -> str:
    return learnt(text)[0]


# -- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"device {UUID} is lost", "device GPU-1 is lost"),
        (f"{UUID.upper()} and {UUID.lower()}", "GPU-1 and GPU-1"),
        (f"{UUID}, {UUID[4:]}", "GPU-1, GPU-1"),
        (f"{UUID}: {UUID.replace('-', '')[3:]}", "GPU-1: GPU-1"),
        (f"{UUID} by --device {UUID[:9]}", "GPU-1 by --device GPU-1"),
        (f"{UUID}; cut: {UUID[10:]}", "GPU-1; cut: GPU-1"),
        (f"MIG-{UUID}/7/0", "MIG-GPU-1/7/0"),
        ("MIG-11111111-2222-3333-4444-555555555555", "MIG-1"),
        ("boot id 11111111-2222-3333-4444-555555555555", "boot id ID-1"),
        ("serial number: 1652921034567", "serial number: SERIAL-1"),
        ("board 1652921034567 of serial 1652921034567.", "board SERIAL-1 of serial SERIAL-1."),
        ('"serial": "ABC-12345"', '"serial": "SERIAL-1"'),
        ("cannot open /home/alice/run.json: denied", "cannot open PATH-1: denied"),
        ("LD_PRELOAD=/opt/a.so:/opt/b.so", "LD_PRELOAD=PATH-1:PATH-2"),
        ('  File "/srv/my code/x.py", line 3', '  File "PATH-1", line 3'),
        ("at /srv/code/x.py:12: and (/srv/code/x.py)", "at PATH-1:12: and (PATH-1)"),
        ("~/runs/a.json, ~alice/b, ./c, ../d/e", "PATH-1, PATH-2, PATH-3, PATH-4"),
        ("in site-packages/numba/core.py", "in PATH-1"),
        (r"C:\Users\alice\x.json and \\server\share\y", "PATH-1 and PATH-2"),
        ("get https://alice:pw@host.corp/x failed", "get URL-1 failed"),
        ("file:///home/alice/wheel.whl", "URL-1"),
        ("alice@node17 said, and alice knows node17", "USER-1@HOST-1 said, and USER-1 knows HOST-1"),
        ("USER=alice HOSTNAME=node17", "USER=USER-1 HOSTNAME=HOST-1"),
        ("nvcc -I/srv/alice/include -L/opt/b -lcudart", "nvcc -IPATH-1 -LPATH-2 -lcudart"),
        (f"id 0x{UUID.replace('-', '')[3:]} lost", "id 0xID-1 lost"),
        ("SLURM_JOB_USER=alice SLURMD_NODENAME=node17", "SLURM_JOB_USER=USER-1 SLURMD_NODENAME=HOST-1"),
        ("{'USER': 'alice', \"HOST\": \"node17\"}", "{'USER': 'USER-1', \"HOST\": \"HOST-1\"}"),
        ("uid=1000(alice) of alice", "uid=1000(USER-1) of USER-1"),
        (
            "USER=1000 HOST=10.1.2.3: 1000 rounds, 10 of them good",
            "USER=1000 HOST=IP-1: 1000 rounds, 10 of them good",
        ),
        ("ip-10-0-0-1.ec2.internal is up; ip-10-0-0-1 too", "HOST-1 is up; HOST-2 too"),
        ("link/ether 3c:ec:ef:12:34:5a brd ff:ff:ff:ff:ff:ff", "link/ether MAC-1 brd MAC-2"),
        ("HWaddr:3c:ec:ef:12:34:5a: mac:3c:ec:ef:12:34:5b", "HWaddr:MAC-1: mac:MAC-2"),
        ("inet6:fe80::1 on interface:fe80::2, node:2001:db8::3: down", "inet6:IP-1 on interface:IP-2, node:IP-3: down"),
        ("3C:EC:EF:12:34:5A is 3c-ec-ef-12-34-5a", "MAC-1 is MAC-1"),
        ("ib0 80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:a1:b2:c3", "ib0 MAC-1"),
        ("10.1.2.3 to 10.1.2.4, 10.1.2.3:8080, 10.1.2.0/24", "IP-1 to IP-2, IP-1:8080, IP-3/24"),
        ("MASTER_ADDR=192.168.0.17, ssh bob@192.168.0.17.", "MASTER_ADDR=IP-1, ssh USER-1@IP-1."),
        ("root@10.1.2.3 carol@2001:db8::1, carol@[2001:db8::2]", "root@IP-3 USER-1@IP-1, USER-1@[IP-2]"),
        ("cannot reach 172.16.4.4: 172.16.4.4-172.16.4.9", "cannot reach IP-1: IP-1-IP-2"),
        ("the driver answers at 10.0.0.9 only", "the driver answers at IP-1 only"),
        ("fe80::3eec:efff:fe12:345a%eth0 is up", "IP-1%eth0 is up"),
        ("[2001:db8::1]:8080 = 2001:0DB8:0:0:0:0:0:1: ok", "[IP-1]:8080 = IP-1: ok"),
        ("via fe80::/10 or ::ffff:10.0.0.9", "via IP-1/10 or IP-2"),
        ("alice@GPU-7 and alice again", "USER-1@GPU-7 and USER-1 again"),
        ("alice@HOST-2 and alice again", "USER-1@HOST-2 and USER-1 again"),
        ("carol@[2001:db8::2] carol", "USER-1@[IP-1] USER-1"),
        ("numba@/srv/wheels numba", "numba@PATH-1 numba"),
    ],
)
def test_what_shows_itself_gets_a_name(text: str, shown: str) -> None:
    assert alone(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # words of software are names of variables, users and hosts, too
        ("NCCL_COMM_ID=10.0.0.5:29500", "NCCL_COMM_ID=IP-1:29500"),
        ("CUDA_HOST=10.0.0.6", "CUDA_HOST=IP-1"),
        ("ssh nvidia@192.168.55.1", "ssh nvidia@IP-1"),
        ("cuda-box (10.1.2.3) refused", "cuda-box (IP-1) refused"),
        ("nvidia-h200-node3 10.1.2.3", "nvidia-h200-node3 IP-1"),
        ("connect nccl 10.0.0.5, driver 10.0.0.5", "connect nccl IP-1, driver IP-1"),
        ("cuda==10.0.0.5, peer==10.0.0.5, nvidia-node-10.0.0.6", "cuda==IP-1, peer==IP-1, nvidia-node-IP-2"),
        ("version 10.0.0.5:80, version 10.0.0.0/8, ver 10.0.0.5<4>", "version IP-1:80, version IP-2/8, ver IP-1<4>"),
        ("NODE_VERSION=10.0.0.5, server 10.0.0.5, resolver 10.0.0.5", "NODE_VERSION=IP-1, server IP-1, resolver IP-1"),
        ("release-10.0.0.5, release@10.0.0.6", "USER-1-IP-1, USER-1@IP-2"),
        # joined to a word
        ("host_10.0.0.5 peer_10.1.1.1 10.0.0.5_gpu0", "host_IP-1 peer_IP-2 IP-1_gpu0"),
        ("NODE-10.0.0.5, HOST-10.0.0.5, HOST-2001:db8::1", "NODE-IP-2, HOST-IP-2, HOST-IP-1"),
        ("connecting...10.0.0.5, node.10.0.0.5", "connecting...IP-1, node.IP-1"),
        (r"failed\n10.0.0.5\n00:1a:2b:3c:4d:5e\nfe80::1", r"failed\nIP-2\nMAC-1\nIP-1"),
        ("010.001.002.003 is 10.1.2.3", "IP-1 is IP-1"),
        ("host_2001:db8::1 NODE-2001:db8::1 2001:db8::1_gpu0", "host_IP-1 NODE-IP-1 IP-1_gpu0"),
        ("fd::1 and fc::2", "IP-1 and IP-2"),
        ("nic_00:1a:2b:3c:4d:5e mac-00:1a:2b:3c:4d:5e 00-1a-2b-3c-4d-5e_x mac-00-1a-2b-3c-4d-5e",
         "nic_MAC-1 mac-MAC-1 MAC-1_x mac-MAC-1"),
        # InfiniBand's and switches' way to write hardware addresses
        ("node_guid:248a:0703:009c:01a2, 24:8a:07:03:00:9c:01:a2", "node_guid:MAC-1, MAC-1"),
        ("fe80:0000:0000:0000:248a:0703:009c:01a2", "IP-1"),
        ("001A.2B3C.4D5E, 00:1a:2b:3c:4d:5e, sw_001a.2b3c.4d5e.", "MAC-1, MAC-1, sw_MAC-1."),
    ],
)  # fmt: skip
def test_an_address_gets_a_name_whatever_it_stands_behind(text: str, shown: str) -> None:
    assert alone(text) == shown
    assert alone(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "55.4 GB/s, 3.61 µs/launch, B/clk/SM and TFLOP/s.",
        "stream / graph, host/device, and/or",
        "driver 580.159.04, CUDA 13.0.88, 96.00.A5.00.1A",
        "/proc/self/status Cpus_allowed_list, /sys/devices/system/cpu/cpu*/topology",
        "PCI 0000:00:06.0, commit 32904dfddf24111da71c24873c73089725c591b4, 20260102T030405Z-0011aabb",
        "GPU-accelerated, GPU-1, GPU 0, NVIDIA H200, GPU-P2P",
        "a serial chain of kernels; serialised launches; 1234567890 bytes",
        "root complex, a user's own test on the host",
        "2026-11-21T10:54:40+00:00",
        "nvidia-cublas-cu12==12.8.4.1, libcudnn.so.9.7.1.26, nvidia_cufft-11.3.3.83, curand==10.3.9.90",
        "opencv_python-4.10.0.84-cp37-abi3-any.whl, types-2.31.0.6-py3-none-any.whl, npp-12.3.3.100.dist-info",
        "version 12.8.0.1, v12.8.0.1, release 4.15.0.1, 1.2.3.4.5, 1.2.3.256, 96.00.74.00.01, 1.2.3.4rc1",
        "cudnn_version=9.7.1.26, 'version': '10.0.0.1', cuda ver: 10.3.9.90, versions (1.2.3.4)",
        "127.0.0.1, ::1, 0.0.0.0:0, netmask 255.255.255.0",
        "12:34:56, 2026-01-02-10-54-40, 2026:01:02 12:34:56, 20260102T030405, 10de:2335, 2026.01.02, 1234.5678",
        "00000000:1B:00.0, 0000:1b:00.0, 10:54:40, 1::2, a::b, std::cafe::add, x[1:2:3], 1:2:3:4, [::2]",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert alone(text) == text


def test_known_names_are_found_as_words_in_any_case() -> None:
    shown = learnt("Alice ran on NODE17: alices node171 nodes, job_alice_2", hosts=("node17",), users=("alice",))
    assert shown == ["USER-1 ran on HOST-1: alices node171 nodes, job_USER-1_2"]


def test_a_name_is_known_in_texts_before_the_one_that_gives_it_away() -> None:
    assert learnt("alice waits", "cd /home/alice/x") == ["USER-1 waits", "cd PATH-1"]


def test_what_was_redacted_stays_as_it_is() -> None:
    texts = [
        f"{UUID} /a/b serial: 1652921034567 alice@node17 https://x.y/z",
        "GPU-1 PATH-1 USER-1@HOST-1",
        "bob@10.0.0.1 bob@fe80::1 eth0/3c:ec:ef:12:34:5a ::ffff:10.0.0.2 HOST=10.0.0.1-10.0.0.3:80:22",
    ]
    once = learnt(*texts)
    assert learnt(*once) == once


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["a", "a+", ".", "-", "/", "/a", "./", "\\", "a/", "a.", ":1", ",/", "~", "'/", '"', "@", "a@", " ", "serial ",
     "0123-", "GPU-", "GPU-abcd-", "aaaa-aaaa-", "1", "a.local.", "x://", "é", "HOST=", "/home/",
     "aaaa.", "aaaa:aaaa:", "\\n1", "_1.1.1.1", "lib.so.1.1.1.1 ", "version ", "version 1.1.1.1 ", "npp-1.1.1.1-py3 ",
     "1.", "1:", ":", "::", "00:", "00-", "1.1.1.1 ", "nv1.1.1.1 ", "aaaa:", "=", "(", "a:1.1.1.1:"],
)  # fmt: skip
def test_each_pattern_goes_through_a_long_text_once(piece: str) -> None:
    """One that began anew at each place would meet the time-out, not a matter of seconds more."""
    text = (piece * (300_000 // len(piece) + 1))[:300_000] + "!"
    assert alone(text)


@given(any_text())
def test_any_text_can_be_redacted_and_then_stays(text: str) -> None:
    once = alone(text)
    assert alone(once) == once


JOINED = st.sampled_from(
    [
        "host_{}",
        "NODE-{}",
        "{}_gpu0",
        "nvidia@{}",
        "CUDA_HOST={}",
        "nccl {}",
        "at...{}",
        r"\n{}",
        "é{}é",
        "v-{}-v",
    ]
)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6), st.integers(0, 2**48 - 1)), JOINED, st.sampled_from(":-."))
def test_an_address_joined_to_a_word_is_seen(address: Any, context: str, between: str) -> None:
    if isinstance(address, int):
        size = 4 if between == "." else 2
        digits = f"{address:012x}"
        secret = between.join(digits[place : place + size] for place in range(0, 12, size))
    else:
        secret = str(address)
        long = address.version == 4 or max(map(len, secret.split(":"))) > 2  # else it may be a slice
        assume(long and not address.is_loopback and (address.version == 6 or 0 < address.packed[0] < 255))
    once = alone(context.replace("{}", secret))
    assert secret not in once
    assert alone(once) == once


@pytest.mark.parametrize("name", ["packages", "driver_version", "a fact"])
def test_a_version_of_four_numbers_is_no_address(name: str) -> None:
    """By itself it could be either: its place tells."""
    session = RUN.sessions[0]
    where = {
        "packages": {"packages": {"nvidia-cublas-cu12": "12.8.4.1 @ file:///home/alice/x.whl"}},
        "driver_version": {"driver_version": "12.8.4.1"},
        "a fact": {"facts": (Fact("nccl_version", "12.8.4.1"), Fact("gateway", "12.8.4.2"))},
    }[name]
    environment = msgspec.structs.replace(session.environment, **where)  # type: ignore[arg-type]
    run = msgspec.structs.replace(RUN, sessions=(msgspec.structs.replace(session, environment=environment),))
    text = schema.encode(redacted(run, NOBODY)).decode()
    assert "12.8.4.1" in text
    assert "12.8.4.2" not in text
    assert "alice" not in text


# -- runs -------------------------------------------------------------------------------------------------------------

HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
UUIDS = HEX.map(lambda digits: f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")
USERS = st.from_regex(r"[a-z]{4,8}[0-9]{2}", fullmatch=True)
HOSTS = st.from_regex(r"[a-z]{4,8}-[0-9]{3}(\.[a-z]{4,6}\.internal)?", fullmatch=True)
SEGMENTS = st.text(string.ascii_letters + string.digits + "_-é", min_size=3, max_size=8)
PATHS = st.lists(SEGMENTS, min_size=2, max_size=5).map(lambda parts: "/" + "/".join(parts))
MACS = st.lists(st.integers(0, 255), min_size=6, max_size=6).map(lambda parts: ":".join(f"{one:02x}" for one in parts))
IPV4S = st.ip_addresses(v=4).filter(lambda one: not one.is_loopback and 0 < one.packed[0] < 255).map(str)
IPV6S = st.ip_addresses(v=6).map(str).filter(lambda one: any(len(group) > 2 for group in one.split(":")))
SERIALS = st.from_regex(r"[0-9]{13}|[A-Z]{2}[0-9]{8}", fullmatch=True)
CONTEXTS = st.sampled_from(
    [
        "{}",
        "error in {}: denied",
        "'{}'",
        '"{}"',
        "({})",
        "X={}",
        "{},{}",
        "at {}.",
        "a\nb {} c\td",
        "<{}>",
        "[{}]",
        "[{}]:80",
        "{}%eth0",
        "{}/24",
        "name:{}",
    ]
)


def planted(secrets: dict[str, str], context: str) -> Run:
    """The small run with every secret in every kind of place."""
    gpu, user, host, path, serial = (secrets[name] for name in ("gpu", "user", "host", "path", "serial"))
    addresses = [secrets[name] for name in ("mac", "ipv4", "ipv6")]
    told = (gpu, user, host, path, f"serial {serial}", f"{user}@{host}", *addresses)
    text = " ".join(context.replace("{}", secret) for secret in told)
    session = RUN.sessions[0]
    info = msgspec.structs.replace(
        session.environment.gpus[0], uuid=gpu, other_processes=(f"{path}/python (pid 7, {user})",)
    )
    facts = (
        Fact("preloaded_libraries", f"{path}/x.so:{path}/y.so", source=path),
        Fact("gpu0_serial", int(serial) if serial.isdigit() else serial),
        Fact("host_name", host),
        *(Fact(f"address_{place}", address) for place, address in enumerate(addresses)),
        Fact("governor", None, reason=text),
    )
    environment = msgspec.structs.replace(
        session.environment, gpus=(info,), facts=facts, packages={"numpy": f"2.4 @ file://{path}"}, no_gpu_reason=text
    )
    asked = msgspec.structs.replace(session.settings, device=gpu, overrides={"gpu": (gpu, path)})
    measured = Outcome(
        Case("copy", {"peer": gpu, "direction": "h2d", "where": text}),
        0,
        0,
        "ok",
        measurements=(msgspec.structs.replace(MEASUREMENT, verified=text),),
        facts=(Fact("peer", gpu), Fact("said", text)),
        telemetry={gpu: Telemetry(temperature_c=41.0, throttle_reasons=(text,))},
        device=gpu,
    )
    crashed = msgspec.structs.replace(
        OUTCOMES[2], reason=f"killed by SIGSEGV\n{text}\n{text[len(text) // 3 :]}", device=gpu
    )
    return msgspec.structs.replace(
        RUN,
        sessions=(msgspec.structs.replace(session, environment=environment, settings=asked),),
        outcomes=(measured, crashed),
    )


def exports(run: Run) -> dict[str, str]:
    """Every form that a run leaves in; JSON's line ends as they are meant, or they would complete a name cut short."""
    forms = {
        "run file": schema.encode(run).decode(),
        "csv": export.to_csv(run),
        "json": export.to_json(run).decode(),
        "jsonl": export.to_json_lines(run).decode(),
        "markdown": to_markdown(report_of(run)),
    }
    return {form: text.replace("\\n", "\n").replace("\\t", "\t") for form, text in forms.items()}


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "gpu": UUIDS.map(lambda uuid: f"GPU-{uuid}"),
            "user": USERS,
            "host": HOSTS,
            "path": PATHS,
            "serial": SERIALS,
            "mac": MACS,
            "ipv4": IPV4S,
            "ipv6": IPV6S,
        }
    ),
    CONTEXTS,
    st.booleans(),
)
def test_no_secret_survives_in_any_export(secrets: dict[str, str], context: str, known: bool) -> None:
    """``known``: user and host are this machine's; else only the texts give them away."""
    run = planted(secrets, context)
    identity = Identity((secrets["host"],), (secrets["user"],)) if known else NOBODY
    made = redacted(run, identity)
    for form, text in exports(made).items():
        for name, secret in secrets.items():
            assert secret.casefold() not in text.casefold(), f"{name} in {form}"
            assert secret.removeprefix("GPU-").casefold() not in text.casefold(), f"{name} in {form}"
    again = schema.decode(schema.encode(made))
    assert report_of(again).sections
    assert again.sessions[0].environment.gpus[0].uuid == "GPU-1"
    first = again.outcomes[0]
    assert (first.device, list(first.telemetry), first.case.params["peer"]) == ("GPU-1", ["GPU-1"], "GPU-1")
    assert first.facts[0].value == again.sessions[0].settings.device == "GPU-1"
    assert redacted(made, identity) == made


def test_figures_and_findings_are_those_of_the_run() -> None:
    run = make_run(rounds=2)
    made = redacted(run, NOBODY)
    assert "GPU-1" in {one.device for one in made.outcomes}
    before, after = (to_markdown(report_of(one)) for one in (run, made))
    assert before.replace(DEVICE, "GPU-1") == after
    assert export.to_csv(run).replace(DEVICE, "GPU-1") == export.to_csv(made)


def test_the_tools_own_words_stay_whoever_uses_it() -> None:
    """A user called as a benchmark is: rows must find their benchmark all the same."""
    run = make_run()
    made = redacted(run, Identity(("submit",), ("launch_cost",)))
    assert {info.name for info in made.benchmarks} == {info.name for info in run.benchmarks}
    assert made.outcomes[0].case.benchmark == run.outcomes[0].case.benchmark
    assert len(report_of(made).sections) == len(report_of(run).sections)


def test_two_gpus_keep_apart_in_their_order() -> None:
    made = redacted(store.load("nvidia-h200-x2"), NOBODY)
    assert [gpu.uuid for gpu in made.sessions[0].environment.gpus] == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize("name", sorted(store.bundled()))
def test_bundled_runs_have_nothing_to_hide_but_their_gpus(name: str) -> None:
    run = store.load(name)
    made = redacted(run, NOBODY)
    changed = differences(msgspec.to_builtins(run.sessions), msgspec.to_builtins(made.sessions))
    assert {new for _, new in changed if new.startswith("GPU")} <= {"GPU-1", "GPU-2"}
    assert all(new.startswith("GPU") or "/" in old for old, new in changed)


def differences(old: Any, new: Any) -> list[tuple[str, str]]:
    if isinstance(old, dict):
        pairs = [*zip(old, new, strict=True), *zip(old.values(), new.values(), strict=True)]
        return [one for left, right in pairs for one in differences(left, right)]
    if isinstance(old, list | tuple):
        return [one for left, right in zip(old, new, strict=True) for one in differences(left, right)]
    return [(old, new)] if isinstance(old, str) and old != new else []


# -- the command ------------------------------------------------------------------------------------------------------


def test_this_machine_and_this_user_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "carol")
    monkeypatch.setenv("HOSTNAME", "box.example")
    found = redaction.own_identity()
    assert "carol" in found.users
    assert "box.example" in found.hosts
    assert "" not in (*found.hosts, *found.users)


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "markdown"])
def test_an_export_is_redacted_when_asked(form: str, tmp_path: Any) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(schema.encode(RUN))
    plain, hidden = (
        CliRunner().invoke(app, ["export", str(path), "--format", form, *more]).stdout for more in ([], ["--redact"])
    )
    assert SMALL_DEVICE not in hidden
    if form != "markdown":  # which has no place for a UUID
        assert SMALL_DEVICE in plain
        assert "GPU-1" in hidden


def test_a_redacted_json_export_can_be_shown(tmp_path: Any) -> None:
    path = tmp_path / "shared.json"
    exported = CliRunner().invoke(app, ["export", "nvidia-h200-x2", "--format", "json", "--redact"])
    path.write_bytes(exported.stdout_bytes)
    result = CliRunner().invoke(app, ["show", str(path)])
    assert result.exit_code == 0
    assert "NVIDIA H200" in result.stdout
