-- Whose token or session a revocation is about; empty where nobody said so.
ALTER TABLE @schema@.revocations ADD COLUMN owner text NOT NULL DEFAULT '';

CREATE FUNCTION @schema@.note_owner(p_sequence bigint, p_owner text) RETURNS void LANGUAGE sql AS $$
    UPDATE @schema@.revocations SET owner = p_owner WHERE sequence = p_sequence AND p_owner <> ''
$$;

CREATE FUNCTION @schema@.revoke_of_owner(
    p_clock bigint, p_seen bigint, p_expected bigint,
    p_kind text, p_value text, p_at bigint, p_author text, p_owner text,
    OUT outcome integer, OUT clock bigint, OUT "time" bigint, OUT ended bigint, OUT sequence bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT revoked.outcome, revoked.clock, revoked."time", revoked.ended, revoked.sequence
        INTO outcome, clock, "time", ended, sequence
        FROM @schema@.revoke(p_clock, p_seen, p_expected, p_kind, p_value, p_at, p_author) AS revoked;
    PERFORM @schema@.note_owner(sequence, p_owner);
END $$;

-- Replaces the log; returns null, or the own head if that is further.
CREATE FUNCTION @schema@.import_log_of_owners(
    p_clock bigint, p_seen bigint, p_head bigint, p_forgotten bigint, p_sequences bigint[], p_kinds text[], p_values text[],
    p_at bigint[], p_authors text[], p_recorded_at bigint[], p_undone boolean[], p_owners text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_further bigint := @schema@.import_log(
        p_clock, p_seen, p_head, p_forgotten, p_sequences, p_kinds, p_values, p_at, p_authors, p_recorded_at, p_undone
    );
BEGIN
    IF v_further IS NULL THEN
        PERFORM @schema@.note_owner(new.sequence, new.owner)
            FROM unnest(p_sequences, p_owners) AS new (sequence, owner);
    END IF;
    RETURN v_further;
END $$;

-- As it was, and the tokens that end have an owner.
CREATE OR REPLACE FUNCTION @schema@.renew_session_of_kind(
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
            PERFORM @schema@.note_owner(
                @schema@.write_revocation(
                    'token', encode(v_digest, 'hex'), NULL, 'ostiary: the user has changed', v_now.time
                ),
                p_username
            );
        END LOOP;
    END IF;
    outcome := 1;
END $$;
