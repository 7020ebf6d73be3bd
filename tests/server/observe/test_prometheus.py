"""What a scraper reads of a run."""

import asyncio
import threading
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedbnsl.errors import SetupError
from fedbnsl.messages import RunStatus, SiteProgress
from fedbnsl_server.observe.prometheus import MetricsPort, from_loop

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
        port.look = lambda: STATUS
        got = scraped(port)
    states = {"waiting for sites": 0, "running": 1, "draining": 0, "finished": 0, "interrupted": 0, "failed": 0}
    north, south = ("site", "north"), ("site", "süd")
    assert got == {
        ("fedbnsl_up",): 1,
        ("fedbnsl_round",): 3,
        ("fedbnsl_rounds",): 10,
        ("fedbnsl_acyclicity",): 1.5e-3,
        ("fedbnsl_edges",): 17,
        ("fedbnsl_elapsed_seconds",): 12.75,
        **{("fedbnsl_run_state", ("state", state)): on for state, on in states.items()},
        ("fedbnsl_site_bytes_total", ("direction", "up"), north): 1000,
        ("fedbnsl_site_bytes_total", ("direction", "down"), north): 200,
        ("fedbnsl_site_bytes_total", ("direction", "up"), south): 10,
        ("fedbnsl_site_bytes_total", ("direction", "down"), south): 20,
        ("fedbnsl_site_last_seen_seconds", north): 0.5,
        ("fedbnsl_site_last_seen_seconds", south): 90,
        ("fedbnsl_site_online", north): 1,
        ("fedbnsl_site_online", south): 0,
        ("fedbnsl_site_last_round", north): 3,
        ("fedbnsl_site_last_round", south): 2,
        ("fedbnsl_site_spent_zcdp", north): pytest.approx(0.25),
    }


def test_without_a_coordinator_there_is_nothing_but_that_it_is_down():
    with MetricsPort("127.0.0.1:0") as port:
        assert scraped(port) == {("fedbnsl_up",): 0}


def test_two_runs_in_one_process_do_not_share_their_metrics():
    with MetricsPort("127.0.0.1:0") as one, MetricsPort("127.0.0.1:0") as other:
        one.look = lambda: STATUS
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
        return STATUS

    assert from_loop(loop, look)() is STATUS
    assert where[0] is not threading.current_thread()


def test_a_look_at_a_loop_that_is_busy_or_over_sees_nothing(loop):
    loop.call_soon_threadsafe(time.sleep, 3.0)
    assert from_loop(loop, lambda: STATUS)() is None
    over = asyncio.new_event_loop()
    over.close()
    assert from_loop(over, lambda: STATUS)() is None
