-- Sessions and their tokens: added, renewed, revoked, swept. Each call is one transaction and one round trip.
-- All times that come in are the clock's; `shift` makes times of the store of them.

CREATE FUNCTION @schema@.name_digest(p_name text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(sha256(convert_to(p_name, 'UTF8')) FOR 16)
$$;

CREATE FUNCTION @schema@.put_session(
    p_shift bigint, p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_sequence bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
BEGIN
    INSERT INTO @schema@.sessions (id, username, created_at, expires_at, body, groups, sequence)
        VALUES (p_id, p_username, p_created_at + p_shift, p_expires_at + p_shift, p_body,
            ARRAY(SELECT DISTINCT @schema@.name_digest(name) FROM unnest(p_groups) AS name), p_sequence)
        ON CONFLICT (id) DO UPDATE SET username = excluded.username, created_at = excluded.created_at,
            expires_at = excluded.expires_at, body = excluded.body, groups = excluded.groups
        RETURNING number INTO v_number;
    RETURN v_number;
END $$;

CREATE FUNCTION @schema@.put_tokens(
    p_shift bigint, p_session bigint, p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_expires_at bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_inserted integer;
BEGIN
    INSERT INTO @schema@.tokens (digest, session, kind, issued_at, expires_at)
        SELECT new.digest, p_session, new.kind, new.issued_at + p_shift, new.expires_at + p_shift
        FROM unnest(p_digests, p_kinds, p_issued_at, p_expires_at) AS new (digest, kind, issued_at, expires_at)
        ON CONFLICT (digest) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    -- The same call once more, because its first answer was lost, is harmless. A token of another session is not.
    IF v_inserted < cardinality(p_digests)
        AND EXISTS (SELECT FROM @schema@.tokens WHERE digest = ANY (p_digests) AND session <> p_session)
    THEN
        RAISE EXCEPTION 'a token belongs to another session' USING ERRCODE = 'unique_violation';
    END IF;
END $$;

-- The outcomes of a change.
--   0  refused      1  done      2  not tried: the clock says something else than the caller expected

CREATE FUNCTION @schema@.add_session(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_sequence bigint,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_created_at bigint := p_created_at + v_now.shift;
    v_since bigint;
BEGIN
    clock := v_now.clock;
    "time" := v_now.time;
    IF v_now.time IS NULL THEN
        outcome := 2;
        RETURN;
    END IF;
    PERFORM @schema@.lock_shared();
    v_since := coalesce(p_sequence, @schema@.last_before(v_created_at));
    IF @schema@.is_revoked(p_id, p_username, p_groups, v_created_at, p_digests, v_since) THEN
        outcome := 0;
        RETURN;
    END IF;
    PERFORM @schema@.put_tokens(
        v_now.shift,
        @schema@.put_session(
            v_now.shift, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, v_since
        ),
        p_digests, p_kinds, p_issued_at, p_token_expires_at
    );
    outcome := 1;
END $$;

CREATE FUNCTION @schema@.renew_session(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[],
    p_spent bytea, p_at bigint, p_since bigint,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_old record;
    v_ended bytea[];
    v_digest bytea;
BEGIN
    clock := v_now.clock;
    "time" := v_now.time;
    IF v_now.time IS NULL THEN
        outcome := 2;
        RETURN;
    END IF;
    PERFORM @schema@.lock_shared();
    -- The row is locked: of several renewals with one token, the others find it spent.
    SELECT s.number, s.username, s.body, s.sequence INTO v_old
        FROM @schema@.tokens t JOIN @schema@.sessions s ON s.number = t.session
        WHERE t.digest = p_spent AND t.kind = 1 AND t.expires_at > v_now.time
            AND s.id = p_id AND s.expires_at > v_now.time
        FOR UPDATE OF t;
    IF NOT FOUND OR @schema@.is_revoked(
        p_id, p_username, p_groups, p_created_at + v_now.shift, '{}',
        coalesce(p_since, @schema@.last_before(p_at + v_now.shift))
    ) THEN
        outcome := 0;
        RETURN;
    END IF;
    PERFORM @schema@.put_session(
        v_now.shift, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, v_old.sequence
    );
    UPDATE @schema@.tokens SET kind = 2, issued_at = p_at + v_now.shift WHERE digest = p_spent;
    PERFORM @schema@.put_tokens(v_now.shift, v_old.number, p_digests, p_kinds, p_issued_at, p_token_expires_at);
    IF v_old.username <> p_username OR @schema@.user_in(v_old.body) <> @schema@.user_in(p_body) THEN
        WITH ended AS (
            DELETE FROM @schema@.tokens
            WHERE session = v_old.number AND kind = 0 AND digest <> ALL (p_digests) RETURNING digest
        )
        SELECT array_agg(digest) INTO v_ended FROM ended;
        FOREACH v_digest IN ARRAY coalesce(v_ended, '{}') LOOP
            PERFORM @schema@.write_revocation(
                'token', encode(v_digest, 'hex'), NULL, 'ostiary: the user has changed', v_now.time
            );
        END LOOP;
    END IF;
    outcome := 1;
END $$;

-- What of a session's body is about the user: the uid, the groups and the extra.
CREATE FUNCTION @schema@.user_in(p_body text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY[(p_body::json -> 0)::text, (p_body::json -> 1)::text, (p_body::json -> 2)::text]
$$;

CREATE FUNCTION @schema@.revoke(
    p_clock bigint, p_seen bigint, p_expected bigint, p_kind text, p_value text, p_at bigint, p_author text,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint, OUT ended bigint, OUT sequence bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_at bigint;
BEGIN
    IF v_now.time IS NOT NULL THEN
        PERFORM @schema@.lock_alone();
        -- Once more: it may have waited for the lock.
        v_now := @schema@.read_time(p_clock, v_now.time);
    END IF;
    clock := v_now.clock;
    "time" := v_now.time;
    IF v_now.time IS NULL THEN
        outcome := 2;
        RETURN;
    END IF;
    v_at := p_at + v_now.shift;
    IF p_kind = 'token' THEN
        -- A spent one stays, so that its second use is noticed.
        DELETE FROM @schema@.tokens t USING @schema@.sessions s
            WHERE t.digest = decode(p_value, 'hex') AND t.kind <> 2 AND t.expires_at > v_now.time
                AND s.number = t.session AND s.expires_at > v_now.time;
        GET DIAGNOSTICS ended = ROW_COUNT;
    ELSE
        ended := @schema@.end_sessions(p_kind, p_value, v_at, v_now.time);
    END IF;
    sequence := @schema@.write_revocation(p_kind, p_value, v_at, p_author, v_now.time);
    outcome := 1;
END $$;

-- Ends the sessions that a revocation is about; says how many of them were alive. All that are there began before it.
CREATE FUNCTION @schema@.end_sessions(p_kind text, p_value text, p_at bigint, p_time bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_numbers bigint[];
    v_living bigint;
BEGIN
    IF p_kind = 'session' THEN
        WITH gone AS (DELETE FROM @schema@.sessions WHERE id = p_value RETURNING number, expires_at)
        SELECT array_agg(number), count(*) FILTER (WHERE expires_at > p_time) INTO v_numbers, v_living FROM gone;
    ELSIF p_kind = 'user' THEN
        WITH gone AS (
            DELETE FROM @schema@.sessions WHERE username = p_value AND (p_at IS NULL OR created_at <= p_at)
            RETURNING number, expires_at
        )
        SELECT array_agg(number), count(*) FILTER (WHERE expires_at > p_time) INTO v_numbers, v_living FROM gone;
    ELSIF p_kind = 'group' THEN
        WITH gone AS (
            DELETE FROM @schema@.sessions
            WHERE groups @> ARRAY[@schema@.name_digest(p_value)] AND (p_at IS NULL OR created_at <= p_at)
            RETURNING number, expires_at
        )
        SELECT array_agg(number), count(*) FILTER (WHERE expires_at > p_time) INTO v_numbers, v_living FROM gone;
    ELSIF p_kind = 'before' THEN
        WITH gone AS (
            DELETE FROM @schema@.sessions WHERE p_at IS NULL OR created_at <= p_at RETURNING number, expires_at
        )
        SELECT array_agg(number), count(*) FILTER (WHERE expires_at > p_time) INTO v_numbers, v_living FROM gone;
    ELSE
        RAISE EXCEPTION 'unknown kind of revocation' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM @schema@.tokens WHERE session = ANY (v_numbers);
    RETURN v_living;
END $$;

-- Deletes some of what has expired; by one caller at a time, who waits for nobody.
CREATE FUNCTION @schema@.sweep(
    p_clock bigint, p_seen bigint, p_limit integer, OUT swept bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment;
    v_numbers bigint[];
    v_tokens bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1869837419, @schema@.lock_number()) THEN
        swept := 0;
        more := false;
        RETURN;
    END IF;
    v_now := @schema@.begin_change(p_clock, p_seen, NULL);
    DELETE FROM @schema@.tokens WHERE digest = ANY (ARRAY(
        SELECT digest FROM @schema@.tokens WHERE expires_at <= v_now.time LIMIT p_limit FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS swept = ROW_COUNT;
    more := swept = p_limit;
    WITH gone AS (
        DELETE FROM @schema@.sessions WHERE number = ANY (ARRAY(
            SELECT number FROM @schema@.sessions WHERE expires_at <= v_now.time LIMIT p_limit FOR UPDATE SKIP LOCKED
        )) RETURNING number
    )
    SELECT array_agg(number) INTO v_numbers FROM gone;
    DELETE FROM @schema@.tokens WHERE session = ANY (v_numbers);
    GET DIAGNOSTICS v_tokens = ROW_COUNT;
    swept := swept + v_tokens;
    more := more OR coalesce(cardinality(v_numbers), 0) = p_limit;
END $$;
