"""Decrypt an EncryptedAssertion (XML Encryption 1.1): RSA-OAEP for the key, AES for the data.

AES in CBC mode does not authenticate its content, so an attacker who sends variations of a ciphertext may learn the
plaintext (a padding oracle). It is rejected unless the operator allows it, and then all failures look alike. RSA with
PKCS#1 v1.5 has the same flaw for the key and is always rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from lxml import etree

from ostiary_gateway.providers.saml.xml import (
    DS,
    XENC,
    XENC11,
    DocumentRefused,
    attribute,
    children,
    decode_base64,
    name,
    only_child,
    parse,
    quoted,
    required_child,
    serialize,
    text_of,
)

_GCM: Mapping[str, int] = MappingProxyType({f"{XENC11}aes{bits}-gcm": bits // 8 for bits in (128, 192, 256)})
_CBC: Mapping[str, int] = MappingProxyType({f"{XENC}aes{bits}-cbc": bits // 8 for bits in (128, 192, 256)})
OAEP_MGF1P, OAEP = f"{XENC}rsa-oaep-mgf1p", f"{XENC11}rsa-oaep"
_BLOCK, _NONCE = 16, 12
# The hash inside OAEP need not resist collisions, and nearly all IdPs send SHA-1.
_DIGESTS: Mapping[str, type[hashes.HashAlgorithm]] = MappingProxyType(
    {
        f"{DS}sha1": hashes.SHA1,
        f"{XENC}sha256": hashes.SHA256,
        "http://www.w3.org/2001/04/xmldsig-more#sha384": hashes.SHA384,
        f"{XENC}sha512": hashes.SHA512,
    }
)
_MASKS: Mapping[str, type[hashes.HashAlgorithm]] = MappingProxyType(
    {
        f"{XENC11}mgf1sha1": hashes.SHA1,
        f"{XENC11}mgf1sha256": hashes.SHA256,
        f"{XENC11}mgf1sha384": hashes.SHA384,
        f"{XENC11}mgf1sha512": hashes.SHA512,
    }
)
# A response may be encrypted for several recipients.
MOST_KEYS = 4
_UNREADABLE = "it is not encrypted for the key of this gateway, or damaged"


def decrypt_element(encrypted: etree._Element, key: rsa.RSAPrivateKey, *, cbc: bool) -> etree._Element:
    """Return the element inside *encrypted*, an EncryptedAssertion, or raise `DocumentRefused`."""
    data = required_child(encrypted, XENC, "EncryptedData")
    method = attribute(required_child(data, XENC, "EncryptionMethod"), "Algorithm")
    if method not in _GCM and not (cbc and method in _CBC):
        hint = " (setting encryption.cbc)" if method in _CBC else ""
        raise DocumentRefused(f"the encryption algorithm is not accepted{hint}: {quoted(method)}")
    ciphertext = _cipher_value(data)
    for wrapped in _wrapped_keys(encrypted, data):
        try:
            content_key = _unwrap(wrapped, key)
            return _parse_inside(encrypted, _open(method, content_key, ciphertext))
        except (ValueError, InvalidTag, DocumentRefused):
            # Every failure must look alike, no matter at which step (padding oracle).
            continue
    raise DocumentRefused(_UNREADABLE)


def _parse_inside(encrypted: etree._Element, content: bytes) -> etree._Element:
    """Parse *content* with the namespaces of *encrypted* in scope: some IdPs rely on them."""
    place = etree.Element("place", nsmap=encrypted.nsmap)
    start = serialize(place).removesuffix(b"/>")
    body = re.sub(rb"\A\s*<\?xml[^>]*\?>", b"", content)
    inside = parse(start + b">" + body + b"</place>")
    if inside.tag != "place" or len(inside) != 1:
        raise DocumentRefused("what is encrypted is not one element")
    return parse(serialize(inside[0]))


def _wrapped_keys(encrypted: etree._Element, data: etree._Element) -> list[etree._Element]:
    """Return the wrapped keys, inside the data's KeyInfo or next to the data. Only trying finds the right one."""
    key_info = only_child(data, DS, "KeyInfo")
    inside = [] if key_info is None else children(key_info, XENC, "EncryptedKey")
    keys = [*inside, *children(encrypted, XENC, "EncryptedKey")]
    if not 0 < len(keys) <= MOST_KEYS:
        raise DocumentRefused("the encrypted assertion has no key, or too many")
    for each in keys:
        method = attribute(required_child(each, XENC, "EncryptionMethod"), "Algorithm")
        if method not in (OAEP_MGF1P, OAEP):
            raise DocumentRefused(f"the key encryption algorithm is not accepted: {quoted(method)}")
    return keys


def _unwrap(wrapped: etree._Element, key: rsa.RSAPrivateKey) -> bytes:
    method = required_child(wrapped, XENC, "EncryptionMethod")
    digest: type[hashes.HashAlgorithm] = hashes.SHA1
    mask: type[hashes.HashAlgorithm] = hashes.SHA1
    label: bytes | None = None
    for child in method:
        if child.tag == name(DS, "DigestMethod"):
            digest = _known(_DIGESTS, child)
        elif child.tag == name(XENC11, "MGF") and method.get("Algorithm") == OAEP:
            mask = _known(_MASKS, child)
        elif child.tag == name(XENC, "OAEPparams"):
            label = decode_base64(text_of(child))
        elif child.tag != name(XENC, "KeySize"):
            raise DocumentRefused("unknown parameter")
    return key.decrypt(_cipher_value(wrapped), padding.OAEP(padding.MGF1(mask()), digest(), label))


def _known(
    table: Mapping[str, type[hashes.HashAlgorithm]], element: etree._Element
) -> type[hashes.HashAlgorithm]:  # fmt: skip
    algorithm = attribute(element, "Algorithm")
    if algorithm not in table:
        raise DocumentRefused("unknown digest")
    return table[algorithm]


def _open(method: str, key: bytes, ciphertext: bytes) -> bytes:
    if len(key) != (_GCM.get(method) or _CBC[method]):
        raise ValueError("the key is of another length")
    if method in _GCM:
        return AESGCM(key).decrypt(ciphertext[:_NONCE], ciphertext[_NONCE:], None)
    initial, body = ciphertext[:_BLOCK], ciphertext[_BLOCK:]
    if len(initial) < _BLOCK or not body or len(body) % _BLOCK:
        raise ValueError("the text is not of whole blocks")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(initial)).decryptor()
    padded = decryptor.update(body) + decryptor.finalize()
    if not 1 <= padded[-1] <= _BLOCK:
        raise ValueError("the padding is wrong")
    return padded[: -padded[-1]]


def _cipher_value(element: etree._Element) -> bytes:
    # A CipherReference would have to be fetched, so it is not supported.
    return decode_base64(text_of(required_child(required_child(element, XENC, "CipherData"), XENC, "CipherValue")))
