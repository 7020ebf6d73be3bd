"""How every command that takes part in runs takes listeners to their events: --hook, --hook-events and --traces."""

import functools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import click

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import InterruptedRunError, SetupError
from fedbnsl.events.emitter import Events


@dataclass(frozen=True)
class Listeners:
    """Who shall listen to what happens, as given on the command line."""

    hook: str | None = None
    hook_events: str | None = None
    traces: str | None = None

    @property
    def are_named(self) -> bool:
        """Whether anybody shall listen at all: otherwise a site need not ask its ledger what a release has cost."""
        return self.hook is not None or self.traces is not None

    @contextmanager
    def listening(self, service: str) -> Generator[Events]:
        """Events that those who were named listen to; at the end, a few seconds for what they have not passed on.

        Raises SetupError if the hook is no command, or traces must not be sent there. `service`: name of this process
        in traces.
        """
        events, listeners = Events(), ExitStack()
        try:
            if self.hook is not None:
                from fedbnsl.events.hook import FOR_PEOPLE, Hook, kinds_of

                kinds = FOR_PEOPLE if self.hook_events is None else kinds_of(self.hook_events)
                events.listen(listeners.enter_context(Hook(self.hook, kinds)))
            elif self.hook_events is not None:
                raise SetupError("--hook-events goes with --hook")
            if self.traces is not None:
                try:
                    from fedbnsl.events.traces import Traces
                except ModuleNotFoundError as error:
                    raise SetupError(
                        f"--traces needs the package {error.name}, which is not installed",
                        remedy="Install what traces need: pip install 'fedbnsl-site[otel]'.",
                    ) from None
                events.listen(listeners.enter_context(Traces.sent_to(self.traces, service=service)))
            yield events
        finally:
            # Whoever asks once more to end ends this waiting, too, and the hook is killed before this process goes.
            with suppress(InterruptedRunError), interruptible():
                listeners.close()


def takes_listeners(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --hook, --hook-events and --traces; its function gets `Listeners` as `listeners`."""

    @functools.wraps(command)
    def with_listeners(
        *args: object, hook: str | None, hook_events: str | None, traces: str | None, **others: object
    ) -> None:
        command(*args, listeners=Listeners(hook, hook_events, traces), **others)

    for option in (
        click.option(
            "--traces",
            metavar="URL",
            help="Send OpenTelemetry traces to the collector there (OTLP over HTTP): https://HOST[:PORT], or "
            "http://127.0.0.1:4318 on this machine. Needs the extra otel.  [default: nothing is sent]",
        ),
        click.option(
            "--hook-events",
            metavar="all|EVENT,...",
            help="The events that the hook is called for.  [default: those that people want to hear of at once: sites "
            "that are away, back or left, pauses, a budget that is low, the begin and the end of a run]",
        ),
        click.option(
            "--hook",
            metavar="COMMAND",
            help="Call this command, without a shell, when something happens in a run; it gets the event as JSON on "
            "standard input, and is killed after 30 s.",
        ),
    ):
        with_listeners = option(with_listeners)
    return with_listeners
