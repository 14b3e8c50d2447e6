// POST /orders with an Idempotency-Key: a retry gets the answer of the first
// request, as draft-ietf-httpapi-idempotency-key-header asks for.
//
//     PGHOST=... PORT=8080 node http.js
//
//     curl -i -H 'Idempotency-Key: "8e03978e"' -H 'X-Account: 7' \
//          -d '{"title": "Dune", "copies": 2}' http://127.0.0.1:8080/orders
'use strict';

const http = require('http');
const { Pool } = require('pg');

const pool = new Pool();
pool.on('error', (error) => console.error(error.message)); // an idle connection broke

async function placeOrder(id, body) {
  const client = await pool.connect(); // claim and work go through one connection
  try {
    await client.query('BEGIN');
    const claim = await client.query(
      `SELECT idem_claim($1, 'POST /orders', idem_fingerprint($2::jsonb), max_wait => '0')
       AS outcome`, [id, body]);
    let answer;
    switch (claim.rows[0].outcome) {
      case 'claimed': {
        const order = await client.query(
          `INSERT INTO placed_order (title, copies)
           SELECT d->>'title', (d->>'copies')::int FROM (SELECT $1::jsonb) AS request (d)
           RETURNING order_id`, [body]);
        answer = { status: 201, body: { order_id: order.rows[0].order_id } };
        await client.query('SELECT idem_complete($1::jsonb)', [JSON.stringify(answer)]);
        break;
      }
      case 'duplicate':
        answer = (await client.query(
          "SELECT idem_result($1, 'POST /orders') AS result", [id])).rows[0].result;
        break;
      case 'mismatch':
        answer = { status: 422, body: { error: 'this key was used for another request' } };
        break;
      default: // busy
        answer = { status: 409, body: { error: 'a request with this key is being processed' } };
    }
    await client.query('COMMIT');
    client.release();
    return answer;
  } catch (error) {
    client.release(true); // closes the connection, which rolls back
    if (/^2[23]/.test(error.code)) return { status: 400, body: { error: error.message } };
    throw error;
  }
}

async function handle(request) {
  if (request.method !== 'POST' || request.url !== '/orders') return { status: 404, body: {} };
  const key = request.headers['idempotency-key'];
  if (!key) return { status: 400, body: { error: 'an Idempotency-Key is required' } };
  // Who asks belongs in the id, or one account could read another's answer.
  // A real service takes it from its authentication.
  const account = request.headers['x-account'] || '';
  let body = '';
  for await (const chunk of request.setEncoding('utf8')) body += chunk;
  return placeOrder(JSON.stringify([account, key]), body);
}

http.createServer(async (request, response) => {
  let answer;
  try {
    answer = await handle(request);
  } catch (error) {
    console.error(error.message);
    answer = { status: 503, body: { error: 'try again' } };
  }
  response.writeHead(answer.status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(answer.body));
}).listen(Number(process.env.PORT), '127.0.0.1');
