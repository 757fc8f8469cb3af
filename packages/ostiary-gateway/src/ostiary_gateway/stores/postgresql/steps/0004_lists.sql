-- Lists of sessions, and the log, read in a time that does not grow with them.

-- Those of one kind, which may be few among millions of another.
CREATE INDEX sessions_by_kind ON @schema@.sessions (kind, created_at);

-- As it was, but by the time of recording, which has an index and is as long before `keep_until` in every row: by that
-- column, all revocations that are kept would be read each time.
CREATE OR REPLACE FUNCTION @schema@.forget_revocations(p_clock bigint, p_seen bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, NULL);
    v_last @schema@.revocations;
BEGIN
    SELECT * INTO v_last FROM @schema@.revocations WHERE recorded_at <= v_now.time - 3600000000
        ORDER BY recorded_at DESC, sequence DESC LIMIT 1;
    IF FOUND THEN
        PERFORM @schema@.lock_alone();
        DELETE FROM @schema@.revocations WHERE sequence <= v_last.sequence;
        UPDATE @schema@.state SET forgotten = v_last.sequence, forgotten_proof = v_last.proof
            WHERE forgotten < v_last.sequence;
    END IF;
END $$;
