-- A store that is filled from another one.

-- Replaces the log; returns null, or the own head if that is further.
CREATE FUNCTION @schema@.import_log(
    p_clock bigint, p_seen bigint, p_head bigint, p_forgotten bigint, p_sequences bigint[], p_kinds text[], p_values text[],
    p_at bigint[], p_authors text[], p_recorded_at bigint[], p_undone boolean[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, NULL);
    v_state @schema@.state;
BEGIN
    PERFORM @schema@.lock_alone();
    v_state := @schema@.read_state();
    IF v_state.head > p_head THEN
        RETURN v_state.head;
    END IF;
    DELETE FROM @schema@.revocations;
    INSERT INTO @schema@.revocations (sequence, kind, value, at, author, recorded_at, keep_until, undone)
        SELECT sequence, kind, value, at + v_state.shift, author, recorded_at + v_state.shift,
            recorded_at + v_state.shift + 3600000000, undone
        FROM unnest(p_sequences, p_kinds, p_values, p_at, p_authors, p_recorded_at, p_undone)
            AS new (sequence, kind, value, at, author, recorded_at, undone);
    UPDATE @schema@.state SET head = p_head, forgotten = p_forgotten, forgotten_proof = NULL,
        head_proof = (SELECT proof FROM @schema@.revocations WHERE sequence = p_head);
    PERFORM pg_notify('@channel@', p_head::text);
    RETURN NULL;
END $$;

-- Stores or replaces a session with exactly these tokens.
CREATE FUNCTION @schema@.import_session(
    p_clock bigint, p_seen bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_sequence bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_shift bigint := (@schema@.begin_change(p_clock, p_seen, NULL)).shift;
    v_number bigint;
BEGIN
    PERFORM @schema@.lock_shared();
    v_number := @schema@.put_session(
        v_shift, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, p_sequence
    );
    UPDATE @schema@.sessions SET sequence = p_sequence WHERE number = v_number;
    DELETE FROM @schema@.tokens WHERE session = v_number;
    PERFORM @schema@.put_tokens(v_shift, v_number, p_digests, p_kinds, p_issued_at, p_token_expires_at);
END $$;
