// A SAML identity system on loopback, for the tests: everybody who comes is the person of the settings.
// Its one argument is JSON: {key, cert, encryptionCert, encryptionPublicKey, serviceCert, user, ...options of samlp}.
// It prints its URL once it listens, and ends with its standard input.
const http = require('node:http');
const samlp = require('samlp');

const { user, serviceCert, ...settings } = JSON.parse(process.argv[2]);

const profileMapper = (person) => ({
  getClaims: () => person.claims,
  getNameIdentifier: () => ({ nameIdentifier: person.id }),
});

const server = http.createServer((request, response) => {
  const url = new URL(request.url, `http://${request.headers.host}`);
  const query = Object.fromEntries(url.searchParams);
  const sent = [];
  request.on('data', (chunk) => sent.push(chunk));
  request.on('end', () => {
    const body = Object.fromEntries(new URLSearchParams(Buffer.concat(sent).toString()));
    // As much of express as samlp uses.
    Object.assign(request, { query, body, user, originalUrl: request.url, protocol: 'http' });
    response.set = (name, value) => response.setHeader(name, value);
    response.send = (text, more) => {
      if (typeof text === 'number') { response.statusCode = text; response.end(String(more || '')); } else { response.end(text); }
    };
    const options = {
      ...settings,
      signingCert: serviceCert,
      deflate: request.method === 'GET',
      profileMapper,
      getPostURL: (audience, message, asked, done) => done(null, message.documentElement.getAttribute('AssertionConsumerServiceURL')),
    };
    samlp.auth(options)(request, response, (error) => {
      response.statusCode = 500;
      response.end(`samlp: ${error && error.message}`);
    });
  });
});

server.listen(0, '127.0.0.1', () => process.stdout.write(`http://127.0.0.1:${server.address().port}\n`));
process.stdin.on('end', () => process.exit(0)).resume();
