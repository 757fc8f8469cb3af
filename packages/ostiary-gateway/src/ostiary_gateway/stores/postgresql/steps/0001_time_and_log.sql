-- The time of the store, and the log of revocations.
--
-- Locks: whoever adds or renews a session holds the lock of this store shared, whoever revokes holds it alone. So a
-- session is there when a revocation looks for what it ends, or else sees the revocation. The row of `state` is locked
-- last, until the commit: numbers have no gaps, and become visible in their order.

CREATE TYPE @schema@.moment AS (
    clock bigint,  -- what the clock of the database says
    time bigint,   -- the time of the store; null if the caller is mistaken about the clock
    shift bigint   -- what a time of the clock needs to be a time of the store
);

CREATE FUNCTION @schema@.clock_micros() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- By which number this store is known among the advisory locks of its database.
CREATE FUNCTION @schema@.lock_number() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT '@schema@.state'::regclass::oid::integer
$$;

CREATE FUNCTION @schema@.lock_shared() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock_shared(1869837417, @schema@.lock_number())
$$;

CREATE FUNCTION @schema@.lock_alone() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(1869837417, @schema@.lock_number())
$$;

CREATE FUNCTION @schema@.read_state() RETURNS @schema@.state LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_state @schema@.state;
BEGIN
    SELECT * INTO v_state FROM @schema@.state;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the table state has no row' USING ERRCODE = 'data_corrupted';
    END IF;
    RETURN v_state;
END $$;

-- A revocation gets the next number, and whoever waits is woken when it is committed.
CREATE FUNCTION @schema@.write_revocation(p_kind text, p_value text, p_at bigint, p_author text, p_time bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
    v_proof uuid := gen_random_uuid();
BEGIN
    UPDATE @schema@.state SET head = head + 1, head_proof = v_proof, latest = greatest(latest, p_time)
        RETURNING head INTO STRICT v_number;
    INSERT INTO @schema@.revocations (sequence, kind, value, at, author, recorded_at, keep_until, proof)
        VALUES (v_number, p_kind, p_value, p_at, p_author, p_time, p_time + 3600000000, v_proof);
    PERFORM pg_notify('@channel@', v_number::text);
    RETURN v_number;
END $$;

-- The time. If the clock was set back by more than two seconds since *p_seen* or since what was written down, the shift
-- grows by as much: so everything lives as long as it was meant to, and no longer. *p_clock* replaces the clock.
CREATE FUNCTION @schema@.read_time(p_clock bigint, p_seen bigint) RETURNS @schema@.moment LANGUAGE plpgsql AS $$
DECLARE
    v_state @schema@.state := @schema@.read_state();
    v_clock bigint := coalesce(p_clock, @schema@.clock_micros());
    v_last bigint := greatest(v_state.latest, p_seen);
    v_step bigint := v_last - (v_clock + v_state.shift);
BEGIN
    IF v_step > 2000000 THEN
        PERFORM @schema@.lock_alone();
        -- Another call may have done it while this one waited.
        v_state := @schema@.read_state();
        v_last := greatest(v_state.latest, p_seen);
        v_step := v_last - (v_clock + v_state.shift);
        IF v_step > 2000000 THEN
            UPDATE @schema@.state SET shift = shift + v_step RETURNING shift INTO v_state.shift;
            -- A number that revokes nothing: whoever follows the log drops what they have cached.
            PERFORM @schema@.write_revocation('gap', '', NULL, '', v_last);
        END IF;
    END IF;
    RETURN ROW(v_clock, greatest(v_last, v_clock + v_state.shift), v_state.shift)::@schema@.moment;
END $$;

-- What every call that changes something begins with. The time is null if the caller expected the clock to say something
-- else: it translates times by that.
CREATE FUNCTION @schema@.begin_change(p_clock bigint, p_seen bigint, p_expected bigint)
RETURNS @schema@.moment LANGUAGE plpgsql AS $$
DECLARE
    v_clock bigint := coalesce(p_clock, @schema@.clock_micros());
BEGIN
    IF abs(v_clock - p_expected) > 5000000 THEN
        RETURN ROW(v_clock, NULL, 0)::@schema@.moment;
    END IF;
    -- What is acknowledged has to be on a disk, whatever the default of the server is.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN @schema@.read_time(p_clock, p_seen);
END $$;

CREATE FUNCTION @schema@.heartbeat(p_clock bigint, p_seen bigint, OUT clock bigint, OUT "time" bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, NULL);
BEGIN
    UPDATE @schema@.state SET latest = greatest(latest, v_now.time);
    clock := v_now.clock;
    "time" := v_now.time;
END $$;

-- The number of the last revocation that was written down before a time of the store.
CREATE FUNCTION @schema@.last_before(p_time bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(
        (SELECT min(sequence) - 1 FROM @schema@.revocations WHERE recorded_at >= p_time),
        (SELECT head FROM @schema@.state)
    );
END $$;

-- Whether a revocation with a larger number than *p_since* is about this session or its tokens, or may have been.
CREATE FUNCTION @schema@.is_revoked(
    p_id text, p_username text, p_groups text[], p_created_at bigint, p_digests bytea[], p_since bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_state @schema@.state := @schema@.read_state();
BEGIN
    -- A number that was not given yet is one of a log that a failover has lost: what followed it there is unknown.
    IF p_since < v_state.forgotten OR p_since > v_state.head THEN
        RETURN true;
    END IF;
    IF v_state.head = v_state.forgotten THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT FROM @schema@.revocations WHERE value = p_id AND kind = 'session' AND NOT undone) THEN
        RETURN true;
    END IF;
    -- Hardly ever is there one this new, and then not every group need be looked up.
    RETURN v_state.head > p_since AND EXISTS (
        SELECT FROM @schema@.revocations
        WHERE sequence > p_since AND NOT undone AND (
            kind = 'token' AND value = ANY (ARRAY(SELECT encode(digest, 'hex') FROM unnest(p_digests) AS digest))
            OR (at IS NULL OR at >= p_created_at) AND (
                kind = 'before' OR kind = 'user' AND value = p_username OR kind = 'group' AND value = ANY (p_groups)
            )
        )
    );
END $$;

-- Forget revocations that are about nothing any more. Alone: a sign-in reads first what is forgotten, then the rest.
CREATE FUNCTION @schema@.forget_revocations(p_clock bigint, p_seen bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, NULL);
    v_last @schema@.revocations;
BEGIN
    SELECT * INTO v_last FROM @schema@.revocations WHERE keep_until <= v_now.time ORDER BY sequence DESC LIMIT 1;
    IF FOUND THEN
        PERFORM @schema@.lock_alone();
        DELETE FROM @schema@.revocations WHERE sequence <= v_last.sequence;
        UPDATE @schema@.state SET forgotten = v_last.sequence, forgotten_proof = v_last.proof
            WHERE forgotten < v_last.sequence;
    END IF;
END $$;

CREATE FUNCTION @schema@.claim(p_owner text, p_anew boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_owner text;
BEGIN
    UPDATE @schema@.state SET owner = p_owner WHERE p_anew OR owner IS NULL;
    SELECT owner INTO STRICT v_owner FROM @schema@.state;
    RETURN v_owner;
END $$;
