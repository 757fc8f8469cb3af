"""People sign in at a SAML 2.0 identity system: the web browser profile, always begun here, answered by POST.

    handle_client     metadata -> AuthnRequest, signed if we have a key -> the browser goes there
    handle_provider   RelayState -> SAMLResponse -> `response.read_response` -> user, groups, and how to end it
    handle_logout     a LogoutRequest, verified -> which sign-in has ended, and the LogoutResponse
    sign_out          a LogoutRequest of ours, where the identity system takes any

    identity: [{name: acme, type: saml, metadataFile: idp.xml, keyFile: saml.key, certificateFile: saml.crt}]

One instance is one identity system; a gateway may have several. A response that nobody here asked for is refused. What
is not believed is a `LoginRefused`; metadata that cannot be had or used is a `ProviderError`. Groups come from an
attribute, as in `ostiary.plugins.claims.groups`. Called by the gateway at sign-ins and sign-outs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.identity import (
    Identified,
    LoginRequest,
    PostedForm,
    Produces,
    PublishedDocument,
    Redirect,
    RenewalCheck,
    SignIn,
)
from ostiary.interfaces.logout import Logout, SignOut
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.common.renewal import Renewal, sign_in_again
from ostiary.plugins.saml import bindings, logout, messages
from ostiary.plugins.saml.assertion import Assertion
from ostiary.plugins.saml.assertion_reading import AssertionExpired, Expected
from ostiary.plugins.saml.configured import metadata_source, outbound_to_metadata, own_key
from ostiary.plugins.saml.metadata.ours import own_metadata
from ostiary.plugins.saml.metadata.reading import IdentitySystem
from ostiary.plugins.saml.metadata.source import MetadataSource
from ostiary.plugins.saml.response import ResponseRules, SignInDeclined, read_response
from ostiary.plugins.saml.settings import SamlBinding, SamlSettings, Signed
from ostiary.plugins.saml.xml.documents import DocumentRefused, quoted, serialize
from ostiary.plugins.saml.xml.keys import KeyPair, OwnKey
from ostiary.plugins.saml.xml.signatures import KeyUnknown

T = TypeVar("T")
METADATA_TYPE = "application/samlmetadata+xml"
_REQUEST_ID, _CONTEXTS = "request id", "contexts"
_NOT_BEGUN = "this sign-in did not start in this browser, or has expired: start again"
_INVALID = "the response of the identity system is invalid: start again, or ask the administrator of this gateway"
_LATE = "the response of the identity system came too late, or a clock is wrong: start again"
_DECLINED = "the identity system did not sign you in: start again, or ask its administrator"
_TOO_WEAK = "the identity system signed you in, but not in the way that is required here: start again"


class SamlIdentity(ClaimedGroups):
    """A service provider of the identity system that *source* describes. *base_url* is ``<externalURL>/auth/<name>``.

    With *key* requests are signed, encrypted assertions can be opened, and sign-ins can end by single logout.
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
    def from_config(cls, fields: Fields, context: Context) -> SamlIdentity:
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

    # --- a sign-in begins ---

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

    # --- the browser returns ---

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
        """What *read* makes of a message; once more, if no key fits and the identity system has new ones."""
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

    # --- a sign-in ends ---

    async def handle_logout(self, request: LoginRequest) -> Logout:
        if logout.is_answer(request):
            # Of a person who has signed out here before. Whatever it says, nothing ends by it.
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

    # --- about ourselves ---

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
