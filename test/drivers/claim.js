// Claims with node-postgres' defaults: each query of a client or a pool is a
// transaction of its own unless BEGIN was sent.  Prints what the driver
// reports of each scene.
'use strict';

const { Client, Pool } = require('pg');

const config = { connectionString: process.argv[2] };

async function claim(client, scene) {
  const result = await client.query('SELECT idem_claim($1, $2) AS outcome',
    [`node ${scene}`, 'orders']);
  console.log(`${scene}: ${result.rows[0].outcome}`);
}

async function main() {
  const client = new Client(config);
  let scene;
  client.on('notice', (notice) =>
    console.log(`${scene}: ${notice.code} ${notice.message}`));
  await client.connect();

  scene = 'default';
  await claim(client, scene);
  await client.query("INSERT INTO work VALUES ('node')");

  scene = 'transaction';
  await client.query('BEGIN');
  await claim(client, scene);
  await client.query("INSERT INTO work VALUES ('node')");
  await client.query('COMMIT');
  await claim(client, scene);
  await client.end();

  // BEGIN goes to one connection of the pool, the claim to another
  const pool = new Pool({ ...config, max: 2 });
  pool.on('connect', (connection) => connection.on('notice', (notice) =>
    console.log(`pool: ${notice.code} ${notice.message}`)));
  const elsewhere = await pool.connect();
  await elsewhere.query('BEGIN');
  await claim(pool, 'pool');
  await elsewhere.query('COMMIT');
  elsewhere.release();
  await pool.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
