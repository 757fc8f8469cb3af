-- Tokens that are less than their session, sessions of programs, and when a session was last used.
--
-- The version before goes on with this schema. It knows no token of kind 4, and refuses it; it would take such a token
-- for all that its session may do.

ALTER TABLE @schema@.sessions ADD COLUMN kind smallint NOT NULL DEFAULT 0, ADD COLUMN used_at bigint;
ALTER TABLE @schema@.tokens ADD COLUMN delegation text NOT NULL DEFAULT '';

-- What a call is told of a session's tokens; all arrays have the same length.
CREATE FUNCTION @schema@.put_delegable_tokens(
    p_shift bigint, p_session bigint, p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_expires_at bigint[],
    p_delegations text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_inserted integer;
BEGIN
    INSERT INTO @schema@.tokens (digest, session, kind, issued_at, expires_at, delegation)
        SELECT new.digest, p_session, new.kind, new.issued_at + p_shift, new.expires_at + p_shift, new.delegation
        FROM unnest(p_digests, p_kinds, p_issued_at, p_expires_at, p_delegations)
            AS new (digest, kind, issued_at, expires_at, delegation)
        ON CONFLICT (digest) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;
    -- The same call once more, because its first answer was lost, is harmless. Any other token is not.
    IF v_inserted < cardinality(p_digests) AND EXISTS (
        SELECT FROM @schema@.tokens t
            JOIN unnest(p_digests, p_delegations) AS new (digest, delegation) ON new.digest = t.digest
        WHERE t.session <> p_session OR t.delegation <> new.delegation
    ) THEN
        RAISE EXCEPTION 'a token belongs to another session' USING ERRCODE = 'unique_violation';
    END IF;
END $$;

-- Beside what `put_session` stores.
CREATE FUNCTION @schema@.describe_session(p_number bigint, p_kind smallint, p_used_at bigint)
RETURNS void LANGUAGE sql AS $$
    UPDATE @schema@.sessions SET kind = p_kind, used_at = greatest(used_at, p_used_at)
        WHERE number = p_number AND (kind <> p_kind OR p_used_at > coalesce(used_at, 0))
$$;

CREATE FUNCTION @schema@.add_session_of_kind(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_kind smallint, p_used_at bigint,
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_delegations text[],
    p_sequence bigint,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_created_at bigint := p_created_at + v_now.shift;
    v_since bigint;
    v_number bigint;
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
    v_number := @schema@.put_session(
        v_now.shift, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, v_since
    );
    PERFORM @schema@.describe_session(v_number, p_kind, p_used_at + v_now.shift);
    PERFORM @schema@.put_delegable_tokens(
        v_now.shift, v_number, p_digests, p_kinds, p_issued_at, p_token_expires_at, p_delegations
    );
    outcome := 1;
END $$;

CREATE FUNCTION @schema@.add_tokens(
    p_clock bigint, p_seen bigint, p_expected bigint, p_id text,
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_delegations text[],
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.begin_change(p_clock, p_seen, p_expected);
    v_number bigint;
BEGIN
    clock := v_now.clock;
    "time" := v_now.time;
    IF v_now.time IS NULL THEN
        outcome := 2;
        RETURN;
    END IF;
    -- No revocation ends the session between the look and the commit.
    PERFORM @schema@.lock_shared();
    SELECT number INTO v_number FROM @schema@.sessions WHERE id = p_id AND expires_at > v_now.time;
    IF NOT FOUND THEN
        outcome := 0;
        RETURN;
    END IF;
    PERFORM @schema@.put_delegable_tokens(
        v_now.shift, v_number, p_digests, p_kinds, p_issued_at, p_token_expires_at, p_delegations
    );
    outcome := 1;
END $$;

-- As `renew_session` was, and tokens with a delegation end too when the user has changed.
CREATE FUNCTION @schema@.renew_session_of_kind(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_kind smallint, p_used_at bigint,
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_delegations text[],
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
    SELECT s.number, s.username, s.body, s.sequence, s.kind INTO v_old
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
    PERFORM @schema@.describe_session(v_old.number, coalesce(p_kind, v_old.kind), p_used_at + v_now.shift);
    PERFORM @schema@.put_delegable_tokens(
        v_now.shift, v_old.number, p_digests, p_kinds, p_issued_at, p_token_expires_at, p_delegations
    );
    IF v_old.username <> p_username OR @schema@.user_in(v_old.body) <> @schema@.user_in(p_body) THEN
        WITH ended AS (
            DELETE FROM @schema@.tokens
            WHERE session = v_old.number AND kind IN (0, 4) AND digest <> ALL (p_digests) RETURNING digest
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

-- The version before calls this one: whoever renews a session must end those tokens.
CREATE OR REPLACE FUNCTION @schema@.renew_session(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[],
    p_spent bytea, p_at bigint, p_since bigint,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT renewed.outcome, renewed.clock, renewed."time" INTO outcome, clock, "time"
        FROM @schema@.renew_session_of_kind(
            p_clock, p_seen, p_expected, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, NULL, NULL,
            p_digests, p_kinds, p_issued_at, p_token_expires_at, array_fill(''::text, ARRAY[cardinality(p_digests)]),
            p_spent, p_at, p_since
        ) AS renewed;
END $$;

-- Times of the clock. An earlier one than is known changes nothing.
CREATE FUNCTION @schema@.note_use(p_clock bigint, p_seen bigint, p_ids text[], p_used_at bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now @schema@.moment := @schema@.read_time(p_clock, p_seen);
BEGIN
    -- It need not survive a crash of the server, so nobody waits for its disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    -- In one order, so that two replicas do not wait for each other.
    PERFORM FROM @schema@.sessions WHERE id = ANY (p_ids) ORDER BY number FOR NO KEY UPDATE;
    UPDATE @schema@.sessions s SET used_at = new.used_at + v_now.shift
        FROM unnest(p_ids, p_used_at) AS new (id, used_at)
        WHERE s.id = new.id AND (s.used_at IS NULL OR s.used_at < new.used_at + v_now.shift);
END $$;

-- Stores or replaces a session with exactly these tokens.
CREATE FUNCTION @schema@.import_session_of_kind(
    p_clock bigint, p_seen bigint,
    p_id text, p_username text, p_created_at bigint, p_expires_at bigint, p_body text, p_groups text[],
    p_kind smallint, p_used_at bigint,
    p_digests bytea[], p_kinds smallint[], p_issued_at bigint[], p_token_expires_at bigint[], p_delegations text[],
    p_sequence bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_shift bigint := (@schema@.begin_change(p_clock, p_seen, NULL)).shift;
    v_number bigint;
BEGIN
    PERFORM @schema@.lock_shared();
    v_number := @schema@.put_session(
        v_shift, p_id, p_username, p_created_at, p_expires_at, p_body, p_groups, p_sequence
    );
    UPDATE @schema@.sessions SET sequence = p_sequence, kind = p_kind, used_at = p_used_at + v_shift
        WHERE number = v_number;
    DELETE FROM @schema@.tokens WHERE session = v_number;
    PERFORM @schema@.put_delegable_tokens(
        v_shift, v_number, p_digests, p_kinds, p_issued_at, p_token_expires_at, p_delegations
    );
END $$;
