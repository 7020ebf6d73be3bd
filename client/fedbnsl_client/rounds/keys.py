"""A round of keys at a site: make the key of this run, and sign it for the sites that the coordinator names."""

from typing import cast

from fedbnsl.errors import LocalProtocolError
from fedbnsl.protocol.codec import task_digest
from fedbnsl.protocol.messages import DIGEST_BYTES, RoundTask
from fedbnsl.rounds.keys import Answer, Task
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """The private half stays at the site, with its answer."""

    keeps_task = True

    def answer(self, task: RoundTask) -> Answer:
        """The public half.

        Raises PeerRefusedError if the sites are not those of the plan, or not enough of them are confirmed.
        """
        member = self.problem.member
        if member is None:
            raise LocalProtocolError("keys belong to plans with privacy.secure_aggregation")
        from fedbnsl_client.secure_aggregation import keys  # here: it loads cryptography

        memberships = member.present(cast(Task, task.content).memberships, task.lost)
        self.private_key = keys.new_private_key()
        public = keys.public_key(self.private_key)
        asked = task_digest(task.content, None, task.lost)[:DIGEST_BYTES]
        return Answer(public, member.signature(memberships, public), asked)
