"""The commands of a site's folder and of prices, as a person or a script meets them."""

import io
import json
import re
import shlex
import socket
import sqlite3
from pathlib import Path

import click
import numpy as np
import pytest

from command_line import Outcome, run_unread
from fedbnsl.errors import PolicyRefusal
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_lock import OwnerLock
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, edit, make_site, private_plan, rows, write_table


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(private_plan().to_toml(), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path):
    make_site(tmp_path / "north")
    return tmp_path / "north"


def command_in(text):
    """The words of the first command line that a text names, up to the end of its sentence or part of one."""
    line = re.search(r"fedbnsl ([^;\n]*?)(?: goes on|[;.]? If|\. |;|\n|$)", text)
    assert line is not None, text
    return shlex.split(line[1])


def test_a_second_agent_of_a_site_announces_no_page_and_says_what_is_in_its_way(fedbnsl, folder):
    agent = ("participant", "agent", folder, "--coordinator=127.0.0.1:9", "--insecure", "--web")
    lock = OwnerLock.of(folder.resolve() / "agent")
    try:
        code, _, err = fedbnsl(*agent, "127.0.0.1:0")
    finally:
        lock.release()
    assert (code, "another agent serves" in err, "page: " in err) == (2, True, False), err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = fedbnsl(*agent, f"127.0.0.1:{taken.getsockname()[1]}")
    assert (code, "take another port" in err, "page: " in err, "Beyond this machine" in err) == (2, True, False, False)


def approvals(folder):
    with Ledger.open(folder / "ledger.db") as ledger:
        return [entry.content["digest"] for entry in ledger.entries() if entry.kind == "approve"]


def test_init_makes_policy_and_ledger_and_says_what_comes_next(fedbnsl, tmp_path):
    table = write_table(tmp_path / "ward.csv", rows())
    code, out, _ = fedbnsl("participant", "init", tmp_path / "n", "--site=north", "--data", table, "--dataset=w")
    assert code == 0
    assert "dataset w may lose epsilon 5 at delta 6.94444e-05" in out
    assert f"fedbnsl participant request {tmp_path / 'n'} --federation NAME" in out
    assert "needs max_epsilon_against_all in the policy" in out
    data = ("--site=north", "--data", table, "--dataset=w")
    for option in ("--max-epsilon-against-all=9", "--public"):
        _, out, _ = fedbnsl("participant", "init", tmp_path / option[6:9], *data, option)
        assert "next: read the policy; then a certificate: fedbnsl participant request" in out
        assert "max_epsilon_against_all" not in out
    code, _, err = fedbnsl("participant", "init", tmp_path / "n", "--site=north", "--data", table, "--dataset=w")
    assert code == 2
    assert "never overwritten" in err


def test_init_says_where_a_file_is_known_already_and_of_other_files_nothing(fedbnsl, folder, tmp_path):
    def init(own, data):
        return fedbnsl("participant", "init", tmp_path / own, "--site=north", "--data", data, "--dataset=w")

    (tmp_path / "link.csv").symlink_to(folder / "table.csv")
    code, _, err = init("second", tmp_path / "link.csv")
    assert code == 0
    assert f"link.csv is the table of dataset {DATASET!r} of the site folder {folder.resolve()}" in err
    assert "two folders are two budgets" in err
    assert "site folder" not in init("third", write_table(tmp_path / "other.csv", rows(8)))[2]


def test_register_takes_a_changed_table_only_if_it_is_said_to_supersede(fedbnsl, folder):
    write_table(folder / "table.csv", rows(5))
    code, _, err = fedbnsl("participant", "register", folder, DATASET)
    assert code == 11
    assert "is not the one registered" in err
    code, out, _ = fedbnsl(*command_in(err))
    assert (code, out) == (0, f"registered {DATASET}: 120 rows, 3 variables\n")


def test_register_takes_the_only_dataset_and_names_those_there_are(fedbnsl, folder):
    assert fedbnsl("participant", "register", folder)[:2] == (0, f"registered {DATASET}: 120 rows, 3 variables\n")
    code, _, err = fedbnsl("participant", "register", folder, "ward-8")
    assert code == 12
    assert f"dataset 'ward-8'; the policy has: {DATASET}" in err
    assert "Name one that the policy has" in err
    assert "another plan" not in err, "which helps nobody"


def test_a_table_that_the_ledger_does_not_know_is_registered_by_the_command_that_is_named(fedbnsl, folder, plan):
    write_table(folder / "other.csv", rows(9))
    policy = (folder / "policy.toml").read_text(encoding="utf-8")
    table = policy[policy.index("[[datasets]]") :].replace(f'"{DATASET}"', '"ward-8"').replace("table.csv", "other.csv")
    (folder / "policy.toml").write_text(policy + table, encoding="utf-8")
    for command in (["approve", plan], ["join", "127.0.0.1:9", "--insecure", "--policy"]):
        code, _, err = fedbnsl("participant", *command, folder, "--dataset=ward-8")
        assert code == 12
        assert "'ward-8' is not registered in the ledger" in err
    assert fedbnsl(*command_in(err))[:2] == (0, "registered ward-8: 120 rows, 3 variables\n")
    assert fedbnsl("participant", "approve", plan, folder, "--dataset=ward-8", "--yes")[0] == 0


@pytest.mark.parametrize("has_policy", [True, False])
def test_check_before_enrolment_names_the_steps_in_their_order(has_policy, fedbnsl, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not has_policy:
        (folder / "policy.toml").unlink()
    _, out, _ = fedbnsl("participant", "check", folder)
    steps = [out.index(f"fedbnsl participant {step} {folder}") for step in ("request", "enrol")]
    assert steps == sorted(steps)
    assert fedbnsl(*command_in(out))[0] == 0
    assert list(tmp_path.glob("*.request.pem"))


def test_approve_shows_plan_price_and_what_is_left_and_asks(fedbnsl, folder, plan, monkeypatch):
    digest = private_plan().digest().hex()
    monkeypatch.setattr("click.confirm", lambda text, **_: click.echo(text) or True)
    code, out, _ = fedbnsl("participant", "approve", plan, folder)
    assert code == 0
    parts = (
        "This run costs epsilon 1 at delta 1e-06 against the coordinator and all other sites; room for one more such "
        "run of epsilon 4.8",
        "That holds if nobody has a record at two sites (privacy.sites_per_person = 1); --all says what is lost",
        "--all shows the privacy cost in detail and every setting",
        "approve this plan?",
        f"approved: {digest}",
    )
    for part in parts:
        assert part in out, part
    assert [out.index(part) for part in parts] == sorted(out.index(part) for part in parts)
    assert "zCDP" not in out, "a detail"
    assert "rounds = 3" not in out, "a setting"
    assert approvals(folder) == [digest]


def test_approve_shows_every_setting_if_asked(fedbnsl, folder, plan):
    _, out, _ = fedbnsl("participant", "approve", plan, folder, "--yes", "--all")
    shown = set(re.findall(r"^  ([\w.]+) = ", out, re.MULTILINE))
    _, listed, _ = fedbnsl("plan", "show", plan, "--all", "--json")
    assert shown == set(json.loads(listed)["settings"])
    assert out.index("privacy.clip = 2.0") < out.index("the other settings") < out.index("threshold = ")


def test_a_plan_is_not_approved_by_silence_or_no(fedbnsl, folder, plan, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = fedbnsl("participant", "approve", plan, folder)
    assert code == 130, err
    assert approvals(folder) == []


def test_approve_with_yes_records_the_very_settings(fedbnsl, folder, plan):
    code, _, _ = fedbnsl("participant", "approve", plan, folder, "--yes", "--set=rounds=4")
    assert code == 0
    assert approvals(folder) == [private_plan(rounds=4).digest().hex()]


@pytest.mark.long
def test_an_approval_by_yes_is_recorded_though_nobody_reads_on(folder, plan):
    assert run_unread("participant", "approve", plan, folder, "--yes") == Outcome(0, "", "")
    assert approvals(folder) == [private_plan().digest().hex()]
    refused = run_unread("participant", "approve", plan, folder, "--yes", "--set=privacy.epsilon=6")
    assert refused.code == 12, "and a refusal is still told"
    assert "rule `max_epsilon_per_run`" in refused.err


@pytest.mark.long
def test_a_question_that_nobody_can_read_approves_nothing(folder, plan):
    unread = run_unread("participant", "approve", plan, folder, stdin="y\n")
    assert unread.code != 0
    assert "Traceback" not in unread.err
    assert approvals(folder) == []


@pytest.fixture
def wide(tmp_path):
    """A site some of whose squares lie beyond the plan's bound, 9."""
    X = np.clip(rows(), -2.9, 2.9)
    X[:6, 1], X[4:7, 2] = 5.0, -4.0
    make_site(tmp_path / "wide", table=write_table(tmp_path / "wide" / "table.csv", X))
    return tmp_path / "wide"


def test_approve_tells_the_site_which_share_of_its_records_lies_beyond_the_plans_bounds(fedbnsl, wide, plan):
    _, out, _ = fedbnsl("participant", "approve", plan, wide, "--yes")
    told = "told here alone: 5.83% of the records lie beyond feature_bounds (a bound on x^2, not on x): "
    assert f"{told}'dose' 5.00%, 'mass' 2.50%" in out
    assert out.index(told) < out.index("approved:")
    code, out, err = fedbnsl("participant", "approve", plan, wide, "--yes", "--json")
    said = json.loads(out)
    assert (code, said["approved"], said["dataset"]) == (0, private_plan().digest().hex(), DATASET)
    assert said["table"] == {
        "same_value": {},
        "beyond": {"age": 0.0, "dose": 0.05, "mass": 0.025},
        "beyond_any": pytest.approx(7 / 120),
    }
    assert told in err
    with Ledger.open(wide / "ledger.db") as ledger:
        kept = json.dumps([entry.content for entry in ledger.entries()])
    assert "beyond" not in kept


def test_4_a_column_beyond_its_bound_in_nearly_all_records_is_not_approved_unless_it_is_said(fedbnsl, folder, plan):
    X = rows()
    X[:115, 1] = np.where(X[:115, 1] < 0, -80.0, 80.0)  # the others are within, and 115 of 120 are nearly all
    write_table(folder / "table.csv", X)
    assert fedbnsl("participant", "register", folder, "--supersedes")[0] == 0
    kept = (folder / "security-log.jsonl").read_bytes()
    for options in (["--yes"], [], ["--yes", "--json"]):
        code, out, err = fedbnsl("participant", "approve", plan, folder, *options)
        assert code == 4
        assert "nearly all records lie beyond feature_bounds, in column(s) 'dose': a run would spend budget" in err
        assert "another unit" in err
        assert "approved" not in out
    assert approvals(folder) == []
    assert (folder / "security-log.jsonl").read_bytes() == kept
    assert fedbnsl("participant", "approve", plan, folder, "--yes", "--beyond-bounds")[0] == 0
    assert approvals(folder) == [private_plan().digest().hex()]


def test_11_a_table_that_changed_since_it_was_registered_is_not_approved_before_somebody_says_how(
    fedbnsl, folder, plan
):
    kept = (folder / "security-log.jsonl").read_bytes()
    write_table(folder / "table.csv", np.vstack([rows(), rows(7)[:30]]))
    code, out, err = fedbnsl("participant", "approve", plan, folder, "--yes")
    assert (code, approvals(folder)) == (11, [])
    assert "approved" not in out
    assert "This run costs" not in out, "the cost would be that of another table"
    assert "of 120 records that were registered it has 120, and 30 others" in err
    assert f"register {folder} {DATASET} --grows" in err
    write_table(folder / "table.csv", rows(5))
    code, out, err = fedbnsl("participant", "approve", plan, folder, "--yes")
    assert (code, approvals(folder)) == (11, [])
    assert "--grows" not in err, "there is nothing that could have grown"
    assert (folder / "security-log.jsonl").read_bytes() == kept
    assert fedbnsl(*command_in(err))[0] == 0, "register --supersedes"
    assert fedbnsl("participant", "approve", plan, folder, "--yes")[0] == 0


def test_a_plan_that_is_refused_reads_no_record(fedbnsl, wide, plan):
    (wide / "table.csv").unlink()
    code, out, _ = fedbnsl("participant", "approve", plan, wide, "--yes", "--set=privacy.epsilon=6")
    assert code == 12
    assert "told here alone" not in out
    assert fedbnsl("participant", "approve", plan, wide, "--yes")[0] == 4


@pytest.mark.parametrize("command", ["approve", "check"])
def test_the_help_says_that_feature_bounds_are_bounds_on_squares(fedbnsl, command):
    _, out, _ = fedbnsl("participant", command, "--help")
    words = " ".join(out.split())
    assert "in squared units of each column: 100 is for values from -10 to 10" in words


def test_a_plan_over_the_budget_is_shown_as_such(fedbnsl, folder, plan):
    _, out, _ = fedbnsl("participant", "approve", plan, folder, "--yes", "--set=privacy.epsilon=6")
    assert "policy and ledger have room for such a run of epsilon 5 at most" in out


def spend(folder):
    with Ledger.open(folder / "ledger.db") as ledger:
        request = Request(DATASET, 7, 1, "north")
        ledger.payments.reserve(request, Payment(10**9, {}), Cap(10**12, 0))
        ledger.payments.store(request, b"answer")


def test_the_ledger_is_shown_to_people_and_to_scripts(fedbnsl, folder):
    spend(folder)
    code, out, _ = fedbnsl("participant", "ledger", folder, "--verify")
    assert code == 0
    for part in (f"dataset {DATASET}: spent epsilon", "(0.001 zCDP)", "3 entries", "the chain is whole"):
        assert part in out, part
    code, out, _ = fedbnsl("participant", "ledger", folder, "--json")
    said = json.loads(out)
    assert [entry["kind"] for entry in said["entries"]] == ["register", "reserve", "store"]
    assert said["datasets"][0]["spent"]["zcdp"] == 0.001


def test_11_a_tampered_ledger_is_not_used(fedbnsl, folder):
    spend(folder)
    with sqlite3.connect(folder / "ledger.db") as database:
        database.execute("DROP TRIGGER entries_stay")
        database.execute("UPDATE entries SET content = replace(content, '1000000000', '1000000') WHERE number = 2")
    database.close()
    code, out, err = fedbnsl("participant", "ledger", folder, "--verify")
    assert (code, out) == (11, "")
    assert "entry 2 is not what was written" in err
    assert "Never delete or restore a ledger" in err


def test_privacy_price_for_people_and_scripts(fedbnsl, plan):
    price = price_of(private_plan(), n_samples=120, n_variables=3)
    code, out, _ = fedbnsl("privacy", "price", plan, "--rows=120", "--variables=3", "--json")
    said = json.loads(out)
    assert (code, said["zcdp"]["total"]) == (0, price.units / 10**12)
    code, out, _ = fedbnsl("privacy", "price", plan, "--rows=120", "--variables=3")
    assert code == 0
    assert "epsilon 1, delta 1e-06" in out
    names = '--set=variables=["a", "b"]'
    assert fedbnsl("privacy", "price", plan, "--rows=120", "--variables=2", names)[0] == 0
    code, _, err = fedbnsl("privacy", "price", plan, "--rows=120", "--variables=7", names)
    assert code == 2
    assert "--variables 7: the plan names 2 variables" in err
    code, _, err = fedbnsl("privacy", "price", plan, "--rows=120")
    assert code == 2
    assert "--variables" in err


def test_2_join_needs_a_policy_or_a_confirmation_that_the_table_is_public(fedbnsl, tmp_path):
    table = write_table(tmp_path / "ward.csv", rows())
    join = ("participant", "join", "127.0.0.1:9", "--insecure")
    for options in ((), ("--data", table), ("--data", table, "--site=north"), ("--site=north", "--public-data")):
        code, _, err = fedbnsl(*join, *options)
        assert code == 2
        assert "--policy FOLDER" in err
        assert "--public-data" in err
        assert "Correct the named option" in err


@pytest.mark.long
def test_12_a_table_of_a_site_folder_is_not_public_because_somebody_says_so(fedbnsl, folder, tmp_path):
    copy = tmp_path / "copy.csv"
    copy.write_bytes((folder / "table.csv").read_bytes())
    join = ("participant", "join", "127.0.0.1:9", "--insecure", "--public-data", "--patience=0")
    code, _, err = fedbnsl(*join, "--site=north", f"--data={folder / 'table.csv'}")
    assert code == 12
    assert f"dataset 'ward-7' of the site folder {folder}, which does not call it public" in err
    assert fedbnsl(*join, "--site=north", f"--data={copy}")[0] == 6, "a copy is noticed in the site's own folder alone"
    with pytest.raises(PolicyRefusal, match="'ward-7'"):
        site_folder.refuse_as_public(copy, Dataset.read(copy), folder)
    edit(folder / "policy.toml", "public = false", "public = true")
    assert fedbnsl(*join, "--site=north", f"--data={folder / 'table.csv'}")[0] == 6


def test_2_a_policy_leaves_nothing_to_say_about_the_table(fedbnsl, folder):
    code, _, err = fedbnsl("participant", "join", "127.0.0.1:9", "--insecure", "--policy", folder, "--public-data")
    assert code == 2
    assert "--policy already says which table" in err


def test_12_a_coordinator_that_the_policy_does_not_name_is_not_called(fedbnsl, folder: Path):
    code, _, err = fedbnsl("participant", "join", "[::1]:9", "--insecure", "--policy", folder)
    assert code == 12
    assert "rule `coordinators`: [::1]:9 is not among them" in err


MOMENTS = ("--set=rounds=0", "--set=moments_rounds=2")


def test_approve_says_that_noisy_moments_of_residuals_are_released_and_at_what_price(fedbnsl, folder, plan):
    approved = private_plan(rounds=0, moments_rounds=2)
    price = price_of(approved, n_samples=120, n_variables=3)
    code, out, err = fedbnsl("participant", "approve", plan, folder, "--yes", "--all", *MOMENTS)
    assert code == 0, err
    assert "2 times the site releases noisy second moments of residuals, 6 numbers" in out
    assert f"each time for {price.moments_units / 10**12:.4g} zCDP" in out
    assert approvals(folder) == [approved.digest().hex()]


def test_approve_says_that_exact_second_moments_will_be_sent(fedbnsl, tmp_path):
    make_site(tmp_path / "north", public=True)
    edit(tmp_path / "north" / "policy.toml", "allowed_solvers = [", 'allowed_solvers = ["pgcd", ')
    plain = tmp_path / "plain.toml"
    plain.write_text("n_participants = 2\n", encoding="utf-8")
    _, without, _ = fedbnsl("participant", "approve", plain, tmp_path / "north", "--yes")
    _, searched, _ = fedbnsl(
        *("participant", "approve", plain, tmp_path / "north", "--yes"),
        "--set=moments_rounds=1",
        "--set=refit_rounds=0",
    )
    for out in (without, searched):
        assert "exact functions of the table" in out
    assert "exact second moments" not in without
    assert "after the ADMM rounds it sends exact second moments: every variable's mean square" in searched


def test_a_second_id_for_known_records_is_refused_or_shares_their_budget(fedbnsl, folder):
    spend(folder)
    write_table(folder / "copy.csv", rows(), ("x", "y", "z"))
    edit(folder / "policy.toml", f'id = "{DATASET}"', 'id = "copy"')
    edit(folder / "policy.toml", 'path = "table.csv"', 'path = "copy.csv"')
    code, _, err = fedbnsl("participant", "register", folder, "copy")
    assert code == 11
    assert "the values of x, y, z are, or were, those of columns of 'ward-7'" in err
    code, out, _ = fedbnsl(*command_in(err))
    assert (code, out.splitlines()[1]) == (0, "one budget with ward-7: what either spends counts for all of them")
    _, out, _ = fedbnsl("participant", "ledger", folder)
    assert "dataset copy: spent epsilon" in out
    assert "(0.001 zCDP)" in out, "of the other one"


def test_11_a_ledger_that_was_put_back_is_refused_until_that_is_accepted(fedbnsl, folder):
    backup = (folder / "ledger.db").read_bytes()
    spend(folder)
    (folder / "ledger.db").write_bytes(backup)
    code, _, err = fedbnsl("participant", "ledger", folder)
    assert code == 11
    assert "is an older copy" in err
    code, out, _ = fedbnsl(*command_in(err))
    assert code == 0
    assert "an older copy was accepted; the lost ledger had at least 3 entries" in out
    assert f"{DATASET}: 0.001 zCDP, spent by entries that are lost" in out
    assert "(0.001 zCDP)" in out
    assert fedbnsl("participant", "ledger", folder)[0] == 0


def test_register_says_what_a_table_without_means_would_mean(fedbnsl, folder):
    write_table(folder / "table.csv", rows() - rows().mean(axis=0))
    code, _, err = fedbnsl("participant", "register", folder, DATASET, "--supersedes")
    assert code == 0
    assert "warning: column(s) age, dose, mass: the mean is zero to rounding" in err
    assert "docs/explanation/privacy.md, Centring" in err
    edit(folder / "policy.toml", "public = false", "public = true")
    assert fedbnsl("participant", "register", folder, DATASET)[2] == ""
