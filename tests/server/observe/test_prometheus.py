"""What a scraper reads of a run."""

import asyncio
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedbnsl.errors import SetupError
from fedbnsl.protocol.messages import Phase, RunStatus, SiteProgress
from fedbnsl_server.observe.from_loop import from_loop
from fedbnsl_server.observe.prometheus import MetricsPort
from federation_folder import make_federation

SITES = (
    SiteProgress("north", True, False, 0.5, 1000, 200, online_s=60.0, last_round=3, spent_units=250_000_000_000),
    SiteProgress("süd", False, False, 90.0, 10, 20, last_round=2),
)
STATUS = RunStatus("running", 3, 10, 1.5e-3, 17, 12.75, SITES)


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_every_number_of_a_status_is_scraped_over_http():
    with MetricsPort("127.0.0.1:0") as port:
        port.look = lambda: {"cohort": STATUS}
        got = scraped(port)
    states = dict.fromkeys(("waiting for sites", "paused", "draining", "finished", "interrupted", "failed"), 0)
    states["running"] = 1
    run, north, south = ("run", "cohort"), ("site", "north"), ("site", "süd")
    assert got == {
        ("fedbnsl_up",): 1,
        ("fedbnsl_round", run): 3,
        ("fedbnsl_rounds", run): 10,
        ("fedbnsl_acyclicity", run): 1.5e-3,
        ("fedbnsl_edges", run): 17,
        ("fedbnsl_undirected_edges", run): 0,
        ("fedbnsl_elapsed_seconds", run): 12.75,
        **{("fedbnsl_run_state", run, ("state", state)): on for state, on in states.items()},
        ("fedbnsl_site_bytes_total", ("direction", "up"), run, north): 1000,
        ("fedbnsl_site_bytes_total", ("direction", "down"), run, north): 200,
        ("fedbnsl_site_bytes_total", ("direction", "up"), run, south): 10,
        ("fedbnsl_site_bytes_total", ("direction", "down"), run, south): 20,
        ("fedbnsl_site_last_seen_seconds", run, north): 0.5,
        ("fedbnsl_site_last_seen_seconds", run, south): 90,
        ("fedbnsl_site_online", run, north): 1,
        ("fedbnsl_site_online", run, south): 0,
        ("fedbnsl_site_last_round", run, north): 3,
        ("fedbnsl_site_last_round", run, south): 2,
        ("fedbnsl_site_spent_zcdp", run, north): pytest.approx(0.25),
    }


def test_refused_calls_and_joins_are_counted_by_class():
    totals = {("refused", "malformed"): 8671, ("refused", "no membership"): 2, ("joined", ""): 3, ("left", "policy"): 1}
    with MetricsPort("127.0.0.1:0") as port:
        port.totals = lambda: totals
        got = scraped(port)
    assert got == {
        ("fedbnsl_up",): 0,
        ("fedbnsl_refused_calls_total", ("why", "malformed")): 8671,
        ("fedbnsl_refused_calls_total", ("why", "no membership")): 2,
        ("fedbnsl_security_events_total", ("event", "joined")): 3,
        ("fedbnsl_security_events_total", ("event", "left")): 1,
    }


def test_a_paused_run_says_what_it_waits_for():
    with MetricsPort("127.0.0.1:0") as port:
        port.look = lambda: {"cohort": replace(STATUS, state="paused", reason="No space left on device")}
        got = scraped(port)
    assert got["fedbnsl_run_state", ("run", "cohort"), ("state", "paused")] == 1
    assert got["fedbnsl_run_paused", ("reason", "No space left on device"), ("run", "cohort")] == 1


def test_what_takes_time_is_scraped_with_its_share_and_the_time_left_where_they_are_known():
    with MetricsPort("127.0.0.1:0") as port:
        port.look = lambda: {
            "cohort": replace(STATUS, phase=Phase("bootstrap", 0.25, 4.0, 12.0)),
            "other": replace(STATUS, phase=Phase("loading compiled code", None, 3.0)),
        }
        got = scraped(port)
    one, other = (("phase", "bootstrap"), ("run", "cohort")), (("phase", "loading compiled code"), ("run", "other"))
    assert {key: value for key, value in got.items() if "phase" in key[0]} == {
        ("fedbnsl_phase_seconds", *one): 4,
        ("fedbnsl_phase_share", *one): 0.25,
        ("fedbnsl_phase_left_seconds", *one): 12,
        ("fedbnsl_phase_seconds", *other): 3,
    }


def test_a_run_that_waits_for_a_quorum_is_not_paused():
    with MetricsPort("127.0.0.1:0") as port:
        port.look = lambda: {"cohort": replace(STATUS, reason="waiting for c (quorum 3 of 3)")}
        got = scraped(port)
    assert not [key for key in got if key[0] == "fedbnsl_run_paused"]


def test_without_a_coordinator_there_is_nothing_but_that_it_is_down():
    with MetricsPort("127.0.0.1:0") as port:
        assert scraped(port) == {("fedbnsl_up",): 0}


def test_two_runs_in_one_process_do_not_share_their_metrics():
    with MetricsPort("127.0.0.1:0") as one, MetricsPort("127.0.0.1:0") as other:
        one.look = lambda: {"cohort": STATUS}
        assert len(scraped(one)) > 1
        assert len(scraped(other)) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", ":9000", "127.0.0.1:70000", "no-such-host.invalid:0"])
def test_an_address_that_cannot_be_used_is_refused_with_the_name_of_the_option(address):
    with pytest.raises(SetupError, match=r"^--metrics: cannot listen on"):
        MetricsPort(address)


def test_a_port_in_use_is_refused_with_the_name_of_the_option():
    with MetricsPort("127.0.0.1:0") as port:
        with pytest.raises(SetupError, match=rf"--metrics: cannot listen on '127.0.0.1:{port.port}': .*in use"):
            MetricsPort(f"127.0.0.1:{port.port}")
        taken = port.port
    with MetricsPort(f"127.0.0.1:{taken}") as again:
        assert again.port == taken, "the port is free again"


TOKEN = "0123456789abcdef-and-more"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n", encoding="utf-8")
    return path


@pytest.fixture
def federation(tmp_path):
    return make_federation(tmp_path / "lab")


def asked(port, federation, *, token):
    headers = {} if token is None else {"Authorization": token}
    context = ssl.create_default_context(cafile=federation.folder / "ca.pem")
    request = urllib.request.Request(f"https://127.0.0.1:{port.port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=10, context=context) as reply:
        return reply.read().decode()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_beyond_this_machine_metrics_without_a_token_are_refused(address):
    with pytest.raises(SetupError, match=r"^--metrics: cannot listen on .*is not on this machine") as refused:
        MetricsPort(address)
    assert "--federation and --metrics-token" in refused.value.remedy


def test_a_token_never_goes_in_plaintext(token_file):
    with pytest.raises(SetupError, match="needs --federation"):
        MetricsPort("127.0.0.1:0", token_file=token_file)


def test_metrics_for_all_addresses_go_over_tls_to_those_who_have_the_token(token_file, federation):
    with MetricsPort("0.0.0.0:0", token_file=token_file, federation=federation) as port:
        port.look = lambda: {"cohort": STATUS}
        assert 'fedbnsl_round{run="cohort"} 3.0' in asked(port, federation, token=f"Bearer {TOKEN}")
        for wrong in (None, TOKEN, "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer ü"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked(port, federation, token=wrong)
            assert refused.value.code == 401
            assert b"fedbnsl_" not in refused.value.read()
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10)


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(token_file, federation):
    def certificate():
        with (
            socket.create_connection(("127.0.0.1", port.port), timeout=10) as plain,
            ssl.create_default_context(cafile=federation.folder / "ca.pem").wrap_socket(
                plain, server_hostname="127.0.0.1"
            ) as secure,
        ):
            return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True))

    with MetricsPort("127.0.0.1:0", token_file=token_file, federation=federation) as port:
        first = certificate()
        federation.renew(days=3)
        second = certificate()
        assert first != second == federation.credentials().certificate.decode()
        (federation.folder / "server.pem").write_text("no key at all", encoding="utf-8")
        assert certificate() == second


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_look_at_a_loop_happens_on_its_thread(loop):
    where = []

    def look():
        where.append(threading.current_thread())
        return {"cohort": STATUS}

    assert from_loop(loop, look)() == {"cohort": STATUS}
    assert where[0] is not threading.current_thread()


@pytest.mark.long
def test_a_look_at_a_loop_that_is_busy_or_over_sees_nothing(loop):
    loop.call_soon_threadsafe(time.sleep, 3.0)
    assert from_loop(loop, lambda: {"cohort": STATUS})() is None
    over = asyncio.new_event_loop()
    over.close()
    assert from_loop(over, lambda: {"cohort": STATUS})() is None
