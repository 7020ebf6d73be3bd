"""The options of the commands that serve runs, and of those that ask a coordinator: one value for each command."""

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import SetupError
from fedbnsl.events.emitter import Events
from fedbnsl.events.options import Listeners, takes_listeners
from fedbnsl.identity.passphrase import Passphrases, passphrase_option
from fedbnsl.web.options import is_asked_for, served_at

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.page.runs_page import RunsPage
    from fedbnsl_server.observe.prometheus import MetricsPort
    from fedbnsl_server.run.settings import ServerSettings

_TLS = "the federation's server certificate"
_insecure = click.option("--insecure", is_flag=True, help="Instead of --federation: plaintext, on loopback only.")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@dataclass(frozen=True)
class Http:
    """Where something is served over HTTP, and the file of the token that viewers must show; None: nowhere."""

    address: str | None = None
    token_file: Path | None = None

    def metrics(self, federation: "Federation | None") -> "AbstractContextManager[MetricsPort | None]":
        """The port for metrics, if asked for; SetupError if it cannot be had, or lacks TLS or a token."""
        if not is_asked_for(self.address, self.token_file, option="--metrics"):
            return nullcontext()
        from fedbnsl_server.observe.prometheus import MetricsPort

        return MetricsPort(self.address, token_file=self.token_file, federation=federation)

    def page(self, federation: "Federation | None", log: Path | None) -> "AbstractContextManager[RunsPage | None]":
        """The page of the coordinator's runs, likewise; `log` is the file of the security log, None: none."""
        if not is_asked_for(self.address, self.token_file, option="--web"):
            return nullcontext()
        from fedbnsl_server.observe.page.runs_page import RunsPage

        return RunsPage(self.address, token_file=self.token_file, federation=federation, log=log)


@dataclass(frozen=True)
class Caller:
    """Which coordinator a command asks, and with whose certificate; without a federation in plaintext."""

    address: str
    federation: "Federation | None"

    @property
    def credentials(self) -> "Credentials | None":
        """What the coordinator is shown."""
        return None if self.federation is None else self.federation.credentials()


@dataclass(frozen=True)
class ServerOptions:
    """How runs are served, as given on the command line; see `ServerSettings`."""

    listen: str | None
    federation_folder: Path | None
    federation: "Federation | None"
    site_ledgers: Path | None
    security_log: Path | None
    address_file: Path | None
    metrics: Http
    web: Http
    listeners: Listeners

    @contextmanager
    def open(
        self, on_listening: Callable[[str], None], say: Callable[[str], None]
    ) -> Generator[tuple["ServerSettings", Events]]:
        """The settings, and what is told the events of runs, with the ports for metrics and for the page open."""
        from fedbnsl.events.security_log import NAME
        from fedbnsl.files.durable import write_text
        from fedbnsl.protocol.channel import DEFAULT_PORT
        from fedbnsl_server.run.settings import ServerSettings

        federation = self.federation
        # Until the command ends: a slow hook does not keep anybody from the results.
        events = click.get_current_context().with_resource(self.listeners.listening("fedbnsl-coordinator"))

        def listening(address: str) -> None:
            if self.address_file is not None:
                write_text(self.address_file, address)
            on_listening(address)

        default = f"127.0.0.1:{DEFAULT_PORT}" if federation is None else f"0.0.0.0:{federation.port}"
        log = self.security_log or (None if federation is None else federation.folder / NAME)
        with self.metrics.metrics(federation) as port, self.web.page(federation, log) as page:
            if port is not None:
                say(f"metrics on port {port.port}")
            if page is not None:
                events.listen(page.heard)
                if port is not None:
                    port.of_page = page.port.access.refusals
                say(f"page: {page.port.url}")
            yield (
                ServerSettings(
                    self.listen or default, listening, federation, self.site_ledgers, self.security_log, port, page
                ),
                events,
            )


def takes_metrics(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --metrics and --metrics-token; its function gets `Http` as `metrics`."""

    @functools.wraps(command)
    def with_metrics(*args: object, metrics: str | None, metrics_token: Path | None, **others: object) -> None:
        command(*args, metrics=Http(metrics, metrics_token), **others)

    return served_at("--metrics", "Serve metrics for Prometheus", _TLS)(with_metrics)


def takes_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a server; its function gets `ServerOptions` as `server`."""
    own = ("listen", "federation_folder", "site_ledgers", "security_log", "address_file", "metrics", "listeners")

    @functools.wraps(command)
    def with_server(
        *args: object,
        insecure: bool,
        passphrases: Passphrases,
        web: str | None,
        web_token: Path | None,
        **others: Any,
    ) -> None:
        given = {name: others.pop(name) for name in own}
        federation = _opened(given["federation_folder"], insecure, passphrases)
        server = ServerOptions(**given, federation=federation, web=Http(web, web_token))
        command(*args, server=server, **others)

    options = (
        click.option(
            "--listen",
            metavar="HOST:PORT",
            help="Where to listen; port 0 takes a free one.  [default: all addresses of this machine, at the "
            "federation's port; with --insecure 127.0.0.1:50051]",
        ),
        click.option(
            "--federation",
            "federation_folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder made by `coordinator init`: TLS, and only its enrolled sites may call.",
        ),
        _insecure,
        click.option(
            "--site-ledgers",
            type=click.Path(path_type=Path),
            help="File that remembers the sites' privacy ledgers from run to run.  [default: beside the run folders]",
        ),
        click.option(
            "--security-log",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File of who called, who was refused and why; `coordinator audit-log` shows it.  [default: "
            "security-log.jsonl in the federation's folder; with --insecure beside the run folders]",
        ),
        click.option(
            "--address-file",
            type=click.Path(path_type=Path),
            help="Write the listening host:port to this file once sites can call.",
        ),
        takes_metrics,
        takes_listeners,
        served_at("--web", "Show the runs in a browser", _TLS),
        passphrase_option,
    )
    decorated: Callable[..., None] = with_server
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def asks_a_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command HOST:PORT, --federation, --insecure and --json; its function gets `coordinator` and `as_json`."""

    @functools.wraps(command)
    def with_caller(
        *args: object,
        address: str | None,
        federation_folder: Path | None,
        insecure: bool,
        passphrases: Passphrases,
        **others: object,
    ) -> None:
        from fedbnsl.protocol.channel import DEFAULT_PORT

        federation = _opened(federation_folder, insecure, passphrases)
        port = DEFAULT_PORT if federation is None else federation.port
        command(*args, coordinator=Caller(address or f"127.0.0.1:{port}", federation), **others)

    options = (
        click.argument("address", metavar="[HOST:PORT]", required=False),
        click.option(
            "--federation",
            "federation_folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="The coordinator's folder, made by `coordinator init`: ask over TLS.",
        ),
        _insecure,
        json_option,
        passphrase_option,
    )
    for option in reversed(options):
        with_caller = option(with_caller)
    return with_caller


def _opened(folder: Path | None, insecure: bool, passphrases: Passphrases) -> "Federation | None":
    """The federation in the folder; a command takes either --federation or --insecure."""
    if (folder is None) is not insecure:
        raise SetupError(
            "pass either --federation FOLDER, made by `coordinator init`, or --insecure for plaintext on loopback"
        )
    if folder is None:
        return None
    from fedbnsl_server.identity.enrolment import Federation

    return Federation.open(folder, passphrases=passphrases)
