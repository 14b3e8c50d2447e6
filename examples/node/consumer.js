// Claims a message, does its work and commits, then acknowledges.
//
//     AMQP_URL=amqp://... PGHOST=... node consumer.js QUEUE
//
// The queue's name serves as the consumer's name.  Any error that is not the
// message's fault ends the process, which returns what it has not
// acknowledged to the queue; a supervisor starts it again.
'use strict';

const amqp = require('amqplib');
const { Client } = require('pg');

const queue = process.argv[2];
// One connection, not a pool: BEGIN, claim, work and COMMIT must all go
// through the same one.  With a pool, take a client of it for the transaction.
const database = new Client();

async function work(messageId, body) {
  await database.query('BEGIN');
  try {
    const claim = await database.query(
      'SELECT idem_claim($1, $2, idem_fingerprint($3::jsonb)) AS outcome',
      [messageId, queue, body]);
    const { outcome } = claim.rows[0];
    if (outcome === 'claimed') {
      await database.query(
        `INSERT INTO reservation
         SELECT $1, (d->>'order_id')::int, d->>'title', (d->>'copies')::int
         FROM (SELECT $2::jsonb->'data') AS message (d)`,
        [queue, body]);
    }
    await database.query('COMMIT');
    return outcome;
  } catch (error) {
    // Class 22 and 23: wrong data, which would fail again at every delivery.
    if (!/^2[23]/.test(error.code)) throw error;
    await database.query('ROLLBACK');
    console.error(messageId, error.message);
    return 'poison';
  }
}

async function main() {
  await database.connect();
  const connection = await amqp.connect(process.env.AMQP_URL);
  const channel = await connection.createChannel();
  await channel.prefetch(20);

  // amqplib calls back for every message at once; the chain makes them take
  // their turns on the one database connection.
  let turn = Promise.resolve();
  await channel.consume(queue, (message) => {
    turn = turn.then(async () => {
      const outcome = await work(message.properties.messageId, message.content.toString());
      if (outcome === 'claimed' || outcome === 'duplicate') channel.ack(message);
      else channel.nack(message, false, outcome !== 'mismatch' && outcome !== 'poison');
    }).catch(die);
  });
}

function die(error) {
  console.error(error.message);
  process.exit(1);
}

database.on('error', die);
main().catch(die);
