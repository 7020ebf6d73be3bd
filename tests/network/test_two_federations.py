"""A site in two federations, over TLS: two identities and two lists of confirmed peers, one policy and one ledger."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Outcome, refused
from fedbnsl import join
from fedbnsl.errors import IdentityError, NotApprovedError, PolicyRefusal, SetupError, UnreachableError
from fedbnsl.identity.certificates import Name, key_fingerprint
from fedbnsl.identity.roster_sheet import RosterSheet
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.messages import RunOffer
from fedbnsl_client.agent.agent import _Rules
from fedbnsl_client.agent.part import is_allowed
from fedbnsl_client.budget.approvals import Terms
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.secure_aggregation.keys import Enrolled, public_key_of
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity, moved_cli
from fedbnsl_client.site.admission import GuardedTable, approval_for, approved_terms
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import ServerSettings
from federation_folder import enrol, make_federation
from forked import Command, joining, start_fork_server
from private_site import DATASET, NAMES, edit, make_site, private_plan, rows, units_spent, write_table
from waiting import until

PLAN = private_plan(variables=NAMES, sites=["north", "south"], privacy={"epsilon": 1.0})


@pytest.fixture
def federations(tmp_path: Path) -> dict[str, Federation]:
    return {name: make_federation(tmp_path / name, name=name) for name in ("heart", "lung")}


@pytest.fixture
def north(tmp_path: Path, federations: dict[str, Federation]) -> Path:
    make_site(tmp_path / "north", coordinators=("127.0.0.1",))
    for one in federations.values():
        enrol(one, tmp_path / "north", "north")
    return tmp_path / "north"


def south_of(federation: Federation, folder: Path) -> Path:
    make_site(folder, table=write_table(folder / "t.csv", rows(2)), site="south", dataset_id=f"of-{federation.name}")
    enrol(federation, folder, "south")
    return folder


def run(federation: Federation, out: Path, *sites: tuple[Path, tuple[str, ...]]) -> None:
    start_fork_server()
    ends: list[tuple[int | None, str]] = []

    def act(folder: Path, options: tuple[str, ...], address: str) -> None:
        process = joining(folder, address, options)
        said = process.communicate(60)
        ends.append((process.returncode, said))

    acting: list[threading.Thread] = []

    def listening(address: str) -> None:
        for folder, options in sites:
            acting.append(threading.Thread(target=act, args=(folder, options, address)))
            acting[-1].start()

    serve(PLAN, out, ServerSettings("127.0.0.1:0", listening, federation=federation))
    for thread in acting:
        thread.join(60)
    assert [code for code, _ in ends] == [0, 0], ends


def test_runs_of_both_are_paid_from_one_budget(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.to_toml(), encoding="utf-8")
    refused(fedbnsl("participant", "approve", plan, north, "--yes"), 2, "several federations: heart, lung")
    cost = price_of(PLAN, n_samples=120, n_variables=3).units
    for k, (name, federation) in enumerate(federations.items(), 1):
        of_north = ("--federation", name)
        assert fedbnsl("participant", "approve", plan, north, "--yes", *of_north).code == 0
        south = south_of(federation, tmp_path / f"south-{name}")
        assert fedbnsl("participant", "approve", plan, south, "--yes").code == 0
        run(federation, tmp_path / f"runs-{name}" / "run", (north, of_north), (south, ()))
        with Ledger.open(north / "ledger.db") as ledger:
            assert units_spent(ledger, DATASET) == k * cost
            own, other = (identity.authority_of(identity.place_of(north, one)) for one in federations)
            heads = [ledger.payments.head(DATASET, one).n_entries for one in (own, other)]
    assert heads[0] == heads[1] > 0, "each federation sees what it was told, and no more"


def test_identity_and_peers_are_those_of_the_federation_that_is_named(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    of = {name: identity.Identity.open(identity.place_of(north, name)) for name in federations}
    assert len({key_fingerprint(public_key_of(one.certificate)) for one in of.values()}) == 2
    for name, one in of.items():
        assert (one.name, federations[name].fingerprint) == (Name(name, "north"), identity.authority_of(one.place))
        link = identity.link(north, None, insecure=False, federation=name)
        assert link.authority == federations[name].fingerprint
    key = ":".join(["AB"] * 32)
    refused(fedbnsl("participant", "peers", north, "--confirm", "south", key), 2, "several federations")
    assert fedbnsl("participant", "peers", north, "--confirm", "south", key, "--federation", "lung").code == 0
    assert [dict(peers.confirmed(one.place)) for one in of.values()] == [{}, {"south": key}]
    refused(fedbnsl("participant", "peers", north, "--federation", "bone"), 2, "not enrolled in a federation 'bone'")
    with pytest.raises(IdentityError, match="enrolled already, in federation 'lung'"):
        identity.request(north, Name("lung", "north"))
    renewed = identity.request(north, Name("lung", "north"), renew=True)
    bundle = federations["lung"].approve(renewed, days=30, renew=True)
    identity.enrol(north, bundle, expected_fingerprint=federations["lung"].fingerprint)
    now = {name: identity.Identity.open(identity.place_of(north, name)) for name in federations}
    assert now["heart"].certificate == of["heart"].certificate
    assert now["lung"].certificate != of["lung"].certificate


def test_an_agent_takes_an_approval_for_the_federation_that_it_names_alone(
    federations: dict[str, Federation], north: Path
) -> None:
    authority = {name: one.fingerprint for name, one in federations.items()}
    with site_folder.opened(north) as (_, ledger):
        for approved_for, taken, not_taken in (("lung", "lung", "heart"), ("", "heart", "lung")):
            terms = Terms.of(PLAN, DATASET, n_samples=120, n_variables=3, runs=1)
            ledger.approvals.withdraw(PLAN.digest())
            ledger.approvals.approve(PLAN.digest(), PLAN.name, terms, authority=authority.get(approved_for, ""))
            assert approved_terms(north, ledger, PLAN, 1, authority[taken])[1].runs == 1
            with pytest.raises(NotApprovedError, match="another federation"):
                approved_terms(north, ledger, PLAN, 1, authority[not_taken])


def test_an_agent_that_names_no_federation_is_that_of_the_first_one(
    federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    """A service that was there before the second federation is started again as it was."""
    log = tmp_path / "agent.log"

    def said() -> str:
        return log.read_text("utf-8") if log.exists() else ""

    agent = Command(["participant", "agent", north], log)
    first = identity.Identity.open(identity.place_of(north, "heart")).coordinator
    try:
        until(lambda: f"asking {first} for runs" in said(), "the agent", said)
        assert (north / "agent.lock").exists()
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)


def test_the_security_log_names_the_federation_of_approvals_and_peers(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    plan, key = tmp_path / "plan.toml", ":".join(["AB"] * 32)
    plan.write_text(PLAN.to_toml(), encoding="utf-8")
    for name in federations:
        for command in (("approve", plan, north, "--yes"), ("peers", north, "--confirm", "south", key)):
            assert fedbnsl("participant", *command, "--federation", name).code == 0
    sheet = RosterSheet(
        federation="lung",
        authority=federations["lung"].fingerprint,
        day="2026-11-30",
        sites={"west": ":".join(["CD"] * 32), "north": own_key(north, "lung")},
    )
    (tmp_path / "sheet.txt").write_text(sheet.to_text(), encoding="utf-8")
    of_lung = ("peers", north, "--federation=lung")
    done = fedbnsl("participant", *of_lung, "--import", tmp_path / "sheet.txt", "--digest", sheet.digest)
    assert done.code == 0, done.err
    assert fedbnsl("participant", *of_lung, "--forget", "south").code == 0
    assert fedbnsl("participant", "withdraw", north, PLAN.digest().hex()).code == 0
    told = [line.entry for line in site_folder.lines(north / site_folder.NAME)]
    assert [(one["event"], one["federation"]) for one in told if one["event"].startswith(("appro", "peer"))] == [
        ("approved", "heart"),
        ("peer confirmed", "heart"),
        ("approved", "lung"),
        ("peer confirmed", "lung"),
        ("peer confirmed", "lung"),
        ("peer forgotten", "lung"),
        ("approval withdrawn", "heart"),
        ("approval withdrawn", "lung"),
    ]


def own_key(site: Path, federation: str) -> str:
    own = identity.Identity.open(identity.place_of(site, federation))
    return key_fingerprint(public_key_of(own.certificate))


def test_peers_of_one_federation_count_in_that_one_alone(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    first, second = (":".join([pair] * 32) for pair in ("AB", "CD"))
    peers.confirm(identity.place_of(north, "lung"), "south", first)
    found: dict[str, Enrolled] = {}
    with site_folder.opened(north) as (policy, ledger):
        for name, one in federations.items():
            table = GuardedTable(north, policy, ledger, DATASET, authority=one.fingerprint)
            told = table.attestation(identity.link(north, None, insecure=False, federation=name).credentials)
            assert isinstance(told, Enrolled)
            found[name] = told
    assert [found[name]._confirmed for name in ("heart", "lung")] == [{}, {"south": first}]
    found["lung"]._followed("south", first, second)
    confirmed = [dict(peers.confirmed(identity.place_of(north, name))) for name in federations]
    assert confirmed == [{}, {"south": second}]
    edit(north / "policy.toml", "# max_epsilon_against_all =", "max_epsilon_against_all =")
    settings = [
        "n_participants=3",
        'sites=["north", "south", "west"]',
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
    ]
    plan = Plan.load("private-moments", [*settings, f"variables={json.dumps(NAMES)}"], epsilon=1.0)
    (tmp_path / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    for name, n_there in (("heart", 0), ("lung", 1)):
        done = fedbnsl("participant", "approve", tmp_path / "plan.toml", north, "--yes", "--federation", name)
        assert f"confirmed peers at this site; {n_there} are confirmed" in done.out, done.out + done.err


def test_an_agent_decides_again_once_peers_of_its_own_federation_are_confirmed(
    federations: dict[str, Federation], north: Path
) -> None:
    rules = _Rules(north, federations["lung"].fingerprint)
    offer = RunOffer(1, "first", "open", PLAN.digest(), PLAN.name, ("north", "south"), 0, 3, 2, 0)
    seen: list[object] = []
    for name in ("", "heart", "lung"):
        if name:
            peers.confirm(identity.place_of(north, name), "south", ":".join(["AB"] * 32))
        seen.append(rules.for_run(offer, rules.read()))
    rules.close()
    assert seen[0] == seen[1] != seen[2]


def test_a_policy_names_several_authorities(federations: dict[str, Federation], north: Path) -> None:
    named = ", ".join(f'"{one.fingerprint}"' for one in federations.values())
    edit(north / "policy.toml", 'coordinator_ca = ""', f"coordinator_ca = [{named}]")
    policy = Policy.load(north / "policy.toml")
    for one in federations.values():
        policy.check_coordinator("127.0.0.1:1", authority=one.fingerprint)
    with pytest.raises(PolicyRefusal, match="rule `coordinator_ca`"):
        policy.check_coordinator("127.0.0.1:1", authority="AB")


def test_a_run_of_a_number_of_the_other_federation_gets_none_of_its_answers(
    federations: dict[str, Federation], north: Path
) -> None:
    heart, lung = (one.fingerprint for one in federations.values())
    price = price_of(PLAN, n_samples=120, n_variables=3)
    with site_folder.opened(north) as (policy, ledger):
        dataset = policy.dataset(None)
        ledger.payments.reserve(
            Request(DATASET, 7, 1, "north"),
            Payment(1, {"variables": [*NAMES], "plan": ""}, authority=heart),
            dataset.cap,
        )
        ledger.payments.take_run(7)
        journal = RunJournal(ledger.payments, dataset, PLAN, price, RunHere(7, "north", NAMES, lung))
        with pytest.raises(PolicyRefusal, match="in another federation"):
            journal.check()


def test_a_host_of_both_coordinators_stays_allowed_when_one_of_them_moves(
    federations: dict[str, Federation], north: Path
) -> None:
    text = (north / "policy.toml").read_text(encoding="utf-8")
    others = [identity.Identity.open(identity.place_of(north, "heart")).coordinator]
    for elsewhere, wanted in ((others, ("127.0.0.1", "hub.example.org")), ([], ("hub.example.org",))):
        new = moved_cli._new_names("127.0.0.1:50051", "hub.example.org:50051", elsewhere)
        changed = moved_cli._with_host(text, new, north / "policy.toml")
        assert Policy.parse(changed, origin="policy.toml").coordinators == wanted


def test_a_site_whose_folder_lies_in_one_called_federations_is_a_site_by_itself(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], tmp_path: Path
) -> None:
    folder = tmp_path / "federations" / "north"
    own = enrol(federations["heart"], folder, "north")
    own.move("127.0.0.1:50052")
    assert (folder / site_folder.NAME).exists()
    assert not (tmp_path / site_folder.NAME).exists()
    second = enrol(federations["lung"], folder, "north")
    second.move("127.0.0.1:50053")
    assert not (second.place / site_folder.NAME).exists()


def test_a_plan_is_shown_as_approved_in_the_federation_that_it_is_approved_for(
    federations: dict[str, Federation], north: Path
) -> None:
    terms = Terms.of(PLAN, DATASET, n_samples=120, n_variables=3, runs=1)
    authority = {name: one.fingerprint for name, one in federations.items()}
    with site_folder.opened(north) as (_, ledger):
        for its, approved_for, shown in (
            (None, "", [True, True]),
            (terms, "", [True, False]),
            (None, "lung", [False, True]),
            (terms, "lung", [False, True]),
        ):
            ledger.approvals.withdraw(PLAN.digest())
            ledger.approvals.approve(PLAN.digest(), PLAN.name, its, authority=authority.get(approved_for, ""))
            known = ledger.approvals.current()[PLAN.digest().hex()]
            assert [approval_for(north, known, one) is not None for one in authority.values()] == shown
    assert approval_for(north, (), authority["lung"]) is None


@pytest.mark.parametrize("runs", [0, 1])
def test_a_person_joins_by_an_approval_of_that_federation_alone(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path, runs: int
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.to_toml(), encoding="utf-8")

    def admitted(number: int, federation: str) -> None:
        with site_folder.opened(north) as (policy, ledger):
            table = GuardedTable(north, policy, ledger, DATASET, authority=federations[federation].fingerprint)
            table.admit(PLAN, number, NAMES)

    assert fedbnsl("participant", "approve", plan, north, "--yes", f"--runs={runs}", "--federation=lung").code == 0
    with pytest.raises(PolicyRefusal, match="not approved"):
        admitted(1, "heart")
    admitted(2, "lung")
    with site_folder.opened(north) as (_, ledger):
        ledger.approvals.approve(PLAN.digest(), PLAN.name)  # one that names none
    for number, name in enumerate(federations, 3):
        admitted(number, name)


def test_each_of_two_approvals_is_listed_and_taken_back_by_itself(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], north: Path, tmp_path: Path
) -> None:
    plan, digest = tmp_path / "plan.toml", PLAN.digest().hex()
    plan.write_text(PLAN.to_toml(), encoding="utf-8")
    for name, runs in (("heart", 2), ("lung", 3)):
        done = fedbnsl("participant", "approve", plan, north, "--yes", f"--runs={runs}", f"--federation={name}")
        assert done.code == 0, done.err

    def listed() -> list[str]:
        return [line for line in fedbnsl("participant", "ledger", north).out.splitlines() if "approved: " in line]

    of_plan = f"approved: plan {PLAN.name!r}, digest {digest[:16]}..., federation"
    of_lung = f"{of_plan} lung, for 3 more run(s) of an agent"
    assert listed() == [f"{of_plan} heart, for 2 more run(s) of an agent", of_lung]
    told = json.loads(fedbnsl("participant", "ledger", north, "--json").out)["approvals"]
    assert [one["authority"] for one in told] == [one.fingerprint for one in federations.values()]
    assert fedbnsl("participant", "withdraw", north, digest, "--federation=heart").code == 0
    assert listed() == [of_lung]
    with site_folder.opened(north) as (_, ledger):
        for name, allowed in (("heart", False), ("lung", True)):
            offer = RunOffer(1, "first", "open", PLAN.digest(), PLAN.name, ("north", "south"), 0, 3, 2, 0)
            assert is_allowed(north, ledger, offer, federations[name].fingerprint) == allowed
    refused(fedbnsl("participant", "withdraw", north, digest, "--federation=heart"), 2, "not approved for federation")
    assert fedbnsl("participant", "withdraw", north, digest).code == 0
    assert listed() == []


def test_the_first_name_may_be_mistyped(
    fedbnsl: Callable[..., Outcome], federations: dict[str, Federation], tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    identity.request(folder, Name("hart", "north"))
    enrol(federations["heart"], folder, "north")
    assert [*identity.federations(folder)] == ["heart"]
    assert identity.link(folder, None, insecure=False).authority == federations["heart"].fingerprint
    assert identity.place_with(folder, federations["heart"].fingerprint) == identity.place_of(folder)


def test_a_table_of_python_joins_in_the_federation_that_is_named(
    federations: dict[str, Federation], north: Path
) -> None:
    with pytest.raises(SetupError, match="several federations"):
        join(rows(1), "127.0.0.1:1", site="north", identity=north)
    with pytest.raises(UnreachableError):
        join(rows(1), "127.0.0.1:1", site="north", identity=north, federation="lung", patience_s=0.1)
