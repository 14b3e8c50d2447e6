--
-- Who may do what
--
CREATE EXTENSION idem_inbox;
CREATE ROLE regress_idem_stranger;
CREATE ROLE regress_idem_consumer;
CREATE ROLE regress_idem_member IN ROLE regress_idem_consumer;
CREATE ROLE regress_idem_other;

-- nothing but the message id's type is for PUBLIC
SELECT p.oid::regprocedure AS for_public
FROM pg_extension e
	 JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = e.oid AND d.deptype = 'e'
	 JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
WHERE e.extname = 'idem_inbox'
  AND has_function_privilege('regress_idem_stranger', p.oid, 'EXECUTE')
ORDER BY p.oid::regprocedure::text;
SELECT c.oid::regclass AS for_public
FROM pg_extension e
	 JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = e.oid AND d.deptype = 'e'
	 JOIN pg_class c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
WHERE e.extname = 'idem_inbox'
  AND CASE WHEN c.relkind = 'S'
		   THEN has_sequence_privilege('regress_idem_stranger', c.oid, 'USAGE, SELECT, UPDATE')
		   WHEN c.relkind IN ('r', 'v', 'm')
		   THEN has_table_privilege('regress_idem_stranger', c.oid,
									'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
	  END
ORDER BY c.oid::regclass::text;

-- no privilege
SET ROLE regress_idem_stranger;
SELECT idem_claim('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', 'inventory.reserve');
SELECT idem_complete('m-1', 'inventory.reserve');
SELECT idem_complete();
SELECT idem_seen('m-1', 'inventory.reserve');
SELECT * FROM idem_status('m-1', 'inventory.reserve');
SELECT idem_forget('m-1', 'inventory.reserve');
SELECT idem_register('inventory.reserve');
SELECT idem_version();
SELECT * FROM idem_inbox;
SELECT * FROM idem_generation_1;
SELECT * FROM idem_consumer;
SELECT * FROM idem_ring;
-- a trigger function is no back door
CREATE TEMP TABLE t (x int);
CREATE TRIGGER t AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION idem_invalidate();
DROP TABLE t;
RESET ROLE;

-- EXECUTE is all that a consumer's role needs
SELECT format('GRANT EXECUTE ON FUNCTION %s TO regress_idem_consumer, regress_idem_other',
			  string_agg(p.oid::regprocedure::text, ', '
						 ORDER BY p.oid::regprocedure::text COLLATE "C"))
FROM pg_proc p
WHERE proname ~ '^idem_(claim|begin|complete|seen|status|forget|register|version)$' \gexec
SET ROLE regress_idem_consumer;
SELECT idem_version() IS NOT NULL;
SELECT idem_claim('m-1', 'inventory.reserve');
BEGIN;
SELECT idem_claim('m-2', 'inventory.reserve');
SELECT idem_complete('"done"');
COMMIT;
SELECT idem_begin('m-3', 'inventory.reserve');
SELECT idem_complete('m-3', 'inventory.reserve', '"sent"');
SELECT idem_seen('m-3', 'inventory.reserve');
SELECT state, result FROM idem_status('m-3', 'inventory.reserve');
SELECT idem_register('inventory.reserve', lease => '1 hour');
SELECT idem_forget('m-1', 'inventory.reserve');
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT * FROM idem_inbox;
SELECT * FROM idem_generation_1;
RESET ROLE;
SELECT name, owner FROM idem_consumer;

-- a member of the owner may as well
SET ROLE regress_idem_member;
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT state FROM idem_status('m-1', 'inventory.reserve');
RESET ROLE;
-- what a member registers belongs to the member
SET ROLE regress_idem_member;
SELECT idem_claim('m-1', 'member.consumer');
RESET ROLE;
SET ROLE regress_idem_consumer;
SELECT idem_claim('m-2', 'member.consumer');
RESET ROLE;

-- another role may not, by any function
SET ROLE regress_idem_other;
SELECT idem_claim('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('m-9', 'inventory.reserve', max_wait => '0');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_begin('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('m-3', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_seen('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM idem_status('m-3', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_forget('m-1', 'inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('inventory.reserve');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('inventory.reserve', owner => 'regress_idem_other');
\echo :LAST_ERROR_SQLSTATE
-- its own consumer
SELECT idem_claim('m-1', 'other.consumer');
-- cannot be given to a role that it is no member of
SELECT idem_register('other.consumer', owner => 'regress_idem_consumer');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_register('another.consumer', owner => 'regress_idem_consumer');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

-- the current role counts, call by call
BEGIN;
SET LOCAL ROLE regress_idem_other;
SELECT idem_claim('m-4', 'other.consumer');
RESET ROLE;
SET LOCAL ROLE regress_idem_member;
SELECT idem_claim('m-4', 'inventory.reserve');
RESET ROLE;
ROLLBACK;

-- a superuser may
SELECT idem_claim('m-1', 'inventory.reserve');
SELECT idem_register('inventory.reserve', owner => 'regress_idem_other');
SET ROLE regress_idem_other;
SELECT idem_claim('m-1', 'inventory.reserve');
RESET ROLE;
SET ROLE regress_idem_consumer;
SELECT idem_claim('m-1', 'inventory.reserve');
RESET ROLE;
-- the owner stays unless one is named
SELECT idem_register('inventory.reserve', lease => '2 hours');
SELECT name, lease, owner FROM idem_consumer WHERE name = 'inventory.reserve';
SELECT idem_register('inventory.reserve', owner => 'regress_idem_nobody');
\echo :LAST_ERROR_SQLSTATE

-- membership counts from when it is granted to when it is revoked
SET ROLE regress_idem_consumer;
SELECT idem_claim('m-5', 'inventory.reserve');
RESET ROLE;
GRANT regress_idem_other TO regress_idem_consumer;
SET ROLE regress_idem_consumer;
SELECT idem_claim('m-5', 'inventory.reserve');
RESET ROLE;
REVOKE regress_idem_other FROM regress_idem_consumer;
SET ROLE regress_idem_consumer;
SELECT idem_claim('m-6', 'inventory.reserve');
RESET ROLE;

-- the owner of a SECURITY DEFINER function acts
CREATE FUNCTION process(id text) RETURNS idem_outcome
LANGUAGE sql SECURITY DEFINER
AS $$ SELECT idem_claim(id, 'inventory.reserve') $$;
ALTER FUNCTION process OWNER TO regress_idem_other;
SET ROLE regress_idem_stranger;
SELECT process('m-7');
RESET ROLE;
DROP FUNCTION process;

-- an owner that does not exist any more: superusers only
UPDATE idem_consumer SET owner = 'regress_idem_nobody' WHERE name = 'other.consumer';
SET ROLE regress_idem_other;
SELECT idem_claim('m-2', 'other.consumer');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT idem_claim('m-2', 'other.consumer');

DROP EXTENSION idem_inbox;
DROP ROLE regress_idem_stranger, regress_idem_consumer, regress_idem_member, regress_idem_other;
