"""The bytes of a run on TCP, beside those that the project states: the paper's formula and serialised protobuf."""

import json
import socket
import threading

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.bench import wire_bytes as bench_bytes
from fedbnsl_research.bench.wire_bytes import CountingProxy, run_bytes
from fedbnsl_workbench.tables.synthetic import synthesise

MAX_FRAMING_BYTES = 300  # a call, in plaintext: headers of HTTP/2, once in full and then by reference, and frames
CASES = [(d, how) for d in (20, 100, 200) for how in ("with", "without")]
MAX_TLS_BYTES = 300  # a call, on top: its records, and its share of a handshake with two certificates


@pytest.fixture
def tables():
    truth = synthesise(12, 12, 3, 100, 7)
    return {f"site-{k}": Dataset(truth.variables, X) for k, X in enumerate(truth.tables)}


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_a_run_costs_on_tcp_its_messages_and_little_beside(value_type, tables):
    counted = run_bytes(Plan(rounds=10, value_type=value_type), tables, tls=False)
    assert counted.n_calls == 3 * (2 + 2 * 11)
    assert counted.serialised < counted.protobuf < counted.tcp
    assert 20 < counted.framing_bytes < MAX_FRAMING_BYTES, "less than frames and headers take was not counted"


def test_tls_adds_records_and_handshakes_and_nothing_else(tables):
    plan = Plan(rounds=10)
    plain, secure = run_bytes(plan, tables, tls=False), run_bytes(plan, tables, tls=True)
    assert secure.serialised == plain.serialised
    assert 20 < secure.framing_bytes - plain.framing_bytes < MAX_TLS_BYTES


def test_smaller_numbers_are_smaller_on_tcp(tables):
    plan = Plan(rounds=10)
    double, single = (
        run_bytes(plan.with_settings(value_type=kind), tables, tls=True) for kind in ("float64", "float32")
    )
    saved, saved_on_tcp = double.protobuf - single.protobuf, double.tcp - single.tcp
    assert saved > 10_000
    assert saved_on_tcp == pytest.approx(saved, rel=0.15)


def test_the_proxy_passes_on_what_it_counts_in_both_directions():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                received = b""
                while chunk := connection.recv(4096):
                    received += chunk
                connection.sendall(received * 2)

        upstream = threading.Thread(target=answer)
        upstream.start()
        with CountingProxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            host, _, port = proxy.address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(b"abc" * 50_000)
                client.shutdown(socket.SHUT_WR)
                got = b""
                while chunk := client.recv(65536):
                    got += chunk
        upstream.join()
    assert got == b"abc" * 100_000
    assert (sum(proxy.up), sum(proxy.down)) == (150_000, 300_000)


def test_the_figure_tells_the_three_counts_apart(monkeypatch):
    ready = Plan.load
    monkeypatch.setattr(Plan, "load", lambda name: ready(name, ["rounds=2"]))
    monkeypatch.setattr(bench_bytes, "synthesise", lambda d, *rest: synthesise(5, 5, 2, 60, 3))
    rows = list(bench_bytes.wire())
    assert [f"d={d}, P=8, {how} TLS" in row["figure"] for row, (d, how) in zip(rows, CASES, strict=True)] == [True] * 6
    for row in rows:
        assert row["MB serialised"] < row["MB all protobuf"] < row["MB TCP"]
        assert row["calls"] == 2 * (2 + 2 * 3)
        assert json.dumps(row, allow_nan=False)
