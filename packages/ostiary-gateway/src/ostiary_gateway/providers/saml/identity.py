"""The identity provider ``saml``: the web browser SSO profile, initiated by the gateway, with responses by POST.

    handle_client     metadata -> AuthnRequest, signed if there is a key -> redirect to the IdP
    handle_provider   RelayState -> SAMLResponse -> `response.read_response` -> user, groups, and how to sign out
    handle_logout     a verified LogoutRequest -> the sign-in that has ended, and the LogoutResponse
    sign_out          our LogoutRequest, if the IdP accepts any

One instance serves one IdP; a gateway may have several:

    identity: [{name: acme, type: saml, metadataFile: idp.xml, keyFile: saml.key, certificateFile: saml.crt}]
"""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from lxml import etree

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import (
    Identified,
    LoginRequest,
    Logout,
    PostedForm,
    Produces,
    PublishedDocument,
    Redirect,
    RenewalCheck,
    SignIn,
    SignOut,
)
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.common.jwt_issuer import usable_url
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.common.refresh import Renewal, sign_in_again
from ostiary_gateway.providers.saml import bindings, logout
from ostiary_gateway.providers.saml import response as messages
from ostiary_gateway.providers.saml.assertion import Assertion
from ostiary_gateway.providers.saml.metadata import (
    SYSTEM,
    IdentitySystem,
    MetadataFile,
    MetadataSource,
    MetadataUrl,
    read_metadata,
)
from ostiary_gateway.providers.saml.response import ResponseRules, SignInDeclined, read_response
from ostiary_gateway.providers.saml.settings import SamlBinding, SamlSettings, Signed
from ostiary_gateway.providers.saml.signatures import KeyPair, KeyUnknown, OwnKey, read_certificate
from ostiary_gateway.providers.saml.validate_assertion import AssertionExpired, Expected
from ostiary_gateway.providers.saml.xml import DS, MD, SAMLP, DocumentRefused, name, quoted, serialize
from ostiary_gateway.settings.declare import read_settings

# The parts of the provider, from its settings. Errors are reported to the settings' fields.


def own_key(settings: SamlSettings, fields: ConfigSection, clock: Clock) -> OwnKey | None:
    if settings.key_file is None and settings.certificate_file is None:
        if settings.encryption.required:
            fields.problem("encrypted assertions need a key", "encryption", "set keyFile and certificateFile")
        return None
    if settings.key_file is None or settings.certificate_file is None:
        missing = "keyFile" if settings.key_file is None else "certificateFile"
        fields.problem("keyFile and certificateFile are set together, or not at all", "keyFile", f"set {missing}")
        return None
    key = OwnKey(settings.key_file, settings.certificate_file, clock=clock)
    key.check(fields)
    return key


def outbound_to_metadata(settings: SamlSettings, fields: ConfigSection) -> Outbound:
    try:
        return Outbound(SYSTEM, ca=settings.ca)
    except ConfigurationError as error:
        fields.problem(error.cause or error.summary, "ca")
        # Never used: after a reported error the gateway does not start.
        return Outbound(SYSTEM)


def metadata_source(settings: SamlSettings, fields: ConfigSection, outbound: Outbound, clock: Clock) -> MetadataSource:
    pinned = _pinned(settings, fields)
    read = partial(read_metadata, entity_id=settings.identity_system, pinned=pinned, algorithms=settings.algorithms)
    url, path = settings.metadata_url, settings.metadata_file
    if bool(url) == (path is not None):
        mistake = "either metadataFile or metadataURL is set" + (", not both" if url else ": it is missing")
        fields.problem(mistake, "metadataFile", "the identity system has a page or a button for its metadata")
    if url and usable_url(url, plain=True) is None:
        fields.problem("it is not a https URL", "metadataURL", "plain http is for this machine only")
    if path is None:
        return MetadataUrl(url, read, outbound, refresh=settings.metadata_refresh, clock=clock)
    source = MetadataFile(path, read, clock=clock)
    source.file.check(fields, "metadataFile")
    return source


def _pinned(settings: SamlSettings, fields: ConfigSection) -> x509.Certificate | None:
    if settings.metadata_certificate_file is None:
        return None
    try:
        return read_certificate(str(settings.metadata_certificate_file))
    except ConfigurationError as error:
        fields.problem(f"{error.summary}: {error.cause}", "metadataCertificateFile")
        return None


# The gateway's own metadata, for the administrators of IdPs.


def own_metadata(
    *,
    entity_id: str,
    callback_url: str,
    logout_url: str,
    name_id_format: str,
    pair: KeyPair | None,
    wants_signed_assertions: bool,
) -> etree._Element:
    """Return the metadata. Without a key nothing is signed or encrypted, and there is no single logout."""
    entity = etree.Element(name(MD, "EntityDescriptor"), nsmap={"md": MD, "ds": DS})
    entity.set("entityID", entity_id)
    role = etree.SubElement(entity, name(MD, "SPSSODescriptor"))
    role.set("AuthnRequestsSigned", _text(pair is not None))
    role.set("WantAssertionsSigned", _text(wants_signed_assertions))
    role.set("protocolSupportEnumeration", SAMLP)
    if pair is not None:
        _add_key(role, pair, "signing")
        if pair.decryption_key is not None:
            _add_key(role, pair, "encryption")
        for binding in SamlBinding:
            etree.SubElement(role, name(MD, "SingleLogoutService"), Binding=binding.uri, Location=logout_url)
    if name_id_format:
        etree.SubElement(role, name(MD, "NameIDFormat")).text = name_id_format
    service = etree.SubElement(role, name(MD, "AssertionConsumerService"))
    for key, value in (("Binding", SamlBinding.POST.uri), ("Location", callback_url), ("index", "0")):
        service.set(key, value)
    service.set("isDefault", "true")
    return entity


def _add_key(role: etree._Element, pair: KeyPair, use: str) -> None:
    descriptor = etree.SubElement(role, name(MD, "KeyDescriptor"), use=use)
    data = etree.SubElement(etree.SubElement(descriptor, name(DS, "KeyInfo")), name(DS, "X509Data"))
    certificate = b64encode(pair.certificate.public_bytes(Encoding.DER)).decode()
    etree.SubElement(data, name(DS, "X509Certificate")).text = certificate


def _text(flag: bool) -> str:
    return "true" if flag else "false"


T = TypeVar("T")
METADATA_TYPE = "application/samlmetadata+xml"
_REQUEST_ID, _CONTEXTS = "request id", "contexts"
_NOT_BEGUN = "this sign-in did not start in this browser, or has expired: start again"
_INVALID = "the response of the identity system is invalid: start again, or ask the administrator of this gateway"
_LATE = "the response of the identity system came too late, or a clock is wrong: start again"
_DECLINED = "the identity system did not sign you in: start again, or ask its administrator"
_TOO_WEAK = "the identity system signed you in, but not in the way that is required here: start again"


class SamlIdentity(ClaimedGroups):
    """A service provider of the IdP that *source* describes. *base_url* is ``<externalURL>/auth/<name>``.

    With *key*, requests are signed, encrypted assertions can be decrypted, and single logout works. Groups come from an
    attribute, see `ostiary_gateway.providers.claims`.

    An unsolicited or invalid response raises `LoginRefused`. Metadata that is unavailable or unusable raises
    `ProviderError`.
    """

    sign_in = SignIn.REDIRECT
    returns_by_post = True
    steps_up = True
    renewal_check: RenewalCheck

    def __init__(
        self,
        source: MetadataSource,
        *,
        base_url: str,
        settings: SamlSettings,
        key: OwnKey | None = None,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._source = source
        self._entity_id = settings.entity_id or f"{base_url}/metadata"
        self._logout_url = f"{base_url}/logout"
        self._settings = settings
        self._key = key
        self._outbound = outbound
        self._clock = clock
        self._rules = ResponseRules(
            algorithms=settings.algorithms,
            signed=settings.require_signed,
            must_be_encrypted=settings.encryption.required,
            cbc=settings.encryption.cbc,
        )
        self.renewal_check = settings.renewal.check()
        if settings.renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> SamlIdentity:
        settings = read_settings(SamlSettings, fields, context.directory)
        key = own_key(settings, fields, context.clock)
        outbound = outbound_to_metadata(settings, fields)
        return cls(
            metadata_source(settings, fields, outbound, context.clock),
            base_url=f"{context.external_url.rstrip('/')}/auth/{context.name}",
            settings=settings,
            key=key,
            outbound=outbound,
            clock=context.clock,
        )

    def produces(self) -> Produces:
        return self._settings.attributes.produces()

    async def probe(self) -> str:
        system = await self._source.current()
        return f"the metadata of {system.entity_id}"

    async def close(self) -> None:
        if self._outbound is not None:
            await self._outbound.close()

    # --- start of a sign-in ---

    async def handle_client(self, request: LoginRequest) -> Redirect | PostedForm:
        system = await self._source.current()
        pair = self._pair()
        if system.wants_signed_requests and pair is None:
            cause, hint = "the identity system wants signed requests", "set keyFile and certificateFile"
            raise ProviderError("the sign-in cannot begin", cause=cause, hint=hint)
        binding = self._settings.binding
        if binding not in system.sign_on:
            cause, hint = f"the identity system does not take requests by {binding.value}", "set binding"
            raise ProviderError("the sign-in cannot begin", cause=cause, hint=hint)
        required, request_id, url = request.required, messages.new_id(), system.sign_on[binding].location
        contexts = required.acr_values if required is not None and required.acr_values else self._settings.authn_context
        document = messages.authn_request(
            request_id=request_id,
            issuer=self._entity_id,
            destination=url,
            callback_url=request.callback_url,
            now=self._clock.now(),
            name_id_format=self._settings.name_id_format,
            context_classes=contexts,
            force=required is not None and required.max_age is not None,
        )
        remember = ((_REQUEST_ID, request_id), (_CONTEXTS, json.dumps(contexts)))
        away = bindings.send(document, bindings.REQUEST, url, binding, pair, secrets.token_urlsafe(32))
        return replace(away, remember=remember)

    # --- return of the browser ---

    async def handle_provider(self, request: LoginRequest) -> Identified:
        remembered = dict(request.remembered)
        request_id = remembered.get(_REQUEST_ID, "")
        if not request_id or request.method != "POST":
            raise LoginRefused(_NOT_BEGUN, cause="nothing is remembered of this sign-in, or the return is not a POST")
        assertion = await self._assertion(request, request_id)
        contexts = json.loads(remembered.get(_CONTEXTS, "[]"))
        if contexts and assertion.context_class not in contexts:
            raise LoginRefused(_TOO_WEAK, cause=f"the AuthnContextClassRef is {quoted(assertion.context_class)}")
        return Identified(
            self._settings.attributes.user(assertion),
            session_id=logout.sign_in_id(assertion.name_id, assertion.session_index),
            subject=assertion.name_id.value,
            sign_out_hint=logout.hint_of(assertion),
            token_id=assertion.id,
            once_until=assertion.good_until,
            session_until=assertion.session_until,
        )

    async def _assertion(self, request: LoginRequest, request_id: str) -> Assertion:
        try:
            data = bindings.from_post(request.form, bindings.RESPONSE)
            return await self._believe(lambda system: self._read(data, system, request, request_id))
        except AssertionExpired as expired:
            raise LoginRefused(_LATE, cause=f"SAML response: {expired}") from None
        except DocumentRefused as refused:
            raise LoginRefused(_INVALID, cause=f"SAML response: {refused}") from None
        except SignInDeclined as declined:
            raise LoginRefused(_DECLINED, cause=f"SAML response: its status is {declined}") from None

    async def _believe(self, read: Callable[[IdentitySystem], T]) -> T:
        """Return the result of *read*. If no key fits, retry once with newer metadata."""
        system = await self._source.current()
        try:
            return read(system)
        except KeyUnknown:
            newer = await self._source.newer(system)
            if newer is system:
                raise
            return read(newer)

    def _read(self, data: bytes, system: IdentitySystem, request: LoginRequest, request_id: str) -> Assertion:
        expected = Expected(
            issuer=system.entity_id,
            audience=self._entity_id,
            recipient=request.callback_url,
            request_id=request_id,
            now=self._clock.now(),
            skew=self._settings.clock_skew,
        )
        pair = self._pair()
        return read_response(data, system, expected, self._rules, None if pair is None else pair.decryption_key)

    # --- logout ---

    async def handle_logout(self, request: LoginRequest) -> Logout:
        if logout.is_answer(request):
            # A user returns from the IdP after signing out here. The response is unverified and ends no session.
            return Logout(verified=False, is_return=True)
        now, skew = self._clock.now(), self._settings.clock_skew
        try:
            requested = await self._believe(
                lambda system: logout.read_logout_request(
                    request,
                    system,
                    destination=self._logout_url,
                    algorithms=self._settings.algorithms,
                    now=now,
                    skew=skew,
                )
            )
        except DocumentRefused as refused:
            raise LoginRefused("the logout is not accepted", cause=f"SAML logout request: {refused}") from None
        system = await self._source.current()
        return Logout(
            session_id=requested.session_id,
            subject=requested.subject,
            token_id=requested.id,
            once_until=requested.good_until,
            answer=self._logout_answer(system, requested),
        )

    def _logout_answer(self, system: IdentitySystem, requested: logout.LogoutRequested) -> Redirect | PostedForm | None:
        pair, binding = self._pair(), logout.endpoint_of(system, requested.binding)
        if pair is None or binding is None:
            return None
        url = system.logout[binding].response_location
        document = messages.logout_response(
            issuer=self._entity_id, destination=url, now=self._clock.now(), in_response_to=requested.id
        )
        return bindings.send(document, bindings.RESPONSE, url, binding, pair, requested.relay_state)

    async def sign_out(self, signed_out: SignOut) -> Redirect | PostedForm | None:
        pair = self._pair()
        if signed_out.hint is None or pair is None or not self._settings.single_logout:
            return None
        system = await self._source.current()
        binding = logout.endpoint_of(system, SamlBinding.REDIRECT)
        if binding is None:
            return None
        name_id, session_index = logout.read_hint(signed_out.hint)
        url = system.logout[binding].location
        document = messages.logout_request(
            request_id=messages.new_id(),
            issuer=self._entity_id,
            destination=url,
            now=self._clock.now(),
            name_id=name_id,
            session_index=session_index,
        )
        return bindings.send(document, bindings.REQUEST, url, binding, pair)

    # --- metadata of the gateway ---

    async def publish_metadata(self, request: LoginRequest) -> PublishedDocument:
        document = own_metadata(
            entity_id=self._entity_id,
            callback_url=request.callback_url,
            logout_url=self._logout_url,
            name_id_format=self._settings.name_id_format,
            pair=self._pair(),
            wants_signed_assertions=self._settings.require_signed is Signed.ASSERTION,
        )
        return PublishedDocument(serialize(document), METADATA_TYPE)

    def _pair(self) -> KeyPair | None:
        return None if self._key is None else self._key.current()
