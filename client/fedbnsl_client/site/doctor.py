"""Find out why this site cannot take part in a run, with cause and remedy.

gRPC reports a wrong authority, a wrong host name, an unknown host, a closed port, an expired certificate and a server
without TLS all as "unavailable". Here each is checked separately, in the order in which a connection is made.
"""

import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedbnsl import __version__
from fedbnsl.errors import FedbnslError, IdentityError, ProtocolError, SetupError, UnreachableError
from fedbnsl.identity.certificates import day, fingerprint
from fedbnsl.identity.passphrase import NOBODY_KNOWS, Passphrases
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.channel import require_loopback, split_address
from fedbnsl.protocol.messages import PROTOCOL_VERSION, RunStatus
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import (
    PlanFit,
    few_complete,
    fit_of,
    refuse_other_absent,
    refuse_other_dictionary,
    require_present,
    rows_for,
)
from fedbnsl_client.secure_aggregation.needed import peers_lacking
from fedbnsl_client.session import Session
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.identity import Identity, place_of
from fedbnsl_client.site.options import AS_IN_THE_FOLDER, DescribedBy

_CONNECT_S = 5.0
_CLOCKS_DIFFER_S = 60.0
_MANY_BEYOND = 0.01  # a share of the records: warn if more of them are beyond the bounds of a plan
_CLOCKS_DISAGREE_S = 3600.0  # new certificates are valid from this long ago: a larger difference refuses them

# The start of an HTTP/2 connection. A gRPC server answers it only after it has accepted the certificate.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"

# OpenSSL's codes for why a certificate is refused.
_EXPIRED, _NOT_YET_VALID, _OTHER_NAMES = {10}, {9}, {62, 64}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str  # what was tried: files, expiry, name, port, tls, identity, version, clock, policy, data, plan
    # state: a warning does not keep the site from a run; a skipped check could not be made, or is not needed
    state: Literal["ok", "warning", "failed", "skipped"]
    text: str
    remedy: str = ""
    exit_code: int = 0  # the exit code of the error if the check failed, otherwise 0
    # details: the numbers in the text; only for the check of a plan, otherwise empty
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _DoubtError(FedbnslError):
    """Something to look at, which does not keep the site from a run."""


class _NotTriedError(FedbnslError):
    """A check that does not apply."""


def examine(
    folder: Path,
    address: str | None,
    *,
    insecure: bool,
    connection_only: bool = False,
    plan: Plan | None = None,
    dataset_id: str | None = None,
    described_by: DescribedBy = AS_IN_THE_FOLDER,
    federation: str | None = None,
    passphrases: Passphrases = NOBODY_KNOWS,
) -> Iterator[Finding]:
    """Check what a run needs, in the order in which it is needed; yield each finding as soon as it is known.

    The folder is the site's, with an identity, a policy and ledger, or both. `connection_only` skips policy and table,
    so that the ledger stays free for a run. With a plan, also check how a dataset's table (None: the policy's only one)
    fits it. `described_by` is tried on the tables in place of the folder's files. `federation` is needed where the site
    is enrolled in several.
    """
    doctor = _Examination(folder, address or "", insecure, described_by, federation, passphrases)
    reached = True
    for check, work in doctor.way_to_the_coordinator:
        if not reached:
            yield Finding(check, "skipped", "not tried: an earlier step failed")
            continue
        found = _find(check, work)
        reached = found.state != "failed"
        yield found
    if not connection_only:
        yield _find("policy", doctor.policy)
        yield _find("data", doctor.data)
        if plan is not None:
            yield doctor.plan(plan, dataset_id)


def _find(check: str, work: Callable[[], str]) -> Finding:
    try:
        return Finding(check, "ok", work())
    except _NotTriedError as reason:
        return Finding(check, "skipped", str(reason))
    except _DoubtError as doubt:
        return Finding(check, "warning", str(doubt), doubt.remedy)
    except FedbnslError as error:
        return Finding(check, "failed", str(error), error.remedy, error.exit_code)


@dataclass
class _Examination:
    _folder: Path
    _address: str
    _insecure: bool
    _described_by: DescribedBy
    _federation: str | None
    _passphrases: Passphrases
    _identity: Identity | None = None
    _status: RunStatus | None = None
    _asked_at: tuple[float, float] = (0.0, 0.0)
    _policy: Policy | None = None
    _fit: PlanFit | None = None

    @property
    def way_to_the_coordinator(self) -> list[tuple[str, Callable[[], str]]]:
        """The checks up to the first answer: after one that failed, the rest cannot be made."""
        return [
            ("files", self.files),
            ("expiry", self.expiry),
            ("name", self.name),
            ("port", self.port),
            ("tls", self.tls),
            ("identity", self.identity),
            ("version", self.version),
            ("clock", self.clock),
        ]

    def files(self) -> str:
        """Certificate and key."""
        if self._insecure:
            if not self._address:
                raise SetupError("with --insecure, name the coordinator: HOST:PORT")
            require_loopback(self._address)
            raise _NotTriedError("not needed: --insecure")
        self._identity = Identity.open(place_of(self._folder, self._federation), self._passphrases)
        self._address = self._address or self._identity.coordinator
        self._identity.key()
        key = self._identity.key_path
        if key.stat().st_mode & 0o077:
            raise _DoubtError(f"others on this machine may read {key}", remedy=f"Make it yours alone: chmod 600 {key}")
        return f"certificate and key of {self._identity.name.uri}"

    def expiry(self) -> str:
        """Whether the certificate is valid now."""
        if self._identity is None:
            raise _NotTriedError("not needed: --insecure")
        wrong = self._identity.why_unusable()
        if wrong:
            raise IdentityError(
                f"this site's certificate: {wrong}",
                remedy="Set the clock right, or get a new certificate: "
                f"fedbnsl participant request {self._folder} --federation {self._identity.name.federation} --renew",
            )
        soon = self._identity.expires_soon()
        if soon:
            raise _DoubtError(soon, remedy="Ask for a new one in time; the present one stays usable until then.")
        return f"valid until {day(self._identity.certificate.not_valid_after_utc)}"

    def name(self) -> str:
        """Whether the coordinator's host name has an address."""
        host, port = split_address(self._address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UnreachableError(
                f"the host {host!r} is unknown here ({error.strerror or error})",
                remedy="Check the spelling of the address, and this machine's name service (DNS).",
            ) from None
        return f"{host} is {', '.join(sorted({str(entry[4][0]) for entry in found}))}"

    def port(self) -> str:
        """Whether something listens at the port."""
        with self._connect():
            return f"{self._address} accepts connections"

    def _connect(self) -> socket.socket:
        try:
            return socket.create_connection(split_address(self._address), timeout=_CONNECT_S)
        except ConnectionRefusedError:
            raise UnreachableError(
                f"nobody listens at {self._address}",
                remedy="Check the port, and that the coordinator runs: fedbnsl coordinator serve.",
            ) from None
        except TimeoutError:
            raise UnreachableError(
                f"no answer from {self._address} within {_CONNECT_S:g} s",
                remedy="A firewall drops the connection: ask both sides to open this port, outwards from the site.",
            ) from None
        except OSError as error:
            raise UnreachableError(
                f"{self._address} cannot be reached ({error.strerror or error})",
                remedy="Check the network between the two machines.",
            ) from None

    def tls(self) -> str:
        """Whether both sides accept each other's certificate."""
        if self._identity is None:
            raise _NotTriedError("not needed: --insecure")
        context = ssl.create_default_context(cadata=self._identity.credentials().ca.decode())
        context.set_alpn_protocols(["h2"])
        with tempfile.TemporaryDirectory() as scratch:  # OpenSSL reads files only; the key stays where it is
            chain = Path(scratch, "certificate.pem")
            chain.write_bytes(self._identity.credentials().certificate)
            context.load_cert_chain(chain, self._identity.key_path, self._identity.passphrase)
        host, _ = split_address(self._address)
        with self._connect() as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host) as secure:
                    return self._greet(secure)
            except ssl.SSLCertVerificationError as error:
                raise _refused_by_us(error, host) from None
            except TimeoutError:
                raise self._silent() from None
            except (ssl.SSLError, OSError) as error:
                raise self._no_tls(error) from None

    def _greet(self, secure: ssl.SSLSocket) -> str:
        # In TLS 1.3 the server checks our certificate after the handshake: a refusal comes with the first answer.
        try:
            secure.sendall(_HTTP2_PREFACE)
            answered = secure.recv(1) != b""
        except TimeoutError:
            raise self._silent() from None
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise _refused_by_them(str(reason)) from None
        if not answered:
            raise _refused_by_them("it closed the connection")
        return f"{secure.version()}, and both certificates are accepted"

    def _silent(self) -> FedbnslError:
        return UnreachableError(
            f"{self._address} accepts connections but sends nothing within {_CONNECT_S:g} s",
            remedy="It is not a coordinator, or it hangs: ask its operator.",
        )

    def _no_tls(self, error: OSError) -> FedbnslError:
        return IdentityError(
            f"{self._address} does not speak TLS ({getattr(error, 'reason', None) or error})",
            remedy="The coordinator was started with --insecure instead of --federation, or is another program.",
        )

    def identity(self) -> str:
        """Whether the coordinator accepts this site's identity."""
        credentials = None if self._identity is None else self._identity.credentials()
        self._asked_at = (time.time(), 0.0)
        try:
            with Session(self._address, credentials) as session:
                self._status = session.look()
        except IdentityError as error:
            raise IdentityError(
                str(error),
                remedy="Ask the coordinator's operator: `coordinator enrolled` shows what was approved and revoked.",
            ) from None
        except UnreachableError:
            if not self._insecure:
                raise
            raise UnreachableError(
                f"{self._address} does not answer in plaintext",
                remedy="It speaks TLS, or is no coordinator: enrol the site and leave --insecure out.",
            ) from None
        self._asked_at = (self._asked_at[0], time.time())
        if self._identity is None:
            return "the coordinator answers; plaintext does not check names"
        if self._status.site != self._identity.name.site:
            raise IdentityError(
                f"the coordinator identifies this site as {self._status.site!r}; expected {self._identity.name.site!r}",
                remedy="Another program is between the two sides, or it is another coordinator: ask its operator.",
            )
        return f"the coordinator knows this site as {self._status.site!r}"

    def version(self) -> str:
        """Whether both sides speak the same protocol."""
        status = _known(self._status)
        if status.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the coordinator speaks protocol {status.protocol_version} (fedbnsl {status.version}), this site "
                f"{PROTOCOL_VERSION} (fedbnsl {__version__})",
                remedy="Install the same version of fedbnsl on both sides.",
            )
        if status.version != __version__:
            raise _DoubtError(
                f"the coordinator runs fedbnsl {status.version}, this site {__version__}",
                remedy="They speak the same protocol; install the same version to be sure of the same results.",
            )
        return f"fedbnsl {__version__} on both sides"

    def clock(self) -> str:
        """Whether both clocks agree well enough for certificates."""
        asked, answered = self._asked_at
        ahead_s = (asked + answered) / 2 - _known(self._status).time_unix_s
        off_s = max(0.0, abs(ahead_s) - (answered - asked) / 2)
        which = "ahead of" if ahead_s > 0 else "behind"
        text = f"this machine's clock is {off_s:.0f} s {which} the coordinator's"
        remedy = "Set both clocks by a time server (NTP)."
        if off_s >= _CLOCKS_DISAGREE_S:
            raise IdentityError(f"{text}: one side may refuse a valid certificate", remedy=remedy)
        if off_s >= _CLOCKS_DIFFER_S:
            raise _DoubtError(text, remedy=remedy)
        return f"the clocks agree to {_CLOCKS_DIFFER_S:g} s"

    def policy(self) -> str:
        """Whether the policy can be read and allows this coordinator."""
        path = self._folder / site_folder.POLICY
        if not path.exists():
            raise _NotTriedError("no policy here: only a public table can be used (join --public-data)")
        self._policy = Policy.load(path)
        if self._identity is not None and self._policy.site != self._identity.name.site:
            raise SetupError(
                f"the policy's site is {self._policy.site!r}, the certificate's {self._identity.name.site!r}",
                remedy="Correct `site` in policy.toml, or enrol again under that name.",
            )
        if self._address:
            authority = "" if self._identity is None else fingerprint(self._identity.ca)
            self._policy.check_coordinator(self._address, authority=authority)
        return f"site {self._policy.site!r}, {len(self._policy.datasets)} dataset(s)"

    def data(self) -> str:
        """Whether ledger and tables are what they were when they were registered."""
        if self._policy is None:
            raise _NotTriedError("no policy here, or it cannot be read: no table is known")
        odd: list[str] = []
        found: list[str] = []
        with site_folder.opened(self._folder) as (policy, ledger):
            ledger.verify()
            ledger.require_open()
            for dataset in policy.datasets:
                table = self._table(policy, dataset.id)
                if self._described_by == (None, None):
                    ledger.registrations.check_table(dataset.id, table.variables, table.X, table.whose, in_full=True)
                    found.append(f"{dataset.id} is as it was registered")
                else:
                    found.append(f"{dataset.id} can be read by these files")
                if table.gaps.rows:
                    found[-1] += f", {table.gaps.of - table.gaps.rows} of its {table.gaps.of} rows are complete"
                odd += [f"{dataset.id}: {text}" for text in table.remarks()]
        if odd:
            raise _DoubtError("; ".join([*found, *odd]), remedy="Nothing of it is sent; look at it.")
        return ", ".join(found) or "no dataset"

    def _table(self, policy: Policy, dataset_id: str) -> Dataset:
        return site_folder.read_table(self._folder, policy, dataset_id, described_by=self._described_by)

    def plan(self, plan: Plan, dataset_id: str | None) -> Finding:
        """Whether a table fits a plan. The finding stays at the site."""
        found = _find("plan", lambda: self._try_plan(plan, dataset_id))
        return found if self._fit is None else replace(found, details=asdict(self._fit))

    def _try_plan(self, plan: Plan, dataset_id: str | None) -> str:
        if self._policy is None:
            raise _NotTriedError("no policy here, or it cannot be read: no table is known")
        dataset = self._policy.dataset(dataset_id)
        dictionary, mapping = site_folder.described(self._folder, *self._described_by)
        refuse_other_dictionary(plan, dictionary)
        refuse_other_absent(plan, self._policy.site, mapping.absent)
        table = self._table(self._policy, dataset.id)
        used = table.reordered(plan.column_names or table.variables)
        require_present(used, plan)
        fit = self._fit = fit_of(table, plan)
        if plan.privacy is None:
            rows_for(used, plan)
        place = self._folder if self._insecure else place_of(self._folder, self._federation)
        peers, lacking = peers_lacking(plan, place, self._policy.site)
        text = "; ".join(
            [*filter(None, [peers]), *plan.absent.lines(plan.n_participants), *fit.lines(), *few_complete(used, plan)]
        )
        if lacking:
            raise _DoubtError(text, remedy=f"Confirm more: fedbnsl participant peers {self._folder}.")
        if fit.same_value or fit.beyond_any > _MANY_BEYOND:
            raise _DoubtError(
                text,
                remedy="A larger square counts as its bound, which costs accuracy. Wider bounds must come from public "
                "knowledge, never from this table. Nothing of this is sent.",
            )
        return text or f"{dataset.id} has the plan's variables; the plan has no feature_bounds"


def _refused_by_us(error: ssl.SSLCertVerificationError, host: str) -> IdentityError:
    """What is wrong with the coordinator's certificate."""
    code, said = error.verify_code, error.verify_message
    if code in _OTHER_NAMES:
        return IdentityError(
            f"the coordinator's certificate is not for {host!r} ({said})",
            remedy="Call it by a name in its certificate, or ask its operator for another: coordinator init --host.",
        )
    if code in _EXPIRED | _NOT_YET_VALID:
        return IdentityError(
            f"the coordinator's certificate is not valid now ({said})",
            remedy="Look at this machine's clock; if it is right, its operator renews it: fedbnsl coordinator renew.",
        )
    return IdentityError(
        f"the coordinator's certificate is not of this site's federation ({said})",
        remedy="Is this the right coordinator? If its federation was made again, ask for a new certificate there.",
    )


def _refused_by_them(reason: str) -> IdentityError:
    return IdentityError(
        f"the coordinator does not accept this site's certificate ({reason.lower().replace('_', ' ')})",
        remedy="The site was enrolled in another federation, or the clocks disagree: request a certificate there.",
    )


def _known(status: RunStatus | None) -> RunStatus:
    if status is None:
        raise _NotTriedError("the coordinator did not answer")
    return status
