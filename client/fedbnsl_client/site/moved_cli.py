"""`fedbnsl participant moved`: the coordinator has another address; policy and bundle of a site name the new one."""

import re
from collections.abc import Collection
from pathlib import Path

import click

from fedbnsl.errors import SetupError
from fedbnsl.identity.passphrase import Passphrases, passphrase_option
from fedbnsl_client.site.options import FOLDER, federation_option

_RULE = re.compile(r"^coordinators\s*=\s*\[[^\]]*\]", re.MULTILINE)


@click.command()
@FOLDER
@click.argument("address", metavar="HOST[:PORT]")
@federation_option
@passphrase_option
def moved(folder: Path, address: str, federation: str | None, passphrases: Passphrases) -> None:
    """Call the coordinator at another address from now on, which must prove itself under the same authority.

    It is tried first; if it does not answer, nothing is changed. Otherwise the site's certificate, its key, its budget
    and its approvals stay as they are; FOLDER's policy.toml and identity/bundle.toml name the new address. An agent
    that runs uses it from its next connection on.
    """
    from fedbnsl.files import durable
    from fedbnsl.protocol.channel import split_address
    from fedbnsl_client.session import Session
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.identity import Identity, federations, place_of

    own = Identity.open(place_of(folder, federation), passphrases)
    _, old_port = split_address(own.coordinator)
    if not re.search(r":\d+$", address):
        address = f"{address}:{old_port}"
    policy = folder / site_folder.POLICY
    text = policy.read_text(encoding="utf-8") if policy.exists() else ""
    elsewhere = [Identity.open(place).coordinator for place in federations(folder).values() if place != own.place]
    changed = _with_host(text, _new_names(own.coordinator, address, elsewhere), policy) if text else ""
    with Session(address, own.credentials()) as session:
        status = session.look()
    if status.site != own.name.site:
        raise SetupError(f"{address} knows this site as {status.site!r}; nothing was changed")
    if changed != text:
        durable.write_text(policy, changed)
    own.move(address)
    click.echo(
        f"{address} answers, under the authority of federation {own.name.federation!r}; it is called from now on"
    )
    click.echo("an agent that runs does so at its next connection; `participant join` has to be started again")


def _new_names(old: str, address: str, elsewhere: Collection[str]) -> dict[str, tuple[str, ...]]:
    """What stands in a policy for the old host:port and its host; a host that other federations are on stays, too."""
    from fedbnsl.protocol.channel import split_address

    old_host, host = split_address(old)[0], split_address(address)[0]
    stays = (old_host,) if old_host in [split_address(one)[0] for one in elsewhere] else ()
    return {old: (address,), old_host: tuple(dict.fromkeys((*stays, host)))}


def _with_host(text: str, new: dict[str, tuple[str, ...]], policy: Path) -> str:
    """The policy with the new address in place of the old one, all else as it was."""
    from fedbnsl_client.budget.policy import Policy

    before = Policy.parse(text, origin=str(policy))
    wanted = tuple(name for one in before.coordinators for name in new.get(one, (one,)))
    found = _RULE.search(text)
    if found is not None:
        rule = found[0]
        for old, its in new.items():
            rule = rule.replace(f'"{old}"', ", ".join(f'"{one}"' for one in its))
        changed = text[: found.start()] + rule + text[found.end() :]
        if Policy.parse(changed, origin=str(policy)) == before.model_copy(update={"coordinators": wanted}):
            return changed
    raise SetupError(
        f"{policy}: the rule `coordinators` is written in a way that this command does not change; nothing was changed",
        remedy=f"Enter the new address by hand: coordinators = {list(wanted)}, and call this command again.",
    )
