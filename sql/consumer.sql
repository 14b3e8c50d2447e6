--
-- Consumers: registered at their first claim or by idem_register()
--
CREATE EXTENSION idem_inbox;

CREATE VIEW consumers AS
SELECT name, retention, lease, owner = current_user AS mine, created_at <= now() AS created
FROM idem_consumer ORDER BY name;

SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_register('mail.confirm', retention => '90 days', lease => '5 min');
SELECT * FROM consumers;

-- what is not named stays
SELECT idem_register('mail.confirm', lease => '10 min');
SELECT idem_register('inventory.reserve', '1 year');
SELECT * FROM consumers;
SELECT idem_register('inventory.reserve');
SELECT * FROM consumers;
-- back to what the settings say
UPDATE idem_consumer SET retention = NULL;
SELECT * FROM consumers;
-- the records stay
SELECT idem_claim('m-1', 'inventory.reserve');

-- policies that make no sense
\set SHOW_CONTEXT never
SELECT idem_register('mail.confirm', retention => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('mail.confirm', retention => '-1 day');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('mail.confirm', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('mail.welcome', lease => '-1 s');
\echo :LAST_ERROR_SQLSTATE
\set SHOW_CONTEXT errors
SELECT * FROM consumers;

-- names are compared byte for byte
SELECT name, idem_claim('m-1', name)
FROM (VALUES ('Inventory.reserve'), ('inventory.reserve '), (' inventory.reserve'),
			 (E'inventory.reserve\n'), ('inventory.reserve')) AS spelling(name);
SELECT name, idem_claim('m-1', name)
FROM (VALUES (U&'caf\00e9'), (U&'cafe\0301'), (U&'caf\00e9')) AS spelling(name);
-- as long as 1024 bytes
SELECT idem_claim('m-1', repeat('c', 1024));
SELECT idem_claim('m-1', repeat('c', 1024));
SELECT idem_claim('m-1', repeat('c', 1023));
SELECT idem_claim('m-1', repeat(U&'\00e9', 512));
SELECT count(*) FROM idem_consumer;

-- a registration that rolls back leaves nothing behind, in memory neither
BEGIN;
SELECT idem_claim('m-1', 'rolled.back');
ROLLBACK;
SELECT count(*) FROM idem_consumer WHERE name = 'rolled.back';
SELECT idem_claim('m-1', 'rolled.back');
SELECT idem_claim('m-1', 'rolled.back');
BEGIN;
SAVEPOINT s;
SELECT idem_claim('m-1', 'savepoint');
SELECT idem_claim('m-1', 'savepoint');
ROLLBACK TO SAVEPOINT s;
SELECT idem_claim('m-1', 'savepoint');
COMMIT;
SELECT idem_claim('m-1', 'savepoint');
SELECT count(*) FROM idem_inbox WHERE consumer IN ('rolled.back', 'savepoint');
BEGIN;
SAVEPOINT s;
SELECT idem_register('savepoint', lease => '1 hour');
SELECT idem_begin('m-2', 'savepoint');
ROLLBACK TO SAVEPOINT s;
SELECT idem_begin('m-2', 'savepoint');
SELECT idem_begin('m-2', 'savepoint');
COMMIT;

-- edits with plain SQL take effect at once
SELECT idem_begin('e-1', 'mail.confirm');
UPDATE idem_consumer SET lease = NULL WHERE name = 'mail.confirm';
SELECT idem_begin('e-2', 'mail.confirm');
SELECT message_id, state FROM idem_inbox WHERE message_id >= 'e-' AND message_id < 'f'
ORDER BY message_id;
BEGIN;
UPDATE idem_consumer SET lease = '1 hour' WHERE name = 'mail.confirm';
SELECT idem_begin('e-3', 'mail.confirm');
SELECT idem_begin('e-3', 'mail.confirm');
ROLLBACK;
SELECT idem_begin('e-3', 'mail.confirm');
SELECT idem_begin('e-3', 'mail.confirm');
-- a renamed consumer keeps its records
UPDATE idem_consumer SET name = 'mail.welcome' WHERE name = 'mail.confirm';
SELECT idem_begin('e-3', 'mail.welcome');
SELECT idem_begin('e-3', 'mail.confirm');
-- a deleted one starts anew under another number
DELETE FROM idem_consumer WHERE name = 'mail.confirm';
SELECT idem_begin('e-3', 'mail.confirm');
INSERT INTO idem_consumer (name, owner) VALUES ('mail.bill', current_user);
SELECT idem_claim('e-3', 'mail.bill');
SELECT count(DISTINCT consumer_id) = count(*) AS own_numbers FROM idem_consumer;
-- rows that make no sense are refused; terse, since the details tell the time
\set VERBOSITY terse
INSERT INTO idem_consumer (name, owner) VALUES ('', current_user);
INSERT INTO idem_consumer (name, owner) VALUES (repeat('x', 1025), current_user);
INSERT INTO idem_consumer (name, owner, lease) VALUES ('x', current_user, '-1 s');
INSERT INTO idem_consumer (name, owner, retention) VALUES ('x', current_user, '0');
\set VERBOSITY default

--
-- Unknown consumers, with idem_inbox.auto_register = off
--
SET idem_inbox.auto_register = off;
SELECT idem_claim('m-1', 'inventory.resreve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', 'inventory.resreve');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM idem_consumer WHERE name = 'inventory.resreve';
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_register('inventory.resreve');
SELECT idem_claim('m-1', 'inventory.resreve');
RESET idem_inbox.auto_register;
-- a misspelt setting is an error
SET idem_inbox.auto_registre = off;

DROP VIEW consumers;
DROP EXTENSION idem_inbox;
