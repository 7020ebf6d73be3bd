"""That the new key of a site follows its old one: the old key signs the new one.

The statements travel in the certificate request and in the certificate, as an extension that nobody else reads, so that
every site that is shown the certificate has them. The coordinator signs certificates but has no site's old key: it can
leave a statement out, and invent none.

    key 1 --signs--> key 2 --signs--> key 3, that of the certificate
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedbnsl.errors import IdentityError
from fedbnsl.identity.certificates import Name, PrivateKey, PublicKey, key_fingerprint, name_in

OID = x509.ObjectIdentifier("2.25.190361227347021540226913420337816620481")
_DOMAIN = "fedbnsl: the key of a site is followed by another/1"
_CURVE = ec.ECDSA(hashes.SHA256())
_MOST = 32  # statements in a certificate; the oldest ones go first

Document = x509.Certificate | x509.CertificateSigningRequest


def extension(old: Document, key: PrivateKey | None, new: PublicKey) -> x509.UnrecognizedExtension | None:
    """What the request for a certificate of `new` holds: the statements in `old`, and one by its key.

    `key` None: it is the same key, which needs no statement. None is returned where there is nothing to state.
    """
    steps = list(_steps(old))
    if key is not None:
        signature = key.sign(_statement(name_in(old), key.public_key(), new), _CURVE)
        steps.append((_der(key.public_key()), signature))
    if not steps:
        return None
    text = json.dumps([[b64encode(part).decode() for part in step] for step in steps[-_MOST:]], separators=(",", ":"))
    return x509.UnrecognizedExtension(OID, text.encode())


def carried(document: Document) -> x509.UnrecognizedExtension | None:
    """The statements of a document, to be passed on; None: it has none. Raises IdentityError if one is not valid."""
    former_keys(document)
    return _found(document)


def former_keys(document: Document) -> tuple[str, ...]:
    """Fingerprints of the keys that the document's one follows, the oldest first.

    Raises IdentityError if a statement was not signed by the key before.
    """
    name, steps = name_in(document), _steps(document)
    keys = [_key(der) for der, _ in steps]
    own = document.public_key()
    if not isinstance(own, PublicKey):
        raise IdentityError("its public key is not of the kind that fedbnsl makes")
    for (_, signature), old, new in zip(steps, keys, [*keys, own][1:], strict=True):
        try:
            old.verify(signature, _statement(name, old, new), _CURVE)
        except InvalidSignature:
            raise IdentityError(
                f"the key {key_fingerprint(new)} is said to follow {key_fingerprint(old)}, which did not sign that"
            ) from None
    return tuple(map(key_fingerprint, keys))


def _statement(name: Name, old: PublicKey, new: PublicKey) -> bytes:
    return json.dumps([_DOMAIN, name.federation, name.site, key_fingerprint(old), key_fingerprint(new)]).encode()


def _steps(document: Document) -> Sequence[tuple[bytes, bytes]]:
    found = _found(document)
    if found is None:
        return ()
    try:
        steps = [(b64decode(der, validate=True), b64decode(by, validate=True)) for der, by in json.loads(found.value)]
    except (ValueError, TypeError):
        raise IdentityError("what its key follows is not stated in a form that fedbnsl knows") from None
    if len(steps) > _MOST:
        raise IdentityError(f"its key follows {len(steps)} others; at most {_MOST} are stated")
    return steps


def _found(document: Document) -> x509.UnrecognizedExtension | None:
    try:
        value = document.extensions.get_extension_for_oid(OID).value
    except x509.ExtensionNotFound:
        return None
    return value if isinstance(value, x509.UnrecognizedExtension) else None


def _der(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key(der: bytes) -> PublicKey:
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PublicKey):
        raise IdentityError("what its key follows is no key of a kind that fedbnsl makes")
    return key
