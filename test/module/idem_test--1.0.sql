/* idem_test--1.0.sql */

\echo Use "CREATE EXTENSION idem_test" to load this file. \quit

-- Stop this session's next claim at a point ('looked': it found nothing,
-- 'view': it is about to insert under the view it has just read again,
-- 'placeholder': the record is missing yet), until the advisory lock is free.
CREATE FUNCTION idem_test_stop_at(point text, key bigint) RETURNS void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT;

-- Make this session's claims linger at those points at random, up to so many
-- microseconds.
CREATE FUNCTION idem_test_linger(microseconds int) RETURNS void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT;

-- Stop this session between a generation's index and the row it points to, the
-- nth one that it reads.
CREATE FUNCTION idem_test_stop_at_row(generation regclass, key bigint, nth int DEFAULT 1)
	RETURNS void
	AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT;

-- Retention passes, as far as the ring knows, and a step is taken.  Others on
-- the server, such as autovacuum, may be in its way for a moment, so it is
-- tried again and again unless the test expects it to wait.
CREATE PROCEDURE idem_test_turn(tries int DEFAULT 3000, INOUT step text DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. tries LOOP
		UPDATE idem_ring SET current_age = '1 year', previous_age = '1 year';
		COMMIT;
		step := idem_maintain();
		COMMIT;
		EXIT WHEN step <> 'waiting';
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;

-- What the generations hold, placeholders included.
CREATE VIEW idem_test_rows AS
	SELECT generation, message_id,
		   CASE
			   WHEN completed_at IS NULL THEN 'in progress'
			   WHEN completed_at = '-infinity' THEN 'placeholder'
			   ELSE 'completed'
		   END AS row
	FROM (SELECT 1 AS generation, * FROM idem_generation_1
		  UNION ALL
		  SELECT 2, * FROM idem_generation_2
		  UNION ALL
		  SELECT 3, * FROM idem_generation_3) r
	ORDER BY message_id, generation;
