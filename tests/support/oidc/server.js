// A certified OpenID Connect issuer on loopback, for the tests: anybody signs in, with any password.
// Its one argument is JSON: {clients, accounts}. It prints its URL once it listens, and ends with its standard input.
// A line there is JSON, too: other accounts, in the place of those before. It is answered with a line. The line
// "revoke" makes all refresh tokens unknown.
import http from 'node:http';
import { createInterface } from 'node:readline';

import Provider from 'oidc-provider';

let { clients, accounts } = JSON.parse(process.argv[2]);

const server = http.createServer();
await new Promise((listening) => { server.listen(0, '127.0.0.1', listening); });
const url = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(url, {
  clients,
  scopes: ['openid', 'offline_access'],
  // How somebody signed in is said in every ID token: accounts have the acr and amr of their next sign-in.
  claims: { openid: ['sub', 'acr', 'amr', 'auth_time'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Claims about the person stand in the ID token too, as most issuers have it.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  // Machines: a client gets a token for the audience that it names, with the claims of the account of its name.
  features: {
    backchannelLogout: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, audience) => ({ scope: '', audience, accessTokenFormat: 'jwt', accessTokenTTL: 300 }),
    },
  },
  formats: {
    customizers: {
      jwt: (ctx, token, parts) => {
        // As build systems write it: no access token of a client, but a token about a job.
        const { client_id: client, scope, ...payload } = parts.payload;
        parts.header = { ...parts.header, typ: 'JWT' };
        parts.payload = { ...payload, sub: client, ...accounts[client] };
      },
    },
  },
  // Logouts go to gateways on loopback, which it would not connect to.
  fetch: (address, { dispatcher, ...options }) => fetch(address, options),
  cookies: { keys: ['only for tests'] },
  findAccount: (ctx, id) => (accounts[id]?.disabled ? undefined : { accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
});

const { loginAccount } = provider.Session.prototype;
provider.Session.prototype.loginAccount = function login(details) {
  const { acr, amr } = accounts[details.accountId] ?? {};
  return loginAccount.call(this, { ...details, acr, amr });
};

const grants = new Set();
provider.on('grant.success', (ctx) => { if (ctx.oidc.entities.Grant) grants.add(ctx.oidc.entities.Grant.jti); });
server.on('request', provider.callback());
process.stdout.write(`${url}\n`);
const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  if (line === 'revoke') {
    await Promise.all([...grants].map((grant) => provider.RefreshToken.adapter.revokeByGrantId(grant)));
  } else {
    accounts = JSON.parse(line);
  }
  process.stdout.write('changed\n');
});
lines.on('close', () => process.exit(0));
