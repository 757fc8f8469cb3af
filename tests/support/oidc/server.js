// A certified OpenID Connect issuer on loopback, for the tests: anybody signs in, with any password.
// Its one argument is JSON: {clients, accounts}. It prints its URL once it listens, and ends with its standard input.
import http from 'node:http';

import Provider from 'oidc-provider';

const { clients, accounts } = JSON.parse(process.argv[2]);

const server = http.createServer();
await new Promise((listening) => { server.listen(0, '127.0.0.1', listening); });
const url = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(url, {
  clients,
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Claims about the person stand in the ID token too, as most issuers have it.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ['only for tests'] },
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
});

server.on('request', provider.callback());
process.stdout.write(`${url}\n`);
process.stdin.on('end', () => process.exit(0)).resume();
