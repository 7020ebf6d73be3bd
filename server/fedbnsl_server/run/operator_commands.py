"""Operator commands to a run that goes on: a site is taken out between rounds, or the open round is recalled."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from fedbnsl.errors import InterruptedRunError, ResultError, SetupError
from fedbnsl.events.security_log import Record
from fedbnsl_server.results.results import RunRecorder
from fedbnsl_server.run.pause import Pause
from fedbnsl_server.sites.ejection import Ejected, round_to_go_on_after
from fedbnsl_server.sites.mailbox import CompleteRounds, Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store import operator_commands
from fedbnsl_server.store.operator_commands import Answer, EjectCommand
from fedbnsl_server.store.run_folder import RunFolder

_LOOK_S = 0.5


@dataclass(frozen=True)
class RunParts:
    """What holds the members of a run: a site is taken out of all of it."""

    folder: RunFolder
    recorder: RunRecorder
    roster: Roster
    mailbox: Mailbox


class OperatorCommands:
    """Takes the commands in a run's folder; used on the run's event loop.

    `say` tells the operator what became of a command, `note` events.jsonl as well; `on_broken` gets an error that ends
    the run.
    """

    def __init__(
        self,
        run: RunParts,
        pause: Pause,
        *,
        say: Callable[[str], None],
        note: Callable[[str], None],
        record: Record,
        on_broken: Callable[[ResultError], None],
    ) -> None:
        self.rounds_are_played = False  # whether the rounds' thread works: a command then recalls the open round
        self.recalled_for: EjectCommand | None = None
        self._folder, self._plan = run.folder, run.folder.plan
        self._recorder, self._roster, self._mailbox = run.recorder, run.roster, run.mailbox
        self._pause = pause
        self._say = say
        self._note = note
        self._record = record
        self._on_broken = on_broken
        self._not_understood = ""

    async def take_between_rounds(self) -> None:
        """Go on from the last complete round, without whoever is ejected now; no round is under way."""
        self.recalled_for, self.rounds_are_played = None, False
        self._go_on()  # also if the command is refused now, because the last round was complete before it
        await self._pause.outlast(self.take)

    async def look(self) -> None:
        """Take commands while the run goes on, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.recalled_for is None:
                try:
                    await self._pause.outlast(self.take)
                except InterruptedRunError:  # the run ends, and says so itself
                    return
                except ResultError as error:
                    self._on_broken(error)

    def take(self) -> None:
        """Answer the command that waits; if it can be carried out while rounds are played, recall the open one."""
        try:
            command = operator_commands.pending(self._folder.path)
        except ResultError as error:  # a damaged file is no reason to end the run
            if str(error) != self._not_understood:
                self._not_understood = str(error)
                self._note(self._not_understood)
            return
        if command is None:
            return
        done = next((one for one in self._recorder.ejected if one.order == command.id), None)
        refusal = self._refusal(command)
        if done is not None:  # a crash came before the answer
            self._answer(command, done.sentence, done=True)
        elif refusal is not None:
            self._note(f"not ejected: {refusal}")
            self._answer(command, refusal, done=False)
        elif self.rounds_are_played:
            self.recalled_for = command
            self._mailbox.recall()
        else:  # no round is under way
            self._answer(command, self._take_out(command), done=True)

    async def go_on_without(self, sites: Sequence[str]) -> bool:
        """Whether the present round, which these sites have not answered in time, is asked again of the others."""
        if not (self._plan.secure_aggregation and sites):
            return False
        if len({*sites, *(one.site for one in self._recorder.ejected)}) > self._plan.retries:
            return False
        self.rounds_are_played = False
        for site in sites:
            await self._pause.outlast(partial(self._lose, EjectCommand(secrets.token_hex(8), site, None)))
        return True

    def _lose(self, command: EjectCommand) -> None:
        """Take out a site that has not answered, unless a command has done so while there was no room to write."""
        if command.site not in {one.site for one in self._recorder.ejected}:
            self._take_out(command)

    def _take_out(self, command: EjectCommand) -> str:
        """Take the site out of folder, roster and mailbox; what to say of it."""
        after = self._round_to_go_on_after(command)
        member = self._roster.members.get(command.site)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = 0 if member is None else member.n_samples
        ejected = Ejected(command.id, command.site, command.from_round, after, rows, now)
        self._recorder.eject(ejected)
        self._record("ejected", site=command.site, round=after + 1)
        self._roster.eject(command.site)
        self._go_on()
        text = f"{ejected.sentence}; round {after + 1} is next"
        if self._plan.secure_aggregation:
            text += ": the others answer it with fresh noise, and pay for it"
        self._say(text)
        return text

    def _go_on(self) -> None:
        """Let the mailbox go on from the state of the recorder."""
        state = self._recorder.state
        answered = {site: entry["round"] for entry in self._recorder.rounds for site in entry["contributed"]}
        before = CompleteRounds(answered=answered)
        self._mailbox.go_on_after(before if state is None else CompleteRounds(state.round, state.sites, answered))

    def _answer(self, command: EjectCommand, text: str, *, done: bool) -> None:
        operator_commands.settle(self._folder.path, Answer(command.id, done, text))

    def _refusal(self, command: EjectCommand) -> str | None:
        try:
            self._round_to_go_on_after(command)
        except SetupError as error:
            # The remedy of the class speaks of options, to somebody at a keyboard.
            return str(error) if error.remedy == SetupError.remedy else f"{error}. {error.remedy}"
        return None

    def _round_to_go_on_after(self, command: EjectCommand) -> int:
        return round_to_go_on_after(
            command.site,
            command.from_round,
            plan=self._plan,
            members=self._roster.members.keys(),
            ejected=self._recorder.ejected,
            rounds=self._recorder.rounds,
            kept=self._folder.kept.rounds(),
        )
